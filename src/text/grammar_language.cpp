// See grammar_language.h: a rule comes to an end if one of its alternatives consists of texts and of rules that do; the least
// such set is found by going over the rest until nothing changes (Hopcroft, Motwani & Ullman, ch. 7.1).
#include "text/grammar_language.h"

#include <algorithm>
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
    while (at_ < text_.size() && std::string_view(" ()|[\"{").find(text_[at_]) == std::string_view::npos) ++at_;
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

}  // namespace

bool has_output(std::string_view rules) {
  std::map<std::string, std::string_view, std::less<>> bodies;
  std::vector<std::string_view> open;
  while (!rules.empty()) {
    const std::string_view line = rules.substr(0, rules.find('\n'));
    rules.remove_prefix(std::min(rules.size(), line.size() + 1));
    const size_t sign = line.find(" ::= ");
    if (sign == std::string_view::npos) continue;
    const std::string_view name = line.substr(0, std::min(sign, line.find('[')));
    bodies.emplace(name, line.substr(sign + 5));
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

}  // namespace hunch
