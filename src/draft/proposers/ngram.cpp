// ngram: prompt lookup. The longest suffix of the context, of a length in [ngram_min, ngram_max], that occurs earlier proposes
// what followed it there: at its earliest occurrence, which may overlap the suffix, never past the context's end. As vLLM's
// proposer; an index of first occurrences makes a round cost what it committed instead of the context.
#include <fmt/format.h>

#include <bit>

#include "draft/proposer.h"

namespace hunch {
namespace {

constexpr int kLongest = 64;  // of a suffix; the index keeps eight bytes per token for every length

// First occurrences of the n-grams of one growing sequence: per length an open-addressed table of start positions. A bucket holds
// no key: the tokens themselves are compared, so none is mistaken for another.
class FirstOccurrences {
 public:
  // Takes the memory that a sequence of `max_len` tokens needs and forgets what it knew.
  void reset(int min_n, int max_n, int64_t max_len) {
    min_n_ = min_n, max_n_ = max_n, max_len_ = max_len, indexed_ = 0;
    buckets_ = std::bit_ceil(uint64_t(std::max<int64_t>(max_len, 1)) * 2);
    starts_.assign(size_t(max_n - min_n + 1) * buckets_, -1);
  }
  void release() { starts_ = {}, max_len_ = indexed_ = 0; }

  // n-grams that end at or before `end` are known from now on; the tokens before an earlier `end` have not changed.
  void extend(const std::vector<int32_t>& tokens, int64_t end) {
    for (end = std::min(end, max_len_); indexed_ < end; ++indexed_)
      each(tokens, std::span(tokens).first(indexed_ + 1), [&](int len, int32_t& start) {
        if (start < 0) start = int32_t(indexed_ + 1 - len);
        return true;
      });
  }

  struct Match {
    int64_t start = -1;
    int len = 0;
  };
  // The longest suffix of `text` among the known n-grams of `tokens`, at its earliest place. Parts of an n-gram that occurs occur
  // too, so the first length that fails ends the search.
  Match longest_suffix(const std::vector<int32_t>& tokens, std::span<const int32_t> text) {
    Match match;
    if (max_len_ == 0) return match;
    each(tokens, text, [&](int len, int32_t& start) {
      if (start >= 0) match = {start, len};
      return start >= 0;
    });
    return match;
  }

 private:
  // visit(len, bucket) for the n-grams that `text` ends with, shorter ones first, until it returns false. The bucket is the one
  // of equal tokens, or an empty one.
  template <class Visit>
  void each(const std::vector<int32_t>& tokens, std::span<const int32_t> text, Visit&& visit) {
    uint64_t hash = 0;
    for (int len = 1; len <= max_n_ && len <= std::ssize(text); ++len) {
      const int32_t* const gram = &text[text.size() - len];
      hash = mix(hash + uint64_t(uint32_t(*gram)) + 1);
      if (len < min_n_) continue;
      int32_t* const table = &starts_[size_t(len - min_n_) * buckets_];
      uint64_t at = hash & (buckets_ - 1);
      while (table[at] >= 0 && !std::equal(gram, gram + len, &tokens[table[at]])) at = (at + 1) & (buckets_ - 1);
      if (!visit(len, table[at])) return;
    }
  }
  // The finaliser of MurmurHash3.
  static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCDu;
    x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53u;
    return x ^ (x >> 33);
  }

  int min_n_ = 1, max_n_ = 1;
  int64_t max_len_ = 0, indexed_ = 0;
  uint64_t buckets_ = 0;
  std::vector<int32_t> starts_;  // [length - min_n][bucket]; -1: empty
};

class Ngram final : public Proposer {
 public:
  Ngram(int min_n, int max_n, int max_sequences) : min_n_(min_n), max_n_(max_n), slots_(max_sequences) {}

  void open(const Sequence& sequence) override {
    FirstOccurrences& slot = at(sequence.slot);
    slot.reset(min_n_, max_n_, std::max(sequence.max_len, sequence.len()));
    slot.extend(sequence.tokens, sequence.len() - 1);
  }

  void propose(std::span<const DraftTask> tasks) override {
    for (const DraftTask& task : tasks) {
      const std::vector<int32_t>& tokens = task.sequence->tokens;
      DraftTree& tree = *task.tree;
      tree.size = 0, tree.law = DraftLaw::Point;
      if (task.limits.max_tokens <= 0 || tokens.empty()) continue;
      FirstOccurrences& slot = at(task.sequence->slot);
      // The suffix itself must not be found: what ends with the context stays out until the context has grown.
      slot.extend(tokens, task.sequence->len() - 1);
      const auto match = slot.longest_suffix(tokens, last_tokens(task, kLongest, recent_));
      if (match.len == 0) continue;
      tree.worth = double(match.len);
      const int64_t from = match.start + match.len;
      tree.make_chain(int(std::min<int64_t>(task.limits.longest(), task.sequence->len() - from)));
      for (int node = 0; node < tree.size; ++node) tree.tokens(node) = tokens[from + node];
    }
  }

  void close(Slot slot) override { at(slot).release(); }

 private:
  FirstOccurrences& at(Slot slot) {
    HUNCH_CHECK(slot >= 0 && size_t(slot) < slots_.size());
    return slots_[slot];
  }

  int min_n_, max_n_;
  std::vector<FirstOccurrences> slots_;
  std::vector<int32_t> recent_;
};

Proposer::Made make_ngram(const Proposer::Setup& setup) {
  int min_n = setup.options.ngram_min, max_n = setup.options.ngram_max;
  for (const int n : {min_n, max_n})
    if (n < 0 || n > kLongest)
      return usage_error(fmt::format("an n-gram length is {}; it must lie in [1, {}], or be 0 for the default", n, kLongest));
  if (min_n == 0 && max_n == 0) min_n = max_n = 5;
  if (min_n == 0) min_n = max_n;
  if (max_n == 0) max_n = min_n;
  if (min_n > max_n)
    return usage_error(fmt::format("the shortest n-gram, {}, is longer than the longest, {}; swap them", min_n, max_n));
  return std::unique_ptr<Proposer>(new Ngram(min_n, max_n, setup.max_sequences));
}

const Register<Proposer> ngram{"ngram", "what followed the last few tokens when they stood earlier in the context", make_ngram};

}
}
