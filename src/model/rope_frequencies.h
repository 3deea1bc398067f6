// The frequencies of rotary embeddings after scaling: linear (Chen et al., 2023), llama3 (Llama 3.1's model card), YaRN (Peng et
// al., 2023). A scaling changes frequencies and, for YaRN, the magnitude of cosine and sine; the rotation is the same.
#pragma once

#include "checkpoint/shape.h"

namespace hunch {

struct RopeFrequencies {
  std::vector<float> inv_freq;  // [rope_dim / 2]
  float magnitude = 1;
};

RopeFrequencies rope_frequencies(const ModelShape&);

}
