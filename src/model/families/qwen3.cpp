// Qwen3: RMS norm on every head of q and k.
#include "model/decoder.h"

namespace hunch {
namespace {

Result<std::unique_ptr<Model>> make_qwen3(const Model::Setup& setup) {
  return Decoder::make(setup, {.qkv_bias_allowed = true, .qk_norm = true});
}

const Register<Model> qwen3{"qwen3", "Qwen3: RMS norm on every head of q and k", make_qwen3};

}
}
