// GrammarMask: the grammar of one request as a rule of its logits. Owned by its LogitState.
#pragma once

#include <atomic>
#include <mutex>

#include "backend/ops/token_mask.h"
#include "base/clock.h"
#include "engine/mask_workers.h"
#include "text/grammar.h"

namespace hunch {

class GrammarMask final : public TokenMask {
 public:
  // `keep_going`: end ids are allowed only where nothing else is. `workers`, which outlive it: fill masks before they are asked
  // for; null: nobody does.
  GrammarMask(const GrammarCompiler&, std::shared_ptr<const CompiledGrammar>, bool keep_going, MaskWorkers* workers = nullptr);
  ~GrammarMask() override;

  Row after(std::span<const int32_t> path) override;
  void reset() override;
  void append(int32_t token) override;

  // Places in the tree of paths that were asked about since the last append(): 0 is the committed output. The place behind one
  // more token, or -1 where it is refused.
  static constexpr int kCommitted = 0;
  int step(int place, int32_t token) {
    const Bounded bounded(*this);
    const int next = find(place, token);
    return places_[next].allowed ? next : -1;
  }
  // Bytes that every continuation from there begins with, so many at most.
  std::string forced(int place, size_t most_bytes) {
    const Bounded bounded(*this);
    if (broken_ || !places_[place].allowed) return {};
    go_to(place);
    return state_.forced(most_bytes);
  }

  // Masks of so many places will be asked for, the first that were: workers, if there are any, fill them.
  void fill_soon(int places);
  // That of one such place, if there is one left. Any thread.
  bool fill_one();
  // While `on`, after() leaves masks out behind guesses in free text, where one takes a thousand times what may_say() does,
  // which then checks what was chosen.
  void leave_out(bool on) { leaves_out_ = on; }
  bool may_say(int place, int32_t token);

  // Milliseconds that after() took since this was asked last.
  double take_waited_ms() { return std::exchange(waited_ms_, 0); }

 private:
  struct Place {
    int parent = -1, depth = 0;
    int32_t token = -1;
    bool allowed = true, filled = false, only_ends = false;
  };
  static constexpr double kMostSeconds = 0.5;
  // While one lives, the automaton works; where it takes too long, as with a grammar of very many readings, nothing follows.
  class Bounded {
   public:
    explicit Bounded(GrammarMask& of) : of_(of), lock_(of.mutex_), start_(thread_seconds()) {}
    ~Bounded() { of_.broken_ |= thread_seconds() - start_ > kMostSeconds; }

   private:
    GrammarMask& of_;
    const std::lock_guard<std::mutex> lock_;
    const double start_;
  };
  int find(int place, int32_t token);
  void go_to(int place);
  void fill(int place);

  std::mutex mutex_;
  GrammarState state_;
  const Tokens end_ids_;
  const size_t num_words_;
  const bool keep_going_;
  MaskWorkers* const workers_;
  bool broken_ = false;  // a token was committed that the grammar refuses: nothing follows
  std::vector<Place> places_;
  bool leaves_out_ = false;
  double waited_ms_ = 0;
  std::atomic<int> soon_ = 0;
  int at_ = kCommitted;                             // where state_ stands
  std::vector<int> way_;                            // scratch of go_to
  std::vector<std::unique_ptr<uint32_t[]>> masks_;  // by place; more than places_, kept for later rounds
};

}
