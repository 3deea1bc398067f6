// PreTokenizer: cuts text into the words that BPE works on, by the published split pattern of a model family. Used by Tokenizer
// alone. No pattern from a file is ever run, only those of its own table, each checked against the original.
#pragma once

#include <memory>
#include <string_view>

#include "base/result.h"

namespace hunch {

enum class PreFamily { Gpt2, Llama3, Qwen2, O200k };

// The family that publishes exactly this regular expression in tokenizer.json.
std::optional<PreFamily> pre_family_of_pattern(std::string_view pattern);

// What GGUF's `tokenizer.ggml.pre` stands for.
struct GgufPre {
  std::string_view name;
  PreFamily family;
  bool nfc;          // text is brought to NFC first
  bool whole_words;  // a word that is a token is that token, whatever the merges say
  bool adds_bos;     // unless tokenizer.ggml.add_bos_token says otherwise
};
const GgufPre* find_gguf_pre(std::string_view pre);  // null if unknown
std::string known_gguf_pre();                        // "default, gpt-2, ..." for messages

class PreTokenizer {
 public:
  static Result<PreTokenizer> make(PreFamily family);
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;
  ~PreTokenizer();

  // Cuts valid UTF-8 into words that cover it. One cutter per call of encode: it holds match state and is not shared by threads.
  class Cutter {
   public:
    explicit Cutter(const PreTokenizer& pre);
    Cutter(const Cutter&) = delete;
    Cutter& operator=(const Cutter&) = delete;
    ~Cutter();
    // The end of the word that begins at `begin` < text.size(). Errors only if PCRE2 gives up (its limits, memory).
    Result<size_t> next(std::string_view text, size_t begin);

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  PreTokenizer();
  struct Code;
  std::unique_ptr<Code> code_;
};

}
