// Text: an immutable string that knows which of its bytes the template wrote and which came with the request, and the builder
// that joins texts under a limit. Special tokens are recognised in the template's bytes only.
#pragma once

#include <cstdint>
#include <string>

#include "text/jinja/heap.h"

namespace hunch::jinja {

// Bytes up to `end`, from the end of the run before. Neighbours differ in `trusted`.
struct Run {
  size_t end;
  bool trusted;
};

struct Text {
  std::string_view bytes;     // UTF-8
  std::span<const Run> runs;  // empty: all bytes are alike, and `trusted` says how
  bool trusted = false;
  bool markup = false;              // what `safe` and `escape` return: `+` escapes its other side
  mutable int64_t characters = -1;  // code points; -1: not counted yet

  int64_t length() const;
  bool is_ascii() const { return length() == std::ssize(bytes); }
  // The byte where character `index` (0..length()) begins.
  size_t byte_of(int64_t index) const;
};

// Part of `text`; the bytes are shared.
Text part_of(const Text& text, size_t begin, size_t end, Heap& heap);

class TextBuilder {
 public:
  explicit TextBuilder(size_t limit_bytes) : limit_(limit_bytes) {}

  // Past the limit nothing is added any more, and full() tells.
  void append(std::string_view bytes, bool trusted = false);
  void append(const Text& text) { append(text, 0, text.bytes.size()); }
  void append(const Text& text, size_t begin, size_t end);
  bool full() const { return full_; }
  const std::string& bytes() const { return bytes_; }
  const std::vector<Run>& runs() const { return runs_; }  // covers bytes()
  Text finish(Heap& heap) const;
  std::string take() && { return std::move(bytes_); }

 private:
  size_t limit_;
  bool full_ = false;
  std::string bytes_;
  std::vector<Run> runs_;
};

}
