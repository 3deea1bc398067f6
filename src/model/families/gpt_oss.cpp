// gpt-oss: attention sinks, every second layer within a window, experts in MXFP4 with biases and clamped gates.
#include "model/decoder.h"

namespace hunch {
namespace {

Result<std::unique_ptr<Model>> make_gpt_oss(const Model::Setup& setup) {
  return Decoder::make(setup, {.qkv_bias_allowed = true, .qk_norm = false});
}

const Register<Model> gpt_oss{
    "gpt_oss", "gpt-oss: experts in MXFP4, attention sinks, windows in every second layer", make_gpt_oss};

}
}
