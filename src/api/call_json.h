// CallJson: a tool call as a model writes it, {"name": ..., "arguments": {...}}, read byte by byte, so that its arguments can go
// out while they come. What a model writes is no more to be trusted than what a client sends: no recursion, a byte costs O(1).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hunch {

class CallJson {
 public:
  // Takes bytes up to the end of the object; returns how many.
  size_t feed(std::string_view text);

  bool closed() const { return closed_; }
  bool broken() const { return broken_; }  // it is no such object, or stops being one
  bool over() const { return closed_ || broken_; }
  const std::string& name() const { return name_; }  // empty: not known yet
  bool arguments_begun() const { return arguments_begun_; }
  // The arguments' JSON (keys "arguments" or "parameters") that came since the last call.
  std::string take_arguments();

 private:
  enum class Expect : unsigned char { Key, Colon, Value, Comma };
  enum class Part : unsigned char { None, Key, Name, Arguments, QuotedArguments };

  void take(char c);
  void begin_string();
  void end_string();
  bool argument_key() const { return key_ == "arguments" || key_ == "parameters"; }

  Expect expect_ = Expect::Key;
  Part part_ = Part::None;
  int depth_ = 0;
  bool in_string_ = false, escaped_ = false, closed_ = false, broken_ = false, arguments_begun_ = false;
  std::string key_, text_, name_, arguments_;  // text_: of the string in the works, as it is written
};

}
