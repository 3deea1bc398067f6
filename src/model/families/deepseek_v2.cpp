// DeepSeek-V2 and V2-Lite: latent attention; from some layer on a shared block and experts that a softmax shares out.
#include "model/decoder.h"

namespace hunch {
namespace {

Result<std::unique_ptr<Model>> make_deepseek_v2(const Model::Setup& setup) {
  return Decoder::make(setup, {.qkv_bias_allowed = false, .qk_norm = false});
}

const Register<Model> deepseek_v2{
    "deepseek_v2", "DeepSeek-V2: latent attention, shared and routed experts chosen by softmax", make_deepseek_v2};

}
}
