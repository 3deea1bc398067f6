// ReplyReader: the text of a chat's reply as it comes, told apart into what the model thought, what it says and which tools it
// calls. One for each choice of a chat; used by call.cpp.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace hunch {

struct ReplyDelta {
  std::string reasoning, content;
  struct Call {
    size_t index = 0;
    std::string name;       // not empty: a new call begins
    std::string arguments;  // the next part of its JSON
  };
  std::vector<Call> calls;

  bool empty() const { return reasoning.empty() && content.empty() && calls.empty(); }
};

class ReplyReader {
 public:
  virtual ~ReplyReader() = default;
  // Appends what this text makes certain. Linear in all text that was fed, whatever it is.
  virtual void feed(std::string_view text, ReplyDelta& out) = 0;
  // Nothing follows: appends what was held back.
  virtual void finish(ReplyDelta& out) = 0;
  // Whether what was fed last is thought, or its marks.
  virtual bool thinking() const { return false; }
};
using ReplyReaderPtr = std::unique_ptr<ReplyReader>;

}
