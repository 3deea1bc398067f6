// StopTexts: finds stop texts in a stream of text, one per request, behind its Detokenizer. Never gives out what may become one.
// The output ends before the stop text (OpenAI's meaning). Of several the one that is complete first wins, then the longest: the
// result depends on the text alone, not on its pieces, and generation can end at the very token that completes it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace hunch {

class StopTexts {
 public:
  // None of them may be empty (engine/sampling_options.h checks requests). Valid UTF-8 in them and in the pieces gives valid
  // UTF-8.
  explicit StopTexts(std::vector<std::string> stops);

  bool empty() const { return stops_.empty(); }
  // Appends to `out` what may be given out after this piece. True if a stop text is complete: what follows it is dropped, and
  // further pieces give nothing.
  bool feed(std::string_view piece, std::string& out);
  // Appends what is still held back, at the end of the stream.
  void flush(std::string& out);

  // The stop text that was found, an index into those given; -1: none so far.
  int found() const { return found_; }
  const std::string& text(int index) const { return stops_[index].text; }
  size_t held_back() const { return held_.size(); }  // bytes

 private:
  // Knuth, Morris and Pratt's automaton: `matched` bytes of the text stand at the end of the stream.
  struct Stop {
    std::string text;
    std::vector<size_t> border;  // [length] the longest proper border of text[0..i]
    size_t matched = 0;
  };
  std::vector<Stop> stops_;
  std::string held_;  // the longest end of the stream that begins a stop text
  int found_ = -1;
};

}
