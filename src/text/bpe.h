// Bpe: the vocabulary of byte-level BPE, and a word's merge loop. Used by Tokenizer alone. Merges are applied best rank first,
// leftmost first among equals, as in Sennrich et al. (2016) and Hugging Face's `tokenizers`.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace hunch {

// Bounds of what a vocabulary file may hold: far above any published one, low enough that loading stays quick.
inline constexpr size_t kMaxTokenBytes = 8192;
inline constexpr int32_t kMaxVocab = 1 << 20;
inline constexpr size_t kMaxMerges = size_t(1) << 20;

class Bpe {
 public:
  // --- Building: reserve, add every token, then every merge best first, then finish.
  void reserve(size_t num_tokens, size_t num_token_bytes, size_t num_merges);
  // A token of the model's own vocabulary, in byte-to-unicode spelling. `id` in [0, kMaxVocab).
  Status add_token(int32_t id, std::string_view spelling);
  // A token that BPE does not make (special, added, unused); `bytes` as they are. An id already there must have these bytes.
  Status add_text(int32_t id, std::string_view bytes);
  // Both in byte-to-unicode spelling. Errors name the token that the vocabulary lacks.
  Status add_merge(std::string_view left, std::string_view right);
  // `whole_words`: a word that is a token is that token, whatever the merges say (Llama-3's `ignore_merges`).
  Status finish(bool whole_words);

  // --- Use: const and safe from many threads.
  void encode_word(std::string_view bytes, std::vector<int32_t>& out) const;
  std::string_view bytes(int32_t id) const {
    if (id < 0 || size_t(id) >= tokens_.size()) return {};
    return std::string_view(arena_).substr(tokens_[id].offset, tokens_[id].length);
  }
  std::optional<int32_t> find(std::string_view bytes) const;  // by bytes
  std::optional<int32_t> find_spelling(std::string_view spelling) const;
  bool has(int32_t id) const { return id >= 0 && size_t(id) < tokens_.size() && tokens_[id].kind != Kind::Hole; }
  size_t size() const { return tokens_.size(); }
  size_t longest() const { return longest_; }

 private:
  enum class Kind : uint16_t { Hole, Word, Odd, Text };  // Word: spelt in the byte alphabet; Odd: not; Text: by add_text
  struct Token {
    uint32_t offset = 0;
    uint16_t length = 0;
    Kind kind = Kind::Hole;
  };
  struct Merge {
    uint64_t pair = kNoPair;  // left id in the high half
    uint32_t rank = 0;
    int32_t id = 0;
  };
  static constexpr uint64_t kNoPair = ~uint64_t(0);
  static uint64_t pair_of(int32_t left, int32_t right) { return uint64_t(uint32_t(left)) << 32 | uint32_t(right); }

  Status place(int32_t id, size_t offset, Kind kind);  // the bytes are those of the arena from `offset` on
  Status index(int32_t id);
  int32_t* free_slot(std::string_view wanted);
  const Merge* find_merge(int32_t left, int32_t right) const;
  void insert_merge(const Merge& merge);
  void merge_short(std::string_view bytes, std::vector<int32_t>& out) const;
  void merge_long(std::string_view bytes, std::vector<int32_t>& out) const;

  std::string arena_;
  std::vector<Token> tokens_;                        // by id
  std::vector<int32_t> slots_;                       // open addressing over the bytes of Word tokens; -1 free, power of two
  std::map<std::string, int32_t, std::less<>> odd_;  // spellings outside the byte alphabet
  size_t num_indexed_ = 0, longest_ = 1;
  std::vector<Merge> merges_;  // open addressing, power of two
  size_t num_merges_ = 0;
  uint32_t next_rank_ = 0;
  std::array<int32_t, 256> byte_ids_{};  // the token of each single byte
  bool whole_words_ = false;
  std::string scratch_;  // of add_merge
};

}
