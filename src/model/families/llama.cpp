// Llama 2 and 3.x.
#include "model/decoder.h"

namespace hunch {
namespace {

Result<std::unique_ptr<Model>> make_llama(const Model::Setup& setup) {
  return Decoder::make(setup, {.qkv_bias_allowed = true, .qk_norm = false});
}

const Register<Model> llama{"llama", "Llama 2 and 3.x", make_llama};

}
}
