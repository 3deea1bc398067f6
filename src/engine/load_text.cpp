#include "engine/load_text.h"

#include "base/failure.h"

namespace hunch {

Result<Tokenizer> load_tokenizer(const Checkpoint& checkpoint, const std::string& path) {
  const TokenizerSource& source = checkpoint.tokenizer();
  if (!source.from_gguf() && source.tokenizer_json.empty())
    return failure(
        "{}: the model has no tokenizer: put its tokenizer.json beside config.json, or use a GGUF file with a vocabulary", path);
  auto tokenizer = source.from_gguf() ? Tokenizer::from_gguf({
                                            .model = source.model,
                                            .pre = source.pre,
                                            .tokens = source.tokens,
                                            .token_types = source.token_types,
                                            .merges = source.merges,
                                            .bos_id = source.bos_id,
                                            .eos_id = source.eos_id,
                                            .add_bos = source.add_bos,
                                        })
                                      : Tokenizer::from_json(source.tokenizer_json, source.tokenizer_config_json);
  if (!tokenizer) return failure("{}: {}", path, tokenizer.error().message);
  const int64_t model_vocab = checkpoint.shape().vocab_size;
  if (model_vocab > 0 && tokenizer->vocab_size() > model_vocab)
    return failure(
        "{}: tokenizer and model disagree: the tokenizer has {} tokens, the model {}; use the tokenizer the model was trained "
        "with",
        path, tokenizer->vocab_size(), model_vocab);
  return tokenizer;
}

}
