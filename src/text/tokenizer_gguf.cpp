// Tokenizer::from_gguf: the vocabulary of a GGUF file. GGUF does not say how text is normalized, nor which added tokens strip
// white space; the family (`pre`) decides the first (pre_tokenizer.cpp), the second does not occur in the supported families.

#include "base/failure.h"
#include "text/excerpt.h"
#include "text/tokenizer_parts.h"

namespace hunch {
namespace {

enum TokenType : int32_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

Status check_counts(const GgufVocab& vocab) {
  if (vocab.tokens.empty()) return Error{"GGUF: no vocabulary: tokenizer.ggml.tokens is missing or empty"};
  if (vocab.tokens.size() > kMaxVocab)
    return failure("GGUF: tokenizer.ggml.tokens: more than {} tokens: {}", kMaxVocab, vocab.tokens.size());
  if (!vocab.token_types.empty() && vocab.token_types.size() != vocab.tokens.size())
    return failure("GGUF: tokenizer.ggml.token_type has another length than tokenizer.ggml.tokens: {} and {}",
        vocab.token_types.size(), vocab.tokens.size());
  if (vocab.merges.size() > kMaxMerges)
    return failure("GGUF: tokenizer.ggml.merges: more than {} merges: {}", kMaxMerges, vocab.merges.size());
  if (vocab.merges.empty() && vocab.tokens.size() > 300)  // texts would be read byte by byte
    return Error{"GGUF: tokenizer.ggml.merges is missing or empty: convert the model again"};
  return {};
}

Error in_gguf(const Error& error) { return {"GGUF: tokenizer.ggml: " + error.message, error.kind}; }

}

Result<Tokenizer> Tokenizer::from_gguf(const GgufVocab& vocab) {
  if (vocab.model != "gpt2")
    return failure("GGUF: tokenizer.ggml.model is not supported (byte-level BPE, \"gpt2\", is): {}", excerpt(vocab.model));
  const GgufPre* pre = find_gguf_pre(vocab.pre);
  if (!pre) return failure("GGUF: tokenizer.ggml.pre is not known: {} (known: {})", excerpt(vocab.pre), known_gguf_pre());
  HUNCH_OK(check_counts(vocab));

  TokenizerParts parts;
  parts.family = pre->family;
  parts.nfc = pre->nfc;
  parts.whole_words = pre->whole_words;
  parts.bos_id = vocab.bos_id;
  parts.eos_id = vocab.eos_id;
  parts.adds_bos = vocab.add_bos.value_or(pre->adds_bos && vocab.bos_id);
  size_t num_bytes = 0;
  for (const std::string& token : vocab.tokens) num_bytes += token.size();
  parts.bpe.reserve(vocab.tokens.size(), num_bytes, vocab.merges.size());
  for (size_t i = 0; i < vocab.tokens.size(); ++i) {
    const int32_t id = int32_t(i), type = vocab.token_types.empty() ? int32_t(kNormal) : vocab.token_types[i];
    const std::string& token = vocab.tokens[i];
    Status placed;
    switch (type) {
      case kNormal: placed = token.empty() ? parts.bpe.add_text(id, {}) : parts.bpe.add_token(id, token); break;
      case kUnknown:
      case kControl:
      case kUserDefined:
        if (token.empty()) {
          placed = parts.bpe.add_text(id, {});
        } else {
          parts.added.push_back({.id = id, .content = token, .special = type != kUserDefined});
          parts.added_normalized.push_back(false);
        }
        break;
      case kUnused: placed = parts.bpe.add_text(id, {}); break;  // rows that only pad the embedding matrix
      case kByte: return failure("GGUF: tokenizer.ggml.token_type: byte tokens do not occur in byte-level BPE: id {}", id);
      default: return failure("GGUF: tokenizer.ggml.token_type is not known (1 to 6 are): {} (id {})", type, id);
    }
    if (!placed.ok()) return in_gguf(placed.error());
  }
  for (size_t i = 0; i < vocab.merges.size(); ++i) {
    const std::string_view merge = vocab.merges[i];
    const size_t space = merge.find(' ', 1);
    if (space == merge.npos || space + 1 == merge.size() || merge.find(' ', space + 1) != merge.npos)
      return failure("GGUF: tokenizer.ggml.merges: not two tokens: merge {}, {}", i, excerpt(merge));
    const Status added = parts.bpe.add_merge(merge.substr(0, space), merge.substr(space + 1));
    if (!added.ok()) return in_gguf(added.error());
  }
  auto tokenizer = std::move(parts).assemble();
  if (!tokenizer.ok()) return in_gguf(tokenizer.error());
  return tokenizer;
}

}
