// Whether a draft model speaks the target's tokens. Compared are the bytes of every token, special ones by their text (files of
// one model differ in what counts as special), never sizes: models pad their vocabularies.
#pragma once

#include "base/result.h"
#include "draft/vocab_map.h"
#include "text/tokenizer.h"

namespace hunch {

struct Vocabulary {
  const Tokenizer& tokenizer;
  int64_t columns = 0;  // of the model's logits: the tokenizer's ids and padding
  std::string source;   // for messages
};

// Mode "same": ids must agree where both have a token; those that one lacks, and padding, are not guessed. Mode "intersection":
// tokens are matched by bytes, whatever their ids; the target's other tokens are never guessed, and the draft model reads the
// longest of its tokens that ends one in its place (its end of text for special ones). Errors: an unknown mode; "same" and the
// first token that differs; no token in common.
Result<VocabMap> match_vocabularies(const Vocabulary& target, const Vocabulary& draft, const std::string& mode);

}
