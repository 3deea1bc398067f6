// VocabMap: how the ids of a draft model and those of its target go together. engine/vocab_match makes it, proposers/draft_model
// guesses by it. Acceptance depends on it, the output never does.
#pragma once

#include <cstdint>
#include <vector>

namespace hunch {

// Both empty: one numbering, and nothing to leave out.
struct VocabMap {
  // [columns of the draft model's logits] the target's id of each, no id twice; -1: never guessed.
  std::vector<int32_t> target_ids;
  // [columns of the target's logits] what the draft model reads in place of each of the target's ids.
  std::vector<int32_t> own_ids;

  bool same() const { return target_ids.empty(); }
};

}
