// What the tests of proposers share: sequences without a cache, trees with buffers, random streams that repeat themselves.
#pragma once

#include "base/random.h"
#include "base/test_results.h"
#include "draft/proposer.h"
#include "tensor/test_view.h"

namespace hunch::test {

using Tokens = std::vector<int32_t>;

// Random numbers of a test: a counter over keyed noise.
class Dice {
 public:
  explicit Dice(uint64_t seed) : key_{.seed = seed} {}
  int below(int n) { return int(noise_bits(key_, NoiseStream::Draft, 0, index_++) % uint32_t(n)); }

 private:
  NoiseKey key_;
  uint32_t index_ = 0;
};

// One token more: mostly what stood at a random earlier place, so that long matches occur.
inline void grow(Tokens& tokens, int alphabet, Dice& dice, int64_t& copy_from) {
  if (copy_from >= std::ssize(tokens) || dice.below(8) == 0) copy_from = tokens.empty() ? 0 : dice.below(int(tokens.size()));
  const bool fresh = tokens.empty() || dice.below(6) == 0;
  tokens.push_back(fresh ? dice.below(alphabet) : tokens[copy_from]);
  ++copy_from;
}

inline Tokens random_stream(int len, int alphabet, Dice& dice) {
  Tokens tokens;
  int64_t copy_from = 0;
  while (int(tokens.size()) < len) grow(tokens, alphabet, dice, copy_from);
  return tokens;
}

inline Sequence sequence_of(Tokens tokens, Slot slot = 0, int64_t max_len = 4096) {
  Sequence sequence;
  sequence.slot = slot;
  sequence.tokens = std::move(tokens);
  sequence.prompt_len = sequence.len();
  sequence.committed_len = sequence.len() - 1;
  sequence.max_len = max_len;
  return sequence;
}

struct Tree {
  explicit Tree(int capacity = 64) : ids(capacity, -1) {
    tree.parents.resize(capacity, -7);
    tree.tokens = view(ids, capacity);
  }
  // What a proposer finds for an open sequence.
  Tree(Proposer& proposer, const Sequence& sequence, const DraftLimits& limits, const Tokens& behind = {}) : Tree() {
    const DraftTask task{.sequence = &sequence, .limits = limits, .tree = &tree, .behind = behind};
    proposer.propose(std::span(&task, 1));
  }
  Tree(const Tree&) = delete;
  Tokens tokens() const { return Tokens(ids.begin(), ids.begin() + tree.size); }

  Tokens ids;
  DraftTree tree;
};

inline std::unique_ptr<Proposer> make_proposer(std::string_view name, const ProposerOptions& options = {}, int sequences = 1) {
  return good(Register<Proposer>::find(name)->make({.max_draft = 64, .max_sequences = sequences, .options = options}));
}

// The same as a chain.
inline Tokens draft(Proposer& proposer, const Sequence& sequence, int max_tokens) {
  const Tree out(proposer, sequence, {.max_tokens = max_tokens});
  for (int node = 0; node < out.tree.size; ++node) EXPECT_EQ(out.tree.parents[node], node - 1);
  return out.tokens();
}

}
