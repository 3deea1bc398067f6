// SuffixGuess: what the counts of a SuffixTree say about the tokens after a context (Oliaro et al., 2024). For every length m of
// matched context the most frequent continuations are followed; the best-scored m wins. Used by proposer suffix.
#pragma once

#include <array>

#include "draft/suffix_tree.h"

namespace hunch {

inline constexpr int kMaxSuffixDepth = 64;

struct SuffixSearch {
  int depth = 24;                 // of the tree: matched context and draft together; at most kMaxSuffixDepth
  double factor = 1, offset = 0;  // a match of m tokens drafts at most m factor + offset
  double min_probability = 0.1;   // of all of a path
  bool branch = false;            // several children per node, best probability first; else a chain
  int max_tokens = 0;
  int max_depth = kMaxSuffixDepth;  // of the draft
};

struct SuffixGuess {
  double score = 0;  // sum of the nodes' probabilities: how many of them to expect, if the future is like the counted past
  int size = 0;
  std::array<int32_t, kMaxSuffixDepth> tokens{}, parents{};
};

// `context`: the last tokens of the sequence. `tail`: its end, of which the tree holds no suffix yet, at most depth - 1 tokens,
// all whose suffixes are counted on top (empty if the tree is complete, or of other sequences).
SuffixGuess guess_by_suffix(
    const SuffixTree& tree, std::span<const int32_t> tail, std::span<const int32_t> context, const SuffixSearch& search);

}
