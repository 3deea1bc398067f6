// MarkStream: text as it comes, cut at the marks that a chat format sets ("<think>", "<|message|>"). Gives out what lies before a
// mark as soon as no mark can begin in it. MarkedReader: a reader of replies that goes by it.
#pragma once

#include <algorithm>
#include <span>

#include "api/reply_reader.h"

namespace hunch {

constexpr std::string_view kBlanks = " \t\r\n";

template <class Names>
bool among(std::string_view name, const Names& names) {
  return std::ranges::find(names, name) != std::end(names);
}

class MarkStream {
 public:
  // What was taken is forgotten here and not at each mark: a text of many marks costs no more than its length.
  void feed(std::string_view text) {
    text_.erase(0, at_);
    at_ = 0;
    text_ += text;
  }

  // Appends text up to the first of `marks` (each begins with '<') and takes the mark too: its index. -1: none is whole yet.
  // `last`: nothing follows, so that nothing is held back.
  int take(std::span<const std::string_view> marks, bool last, std::string& out) {
    while (at_ < text_.size()) {
      const size_t next = std::min(text_.find('<', at_), text_.size());
      out.append(text_, at_, next - at_);
      at_ = next;
      const std::string_view rest = std::string_view(text_).substr(at_);
      bool may_become = false;
      for (size_t i = 0; i < marks.size(); ++i) {
        if (rest.starts_with(marks[i])) return at_ += marks[i].size(), int(i);
        may_become |= marks[i].starts_with(rest);
      }
      if (rest.empty() || (may_become && !last)) return -1;
      out += '<';
      ++at_;
    }
    return -1;
  }

  // What has not been taken, for a reader that looks at bytes; skip() takes some of it.
  std::string_view rest() const { return std::string_view(text_).substr(at_); }
  void skip(size_t bytes) { at_ += bytes; }

 private:
  std::string text_;
  size_t at_ = 0;
};

class MarkedReader : public ReplyReader {
 public:
  void feed(std::string_view text, ReplyDelta& out) final {
    in_.feed(text);
    read(false, out);
  }
  void finish(ReplyDelta& out) final {
    read(true, out);
    close(out);
  }

 protected:
  virtual void read(bool last, ReplyDelta& out) = 0;  // what in_ has; `last`: nothing follows
  virtual void close(ReplyDelta& out) = 0;            // after the last read
  MarkStream in_;
};

}
