#include "api/tool_parser.h"

#include <fmt/ranges.h>

#include <optional>
#include <utility>

#include "api/call_json.h"
#include "api/mark_stream.h"

namespace hunch {
namespace {

// One call in the works: its text is kept until it is sure to be a call.
class OneCall {
 public:
  // `names`: null: any.
  OneCall(size_t index, const std::vector<std::string>* names) : index_(index), names_(names) {}

  size_t feed(std::string_view text, ReplyDelta& out) {
    const size_t taken = json_.feed(text);
    if (!begun_) raw_ += text.substr(0, taken);
    if (!begun_ && known() && json_.arguments_begun()) begin(out);
    if (begun_) add(json_.take_arguments(), out);
    return taken;
  }
  bool over() const { return json_.over(); }
  bool begun() const { return begun_; }

  // Its end: what was no call is content, with what stood before and behind it. True: it was a call.
  bool finish(std::string_view before, ReplyDelta& out) {
    if (!begun_ && json_.closed() && known()) {  // a function without arguments
      begin(out);
      add("{}", out);
    }
    if (!begun_) out.content += before, out.content += raw_;
    return begun_;
  }

 private:
  bool known() const { return !json_.name().empty() && (!names_ || std::ranges::find(*names_, json_.name()) != names_->end()); }
  void begin(ReplyDelta& out) {
    begun_ = true;
    raw_ = {};
    out.calls.push_back({.index = index_, .name = json_.name()});
  }
  void add(std::string arguments, ReplyDelta& out) {
    if (arguments.empty()) return;
    if (out.calls.empty() || out.calls.back().index != index_) out.calls.push_back({.index = index_});
    out.calls.back().arguments += arguments;
  }

  CallJson json_;
  size_t index_;
  const std::vector<std::string>* names_;
  bool begun_ = false;
  std::string raw_;
};

// <tool_call>{"name": ..., "arguments": {...}}</tool_call>, any number of them, between words.
class HermesReader final : public MarkedReader {
  static constexpr std::string_view kOpen[] = {"<tool_call>"}, kClose[] = {"</tool_call>"};

  void close(ReplyDelta& out) override {
    if (call_) end_call(out);
  }
  void read(bool last, ReplyDelta& out) override {
    for (;;) {
      if (call_) {
        in_.skip(call_->feed(in_.rest(), out));
        if (!call_->over()) return;
        end_call(out);
      } else if (closing_) {
        // Whatever stands between the call and its end mark; of what was no call it is content too.
        std::string between;
        const int mark = in_.take(kClose, last, between);
        if (!was_call_) out.content += between;
        if (mark < 0) return;
        closing_ = false;
        if (!was_call_) out.content += kClose[0];
        after_call_ = was_call_;
      } else {
        std::string words;
        const int mark = in_.take(kOpen, last, words);
        put_words(words, out);
        if (mark < 0) {
          if (last) out.content += blanks_, blanks_.clear();
          return;
        }
        call_.emplace(index_, nullptr);
      }
    }
  }
  void end_call(ReplyDelta& out) {
    was_call_ = call_->finish(blanks_ + std::string(kOpen[0]), out);
    blanks_.clear();
    index_ += was_call_;
    call_.reset();
    closing_ = true;
  }
  // Line breaks around calls belong to the format, not to what is said.
  void put_words(std::string_view words, ReplyDelta& out) {
    if (words.empty()) return;
    const size_t end = words.find_last_not_of(kBlanks);
    if (end == words.npos) {
      blanks_ += words;
      return;
    }
    if (!after_call_) out.content += blanks_;
    else words.remove_prefix(words.find_first_not_of(kBlanks));
    after_call_ = false;
    const size_t behind = words.find_last_not_of(kBlanks) + 1;
    out.content += words.substr(0, behind);
    blanks_ = words.substr(behind);
  }

  std::optional<OneCall> call_;
  size_t index_ = 0;
  bool closing_ = false, was_call_ = false, after_call_ = false;
  std::string blanks_;
};

// Calls without marks around them: one object after the other, between separators; anything else makes the rest content.
class BareReader final : public MarkedReader {
 public:
  // `names`: what makes an object a call; empty: any name.
  BareReader(std::string_view separators, std::string_view tag, std::vector<std::string> names)
      : separators_(separators), tag_(tag), names_(std::move(names)) {}

 private:
  void close(ReplyDelta& out) override {
    if (call_) call_->finish(std::exchange(between_, {}), out);
    else out.content += index_ == 0 ? between_ : "";
  }
  void read(bool last, ReplyDelta& out) override {
    for (;;) {
      const std::string_view rest = in_.rest();
      if (words_) {
        out.content += rest;
        return in_.skip(rest.size());
      }
      if (call_) {
        in_.skip(call_->feed(rest, out));
        if (call_->begun()) between_.clear();
        if (!call_->over()) return;
        const bool was_call = call_->finish(std::exchange(between_, {}), out);
        index_ += was_call, words_ = !was_call;
        call_.reset();
        continue;
      }
      const size_t blank = std::min(rest.find_first_not_of(separators_), rest.size());
      between_ += rest.substr(0, blank);
      in_.skip(blank);
      const std::string_view next = in_.rest();
      if (next.empty()) return;
      if (!tag_.empty() && next.starts_with(tag_)) {
        in_.skip(tag_.size());
      } else if (!tag_.empty() && tag_.starts_with(next) && !last) {
        return;
      } else if (next[0] == '{') {
        call_.emplace(index_, names_.empty() ? nullptr : &names_);
      } else {
        words_ = true;
        out.content += std::exchange(between_, {});
      }
    }
  }

  const std::string_view separators_, tag_;
  const std::vector<std::string> names_;
  std::optional<OneCall> call_;
  size_t index_ = 0;
  bool words_ = false;
  std::string between_;
};

class ArgumentsReader final : public ReplyReader {
 public:
  explicit ArgumentsReader(std::string name) : name_(std::move(name)) {}
  void feed(std::string_view text, ReplyDelta& out) override {
    if (!text.empty()) out.calls.push_back({.name = std::exchange(name_, {}), .arguments = std::string(text)});
  }
  void finish(ReplyDelta&) override {}

 private:
  std::string name_;
};

constexpr std::string_view kHermes[] = {"hermes", "qwen", "qwen3"}, kLlama[] = {"llama3_json", "llama3"};

}

std::string tool_parser_names() { return fmt::format("{}, {}", fmt::join(kHermes, ", "), fmt::join(kLlama, ", ")); }

bool is_tool_parser(std::string_view name) { return among(name, kHermes) || among(name, kLlama); }

std::string_view tool_parser_for(std::string_view chat_template) {
  if (chat_template.find("<tool_call>") != chat_template.npos) return "hermes";
  if (chat_template.find("<|python_tag|>") != chat_template.npos) return "llama3_json";
  return {};
}

ReplyReaderPtr make_tool_parser(std::string_view name, std::vector<std::string> names) {
  if (among(name, kHermes)) return std::make_unique<HermesReader>();
  if (!among(name, kLlama)) return nullptr;
  return std::make_unique<BareReader>(" \t\r\n;,", "<|python_tag|>", std::move(names));
}

ReplyReaderPtr make_call_list_reader() { return std::make_unique<BareReader>(" \t\r\n[],", "", std::vector<std::string>()); }

ReplyReaderPtr make_arguments_reader(std::string name) { return std::make_unique<ArgumentsReader>(std::move(name)); }

}
