#include "api/reasoning_parser.h"

#include <fmt/ranges.h>

#include <array>
#include <utility>

#include "api/mark_stream.h"

namespace hunch {
namespace {

// Gives text on without the blanks at its beginning and end; those at the end are held until something follows.
class Trimmed {
 public:
  void add(std::string_view text, std::string& out) {
    if (!begun_) {
      const size_t first = text.find_first_not_of(kBlanks);
      if (first == text.npos) return;
      text.remove_prefix(first);
      begun_ = true;
    }
    const size_t end = text.find_last_not_of(kBlanks);
    if (end == text.npos) {
      blanks_ += text;
      return;
    }
    out += std::exchange(blanks_, {});
    out += text.substr(0, end + 1);
    blanks_ = text.substr(end + 1);
  }

 private:
  bool begun_ = false;
  std::string blanks_;
};

// <think>thoughts</think>words. Only thoughts at the beginning count: later the marks are words.
class ThinkReader final : public MarkedReader {
 public:
  ThinkReader(bool thinking, ReplyReaderPtr content) : content_(std::move(content)), state_(thinking ? Thinking : Before) {}

  bool thinking() const override { return state_ == Thinking; }

 private:
  enum State { Before, Thinking, Behind, Saying };
  static constexpr std::string_view kOpen[] = {"<think>"}, kClose[] = {"</think>"};

  void read(bool last, ReplyDelta& out) override {
    if (state_ == Before) {
      const size_t known = before_.size();  // to be blank: this is looked at once, or a text of blanks would cost its square
      const int mark = in_.take(kOpen, last, before_);
      const bool blank = before_.find_first_not_of(kBlanks, known) == before_.npos;
      if (mark == 0 && blank) {
        state_ = Thinking;
      } else if (mark == 0) {
        before_ += kOpen[0], state_ = Saying;
        say(std::exchange(before_, {}), out);
      } else if (!blank) {
        state_ = Saying;
        say(std::exchange(before_, {}), out);
      }
    }
    if (state_ == Thinking) {
      std::string thoughts;
      if (in_.take(kClose, last, thoughts) == 0) state_ = Behind;
      thoughts_.add(thoughts, out.reasoning);
    }
    if (state_ == Behind) {  // blanks between thoughts and words are the format's
      const std::string_view rest = in_.rest();
      in_.skip(std::min(rest.find_first_not_of(kBlanks), rest.size()));
      if (!in_.rest().empty()) state_ = Saying;
    }
    if (state_ == Saying) {
      const std::string words(in_.rest());
      in_.skip(words.size());
      say(words, out);
    }
  }
  void close(ReplyDelta& out) override {
    if (state_ == Before) say(before_, out);
    if (content_) content_->finish(out);
  }
  void say(std::string_view words, ReplyDelta& out) {
    if (content_) content_->feed(words, out);
    else out.content += words;
  }

  ReplyReaderPtr content_;
  State state_;
  std::string before_;
  Trimmed thoughts_;
};

// Harmony: messages of <|start|>role<|channel|>channel to=recipient <|constrain|>form<|message|>text<|end|>. The prompt ends
// behind the first role.
class HarmonyReader final : public MarkedReader {
 public:
  bool thinking() const override { return in_message_ && thinking_; }

 private:
  enum Mark : int { kStart, kChannel, kConstrain, kMessage, kEnd, kReturn, kCall };
  static constexpr std::array<std::string_view, 7> kMarks{
      "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|return|>", "<|call|>"};
  static constexpr size_t kMostHeaderBytes = 1024;

  void close(ReplyDelta& out) override {
    // A reply that never opened a message is said as it is.
    if (!in_message_ && !any_message_) out.content += header_;
  }
  void read(bool last, ReplyDelta& out) override {
    for (;;) {
      std::string text;
      const int mark = in_.take(kMarks, last, text);
      if (in_message_) put(text, out);
      else if (!any_message_ || header_.size() < kMostHeaderBytes) header_ += text;
      if (mark < 0) return;
      if (mark == kMessage && !in_message_) open_message(out);
      else if (mark == kEnd || mark == kReturn || mark == kCall || mark == kStart) in_message_ = false, header_.clear();
      else if (mark == kChannel && in_message_) in_message_ = false, header_.assign(1, '\n');
      else if (!in_message_) header_ += '\n';  // between role, channel and form
    }
  }
  void open_message(ReplyDelta& out) {
    in_message_ = any_message_ = true;
    recipient_.clear();
    if (const size_t to = header_.find("to="); to != header_.npos) {
      recipient_ = header_.substr(to + 3);
      recipient_.resize(std::min(recipient_.find_first_of(kBlanks), recipient_.size()));
    }
    constexpr std::string_view kFunctions = "functions.";
    if (recipient_.starts_with(kFunctions)) recipient_.erase(0, kFunctions.size());
    thinking_ = recipient_.empty() && header_.find("analysis") != header_.npos;
    header_.clear();
    if (!recipient_.empty()) out.calls.push_back({.index = next_call_++, .name = recipient_});
  }
  void put(const std::string& text, ReplyDelta& out) {
    if (text.empty()) return;
    if (!recipient_.empty()) {
      if (out.calls.empty() || out.calls.back().index + 1 != next_call_) out.calls.push_back({.index = next_call_ - 1});
      out.calls.back().arguments += text;
    } else {
      (thinking_ ? out.reasoning : out.content) += text;
    }
  }

  std::string header_, recipient_;
  bool in_message_ = false, any_message_ = false, thinking_ = false;
  size_t next_call_ = 0;
};

constexpr std::string_view kThink[] = {"qwen3", "deepseek_r1", "think"}, kHarmony[] = {"openai_gptoss", "gpt_oss", "harmony"};

}

std::string reasoning_parser_names() { return fmt::format("none, {}, {}", fmt::join(kThink, ", "), fmt::join(kHarmony, ", ")); }

bool is_reasoning_parser(std::string_view name) { return name == "none" || among(name, kThink) || is_harmony(name); }
bool is_harmony(std::string_view name) { return among(name, kHarmony); }

std::string_view reasoning_parser_for(std::string_view chat_template) {
  if (chat_template.find("<|channel|>") != chat_template.npos) return "openai_gptoss";
  return chat_template.find("<think>") != chat_template.npos ? "qwen3" : "";
}

ReplyReaderPtr make_reasoning_parser(std::string_view name, bool thinking, ReplyReaderPtr content) {
  if (is_harmony(name)) return std::make_unique<HarmonyReader>();
  if (among(name, kThink)) return std::make_unique<ThinkReader>(thinking || name == "deepseek_r1", std::move(content));
  return content;
}

}
