// A rule comes to an end if one of its alternatives consists of texts and of rules that do; the least
// such set is found by going over the rest until nothing changes (Hopcroft, Motwani & Ullman, ch. 7.1).
#include "text/grammar_language.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace hunch {
namespace {

class Body {
 public:
  // `ends`: rules that are known to come to an end; names that are no rule are texts of some kind.
  Body(std::string_view text, const std::map<std::string, std::string_view, std::less<>>& rules,
      const std::set<std::string, std::less<>>& ends)
      : text_(text), rules_(rules), ends_(ends) {}
  bool comes_to_an_end() { return choices(0); }

 private:
  static constexpr int kDeepest = 200;

  bool choices(int depth) {
    bool any = false, all = true;  // of the alternatives so far; of the parts of this one
    while (at_ < text_.size() && text_[at_] != ')') {
      if (text_[at_] == ' ') ++at_;
      else if (text_[at_] == '|') any |= all, all = true, ++at_;
      else all &= part(depth);
      if (depth == 0 && done_) break;
    }
    return any || all;
  }

  bool part(int depth) {
    if (text_[at_] == '"') return skip_to('"'), true;
    if (text_[at_] == '[') {
      skip_to(']');
      if (at_ < text_.size() && text_[at_] == '*') ++at_;
      return true;
    }
    if (text_[at_] == '(') {
      if (depth == kDeepest) return at_ = text_.size(), true;
      ++at_;
      const bool good = choices(depth + 1);
      if (at_ < text_.size()) ++at_;
      done_ = depth == 0;  // the body is one group; a look-ahead may follow
      return good;
    }
    const size_t from = at_;
    while (at_ < text_.size() && std::string_view(" ()|[\"{").find(text_[at_]) == text_.npos) ++at_;
    const std::string_view name = text_.substr(from, at_ - from);
    if (at_ == from) return ++at_, true;
    const bool given = at_ < text_.size();
    if (given && text_[at_] == '(') {  // a construct with arguments
      ++at_;
      choices(depth + 1);
      if (at_ < text_.size()) ++at_;
      return done_ = depth == 0, true;
    }
    bool may_be_left_out = false;
    if (given && text_[at_] == '{') {
      may_be_left_out = text_.substr(at_, 3) == "{0,";
      while (at_ < text_.size() && text_[at_] != '}') ++at_;
      if (at_ < text_.size()) ++at_;
    }
    return may_be_left_out || ends_.count(name) > 0 || rules_.count(name) == 0;
  }

  // Past the end of a text or a class.
  void skip_to(char end) {
    for (++at_; at_ < text_.size() && text_[at_] != end; ++at_)
      if (text_[at_] == '\\') ++at_;
    if (at_ < text_.size()) ++at_;
  }

  std::string_view text_;
  const std::map<std::string, std::string_view, std::less<>>& rules_;
  const std::set<std::string, std::less<>>& ends_;
  size_t at_ = 0;
  bool done_ = false;
};

// Takes `name ::= body` off the rules; lines that are none are passed over. False: no rule is left.
bool next_rule(std::string_view& rules, std::string_view& name, std::string_view& body) {
  while (!rules.empty()) {
    const std::string_view line = rules.substr(0, rules.find('\n'));
    rules.remove_prefix(std::min(rules.size(), line.size() + 1));
    const size_t sign = line.find(" ::= ");
    if (sign == line.npos) continue;
    name = line.substr(0, std::min(sign, line.find('[')));
    body = line.substr(sign + 5);
    return true;
  }
  return false;
}

// The character at `at` of a printed text or class, its escape undone; from 128 on a part of it may stand for the whole.
int64_t character(std::string_view text, size_t& at) {
  if (text[at] != '\\' || at + 1 == text.size()) return uint8_t(text[at++]);
  const char kind = text[at + 1];
  at += 2;
  if (kind == '0') return 0;
  if (const size_t control = std::string_view("abtnvfr").find(kind); control < 7) return 7 + int64_t(control);
  const size_t digits = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
  if (digits == 0) return uint8_t(kind);
  const std::string value(text.substr(at, digits));
  at = std::min(text.size(), at + digits);
  return std::strtoll(value.c_str(), nullptr, 16);
}

}

bool leaves_string(std::string_view rules) {
  for (std::string_view name, body; next_rule(rules, name, body);) {
    // What all JSON texts have; the rule of the string, its quotation marks; an automaton that never leaves it.
    if (name.starts_with("basic_") || body.starts_with("Regex(")) continue;
    if (name == "root" && body == R"((("\"" root_1 "\"")))") continue;
    for (size_t at = 0; at < body.size(); ++at) {
      const char open = body[at], close = open == '[' ? ']' : '"';
      if (open != '"' && open != '[') continue;
      const bool others = open == '[' && body.substr(++at, 1) == "^";
      if (open == '"' || others) ++at;
      bool mark = false, backslash = false, control = false, range = false;
      for (int64_t last = 0; at < body.size() && body[at] != close;) {
        if (open == '[' && body[at] == '-') {
          range = true, ++at;
          continue;
        }
        const int64_t next = character(body, at), first = range ? last : next;
        mark |= first <= '"' && '"' <= next;
        backslash |= first <= '\\' && '\\' <= next;
        control |= open == '"' && next < ' ';
        last = next, range = false;
      }
      if (others ? !mark || !backslash : mark || backslash || control) return true;
    }
  }
  return false;
}

bool has_output(std::string_view rules) {
  std::map<std::string, std::string_view, std::less<>> bodies;
  std::vector<std::string_view> open;
  for (std::string_view name, body; next_rule(rules, name, body);) {
    bodies.emplace(name, body);
    open.push_back(name);
  }
  if (open.empty()) return true;
  const std::string_view start = open.front();
  std::set<std::string, std::less<>> ends;
  for (bool changed = true; changed;) {
    changed = false;
    // Rules mostly stand behind those that use them.
    for (auto rule = open.rbegin(); rule != open.rend(); ++rule) {
      if (ends.count(*rule) > 0 || !Body(bodies.find(*rule)->second, bodies, ends).comes_to_an_end()) continue;
      ends.emplace(*rule);
      changed = true;
    }
    std::erase_if(open, [&](std::string_view name) { return ends.count(name) > 0; });
  }
  return ends.count(start) > 0;
}

}
