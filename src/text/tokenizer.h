// Tokenizer: text to token ids and back to bytes, for byte-level BPE vocabularies of the GPT-2, Llama-3 and Qwen2/3 families.
// Made from a Hugging Face tokenizer.json or a GGUF file's vocabulary; equal to the PyPI package `tokenizers` id for id
// (README.md names the exception). Sennrich, Haddow, Birch (2016) for BPE; the byte alphabet is GPT-2's.
#pragma once

#include <cstddef>
#include <span>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/pre_tokenizer.h"

namespace hunch {

// The keys `tokenizer.ggml.*` of a GGUF file. Everything is borrowed for the call of from_gguf only.
struct GgufVocab {
  std::string_view model, pre;           // "gpt2"; "default", "gpt-2", "llama-bpe", "qwen2", ...
  std::span<const std::string> tokens;   // normal tokens in byte-to-unicode spelling, the others as plain text
  std::span<const int32_t> token_types;  // 1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte; or empty: all 1
  std::span<const std::string> merges;   // "a b", best first
  std::optional<int32_t> bos_id, eos_id;
  std::optional<bool> add_bos;  // absent: true for the Llama-3 family, else false
};

struct EncodeOptions {
  bool parse_special = true;  // text that spells a special token becomes that token; false: it is plain text
  bool add_bos = true;        // put the BOS token first if this tokenizer adds one (adds_bos())
  // With parse_special: only special tokens within one of these byte ranges count, and no other special token comes out (an error
  // if merges would make one). Where nothing outside spells one, the ids are the same as without. Null: everywhere.
  const AddedTokens::Ranges* special_in = nullptr;
};

// Longest text that encode() takes; longer texts are refused before any work.
inline constexpr size_t kMaxTextBytes = size_t(32) << 20;

class Tokenizer {
 public:
  // `tokenizer_config_json` may be empty; it names BOS and EOS. Errors name the construct that is not supported.
  static Result<Tokenizer> from_json(std::string_view tokenizer_json, std::string_view tokenizer_config_json = {});
  // Errors name the key and the token or merge at fault; an unknown `pre` lists the known ones.
  static Result<Tokenizer> from_gguf(const GgufVocab& vocab);

  // O(n log n) in the length of the text. Errors: not UTF-8 (says at which byte), longer than kMaxTextBytes.
  // Added tokens that are not special ("<think>" of some vocabularies) are always recognised, as in Hugging Face.
  Result<std::vector<int32_t>> encode(std::string_view utf8, EncodeOptions options = {}) const;

  // Raw bytes of a token, not always whole characters; special tokens: their text. Empty for ids outside the vocabulary
  // (models may have padded rows). Valid as long as the tokenizer and not moved with it.
  std::string_view token_bytes(int32_t id) const;
  // The id of a token by its exact text (special tokens first), for chat marks and the like.
  std::optional<int32_t> token_id(std::string_view text) const;
  bool is_special(int32_t id) const;  // false for ids outside the vocabulary

  int32_t vocab_size() const { return int32_t(bpe_.size()); }  // largest id + 1, holes included
  std::optional<int32_t> bos_id() const { return bos_id_; }
  bool adds_bos() const { return adds_bos_; }
  // Ids that end a text: the declared EOS first, then special tokens that are end marks by name ("<|endoftext|>",
  // "<|eot_id|>"...).
  const std::vector<int32_t>& eos_ids() const { return eos_ids_; }
  // No token stands for more bytes: a text of more than n times this has more than n tokens (NFC aside). At least 1.
  size_t longest_token_bytes() const { return bpe_.longest(); }

 private:
  friend struct TokenizerParts;
  explicit Tokenizer(PreTokenizer pre) : pre_(std::move(pre)) {}

  Bpe bpe_;
  PreTokenizer pre_;
  AddedTokens raw_, normalized_;  // looked for in the text as it is, then in the normalized rest
  std::vector<bool> special_;     // by id
  bool nfc_ = false, adds_bos_ = false;
  std::optional<int32_t> bos_id_;
  std::vector<int32_t> eos_ids_;
};

}
