// DeepSeek-V3 and R1: latent attention; from some layer on a shared block and experts chosen by sigmoid, bias and group.
#include "model/decoder.h"

namespace hunch {
namespace {

Result<std::unique_ptr<Model>> make_deepseek_v3(const Model::Setup& setup) {
  return Decoder::make(setup, {.qkv_bias_allowed = false, .qk_norm = false});
}

const Register<Model> deepseek_v3{
    "deepseek_v3", "DeepSeek-V3: latent attention, shared and routed experts chosen by sigmoid and bias", make_deepseek_v3};

}
}
