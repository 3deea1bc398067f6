// AddedTokens: finds tokens that are cut out before BPE: chat marks, end marks, words added by fine-tunes. Leftmost match,
// longest among equals, with the flags of Hugging Face's added tokens. Used by Tokenizer alone.
#pragma once

#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hunch {

inline constexpr size_t kMaxAddedTokenBytes = 512;

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool special = false;
  bool single_word = false;  // not beside a letter, digit or underscore
  bool lstrip = false;       // swallows white space before it
  bool rstrip = false;       // and after it
};

class AddedTokens {
 public:
  AddedTokens() = default;
  explicit AddedTokens(std::vector<AddedToken> tokens);

  // A stretch of the text: a token, or plain text where id < 0.
  struct Piece {
    size_t begin, end;
    int32_t id;
  };
  using Ranges = std::vector<std::pair<size_t, size_t>>;  // [begin, end) in bytes, ascending, apart from each other
  // Covers the text in order, without empty plain pieces. `parse_special` false: special tokens are left as plain text.
  // `special_in`: they are taken only where they lie within one of these ranges; null: everywhere.
  std::vector<Piece> split(std::string_view text, bool parse_special, const Ranges* special_in = nullptr) const;
  bool empty() const { return tokens_.empty(); }
  const AddedToken* duplicate() const;  // a token whose content another one has, or null
  // The token of this exact content, or null.
  const AddedToken* find(std::string_view content) const;

 private:
  const AddedToken* match_at(std::string_view text, size_t at) const;

  std::vector<AddedToken> tokens_;  // sorted by content
  std::bitset<256> first_;          // bytes that a token starts with
};

}
