// TokenRun: one sequence that runs given tokens through the model and samples nothing, on the engine's parts while no request
// runs. `hunch bench` times it as llama-bench times its tests; `hunch eval` reads a text's logits from it.
#pragma once

#include <atomic>

#include "engine/parts.h"

namespace hunch {

// Stores `depth` entries of uniform noise in [-1, 1) in every layer, the same on every machine. Keys of that size keep the
// softmax spread over all entries: no kernel is spared work that a real text costs. The sequence's pages must hold them.
void fill_entries(EngineParts&, const Sequence&, int64_t depth);

class TokenRun {
 public:
  // Pages for `max_len` tokens. Errors: beyond the context, no pages left. Once `interrupted` is set, feed() returns at the next
  // pass, its work undone.
  static Result<std::unique_ptr<TokenRun>> make(EngineParts&, int64_t max_len, const std::atomic<bool>* interrupted = nullptr);
  ~TokenRun();

  // The first `depth` entries become noise (fill_entries); the run continues behind them.
  void fill(int64_t depth) {
    HUNCH_CHECK(depth <= max_len_);
    fill_entries(parts_, sequence_, depth);
    sequence_.committed_len = depth;
  }

  enum class Logits { None, Last, All };
  // Logits [rows][vocab] of consecutive tokens, `first` being the place of row 0 in `tokens`; valid during the call.
  using OnLogits = std::function<void(int64_t first, View<const float, 2> logits)>;
  // Runs `tokens` in passes of at most `rows_per_pass` rows (and the engine's limit). With a check each pass is one of
  // verification that leaves out what the check says, and what it stored stays.
  void feed(std::span<const int32_t> tokens, int rows_per_pass, Logits, const OnLogits& = {}, SparseCheck* check = nullptr);
  // What a check is opened with.
  const Sequence& sequence() const { return sequence_; }

  // The first failure of the device; logits since then say nothing.
  const Status& status() const { return status_; }

  // From here on rows choose their blocks as this says, which must outlive the run; null: exactly.
  void share(const IndexSharing* sharing) { sharing_ = sharing; }

  int64_t len() const { return sequence_.committed_len; }
  // Forgets what stands behind entry `len`.
  void rewind(int64_t len) {
    HUNCH_CHECK(len <= sequence_.committed_len);
    sequence_.committed_len = len;  // entries behind it are overwritten before anything reads them
  }

 private:
  explicit TokenRun(EngineParts&);
  void wait() {
    const Status done = parts_.backend->synchronize();
    if (status_.ok()) status_ = done;
  }
  void logits_of(View<const float, 2> hidden, int64_t first, const OnLogits&);

  EngineParts& parts_;
  Sequence sequence_;
  Buffer ids_, hidden_, logits_;
  int64_t max_len_ = 0;
  Status status_;
  const IndexSharing* sharing_ = nullptr;
  const std::atomic<bool>* interrupted_ = nullptr;
};

}
