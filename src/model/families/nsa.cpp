// NSA: the Llama line with natively trained sparse attention in every layer.
#include "model/decoder.h"

namespace hunch {
namespace {

Result<std::unique_ptr<Model>> make_nsa(const Model::Setup& setup) {
  return Decoder::make(setup, {.qkv_bias_allowed = true, .qk_norm = false});
}

const Register<Model> nsa{"nsa", "Llama with natively trained sparse attention", make_nsa};

}
}
