// DrafterInfo: a learned drafter's sizes, whatever its publisher calls them, for `hunch info`.
#pragma once

#include "checkpoint/drafter_file.h"

namespace hunch {

// Which of the target's residual streams an EAGLE-3 layer reads: after these layers, from 0. SGLang and SpecForge
// (`eagle_config.eagle_aux_hidden_state_layer_ids`) list the layers whose output it is, vLLM and speculators
// (`eagle_aux_hidden_state_layer_ids`) those whose input it is, one more.
struct FeatureTaps {
  enum class Convention { Default, Outputs, Inputs } convention = Convention::Default;
  std::vector<int> outputs;  // as "output of layer"; empty for Default, which depends on the target's depth
};

struct DrafterInfo {
  std::string method;
  // The decoder layer of eagle, eagle3 and mtp, as its drafter reads it; empty where the configuration has none.
  std::optional<ModelShape> layer;
  int64_t hidden = 0, target_hidden = 0;    // target_hidden: as the configuration or the first matrix says; 0: unknown
  int64_t vocab_size = 0, draft_vocab = 0;  // of the target, and the ids that can be guessed; 0: unknown
  int heads = 0, head_layers = 0;           // medusa: heads, residual layers of each
  FeatureTaps taps;                         // eagle3
  bool norm_before_residual = false;        // eagle3: the residual is the normalised feature
  bool fusion_bias = false;                 // fc has a bias
};

// Errors: keys of a wrong type, sizes out of range, taps that contradict each other.
Result<DrafterInfo> describe_drafter(const DrafterFile& file);

}
