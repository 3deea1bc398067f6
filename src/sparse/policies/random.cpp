// random: entries drawn uniformly, anew each time a pass that reads all ends. What any selector must beat; it catches one that
// silently does nothing. Draws are a hash of round, layer, set and entry under a key of its own: a draft must stay independent of
// the request's coins (rule ratio).
#include "sparse/draft_copy.h"
#include "sparse/entry_scores.h"

namespace hunch {
namespace {

constexpr NoiseKey kKey{.seed = 0x72616e646f6d};

class Random final : public CopyingPolicy {
 public:
  explicit Random(const Setup& setup)
      : CopyingPolicy(setup, sets_of(setup)),
        backend_(*setup.backend),
        sets_(sets_of(setup)),
        scores_(backend_, sets_, Memory::Shared) {}

  size_t bytes() const override { return copy_.bytes() + scores_.bytes(); }
  void open(const Sequence& sequence) override {
    copy_.open(sequence);
    scores_.reserve(sequence.max_len);
  }
  void learn(int layer, const PassInfo& info, const Observation& seen) override {
    if (info.draft) return;
    const Slot slot = info.sequence->slot;
    if (!copy_.begin(slot, info.first_position) || !copy_.selects(layer)) return;
    if (!backend_.synchronize().ok()) return;  // the last layer's scores may still be read; the step says what failed
    auto scores = scores_.view();
    for (int set = 0; set < sets_; ++set)
      for (int64_t j = 0; j < copy_.valid(slot); ++j)
        scores(set, j) = float(noise_bits(kKey, NoiseStream(uint32_t(layer * sets_ + set)), uint32_t(info.first_position),
                                   uint32_t(j)) >>
            8);  // 24 bits: exact, ties to the lower entry
    copy_.choose(layer, slot, scores, 0);
    copy_.copy(layer, slot, info.first_position + info.num_rows, seen.kv);
  }
  void committed(const Sequence& sequence, const Commit& commit) override {
    copy_.close_up(sequence.slot, commit.first, commit.rows);
  }

 private:
  Backend& backend_;
  int sets_;
  EntryScores scores_;
};

const Register<SparsePolicy> random{"random", "analysis only: entries drawn at random", make_policy<Random>};

}
}
