// A model of a known shape without file or tokenizer: random weights, made by the backend from a seed where they are needed. For
// measurements, whose times do not depend on them.
#pragma once

#include "checkpoint/checkpoint.h"

namespace hunch {

std::vector<std::string> random_model_names();  // "qwen3-8b", ...

// `name`: one of those, or the path of a config.json. `dtype` is that of the matrices, but
// for gpt-oss's experts, which are MXFP4. Errors: unknown names, unreadable configs.
Result<std::unique_ptr<Checkpoint>> random_checkpoint(const std::string& name, DType dtype, uint64_t seed = 1);

}
