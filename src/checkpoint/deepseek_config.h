// DeepSeek-V2 and V3: latent attention and experts as config.json and GGUF files (architecture deepseek2) describe them, and what
// makes them possible.
#pragma once

#include "checkpoint/gguf.h"
#include "checkpoint/json_config.h"
#include "checkpoint/shape.h"

namespace hunch {

inline bool is_deepseek(std::string_view family) { return family == "deepseek_v2" || family == "deepseek_v3"; }

// Fill what the common keys (read before) do not say: `latent` and the sizes that follow from it, experts, pairs of rope.
Status read_deepseek(const JsonConfig&, ModelShape&);
Status read_deepseek(const GgufFile&, ModelShape&);

// Ranges, and what must divide what; `source` stands in messages.
Status check_latent(const ModelShape&, std::string_view source);

}
