// Qwen3-MoE: Qwen3 with experts in place of the feed-forward block in most layers, or all.
#include "model/decoder.h"

namespace hunch {
namespace {

Result<std::unique_ptr<Model>> make_qwen3_moe(const Model::Setup& setup) {
  return Decoder::make(setup, {.qkv_bias_allowed = true, .qk_norm = true});
}

const Register<Model> qwen3_moe{"qwen3_moe", "Qwen3-MoE: Qwen3 with a mixture of experts", make_qwen3_moe};

}
}
