// Mistral: Llama with a sliding window.
#include "model/decoder.h"

namespace hunch {
namespace {

Result<std::unique_ptr<Model>> make_mistral(const Model::Setup& setup) {
  return Decoder::make(setup, {.qkv_bias_allowed = true, .qk_norm = false});
}

const Register<Model> mistral{"mistral", "Mistral: Llama with a sliding window", make_mistral};

}
}
