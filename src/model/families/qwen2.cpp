// Qwen2 and Qwen2.5: biases on q, k and v.
#include "model/decoder.h"

namespace hunch {
namespace {

Result<std::unique_ptr<Model>> make_qwen2(const Model::Setup& setup) {
  return Decoder::make(setup, {.qkv_bias_allowed = true, .qk_norm = false});
}

const Register<Model> qwen2{"qwen2", "Qwen2 and Qwen2.5: biases on q, k and v", make_qwen2};

}
}
