// tokenizer.json to the columns of GGUF's `tokenizer.ggml.*`: byte-level BPE with a pre-tokeniser that has a name there.
#pragma once

#include "checkpoint/checkpoint.h"

namespace hunch {

struct GgufTokenizer {
  TokenizerSource source;  // model, pre, tokens [vocab_size], token_types, merges, bos, eos, add_bos, chat_template
  std::optional<int32_t> padding_id;
};

// `hf`: from a Hugging Face folder. Ids up to `vocab_size` that it does not use become unused tokens. Errors: no tokenizer.json,
// not byte-level BPE, a pre-tokeniser without a GGUF name, ids outside the vocabulary or given twice.
Result<GgufTokenizer> gguf_tokenizer(const TokenizerSource& hf, int64_t vocab_size, std::string_view source);

}
