// Detokenizer: token ids to text as they come, one per stream. Bytes of an unfinished UTF-8 character are held back; what cannot
// become one is written as U+FFFD, one per maximal broken part, as Hugging Face's decode does.
#pragma once

#include "text/tokenizer.h"

namespace hunch {

class Detokenizer {
 public:
  // `tokenizer` must outlive this. `skip_special`: special tokens leave no text; else they are written as their text.
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}

  // The text that this token completes; possibly empty. Always valid UTF-8. Unknown ids give nothing.
  std::string feed(int32_t id);
  std::string feed(std::span<const int32_t> ids);
  // What is still held back, as U+FFFD; then as new.
  std::string flush();
  // Whether bytes of an unfinished character are held back.
  bool holds_back() const { return !pending_.empty(); }

 private:
  void append(int32_t id, std::string& out);

  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string pending_;  // at most 3 bytes: the beginning of a character
};

// All of it at once.
std::string detokenize(const Tokenizer& tokenizer, std::span<const int32_t> ids, bool skip_special = true);

}
