// TokenizerParts: what the two readers (tokenizer.json, GGUF) fill and Tokenizer is assembled from.
#pragma once

#include "text/tokenizer.h"

namespace hunch {

struct TokenizerParts {
  Bpe bpe;  // with all tokens of the model's own vocabulary and all merges
  PreFamily family = PreFamily::Gpt2;
  bool nfc = false, whole_words = false;
  std::vector<AddedToken> added;          // their contents are checked here: not empty, bounded, UTF-8, ids agree with bpe
  std::vector<bool> added_normalized;     // per added token: looked for in the normalized text instead of the raw one
  std::optional<int32_t> bos_id, eos_id;  // in the vocabulary, or refused
  bool adds_bos = false;                  // needs bos_id

  Result<Tokenizer> assemble() &&;
};

}
