// FlagSet: the flags of one subcommand as a table; it parses, explains and suggests. Values may stand behind "=" or as the next
// argument (so that "-n -1" works); of a repeated flag the last wins. One dash takes whole names too ("-ctk"), as llama.cpp's do.
#pragma once

#include <functional>
#include <type_traits>
#include <vector>

#include "api/values.h"

namespace hunch {

class FlagSet {
 public:
  // `flag`: the spelling used, for messages.
  using Set = std::function<Status(std::string_view flag, std::string_view value)>;
  using Names = std::vector<std::string_view>;
  enum class Arity { None, One, Optional };  // values; Optional: empty without one

  // Stores what `parse`, a function of the same arguments, makes of the value.
  template <class Target, class Parse>
  static Set stored(Target& target, Parse parse) {
    return [&target, parse](auto flag, auto value) -> Status {
      HUNCH_TRY(target, parse(flag, value));
      return {};
    };
  }

  // `usage`: "hunch run [flags] (-p TEXT | -f FILE)"; `about`: a sentence.
  FlagSet(std::string usage, std::string about) : usage_(std::move(usage)), about_(std::move(about)) {}

  // What follows belongs under this heading in the help.
  void group(std::string title) { group_ = std::move(title); }

  // A flag with a value. Names: canonical ones first; names past `shown_names` (-1: all) are accepted and not listed,
  // with 0 the whole flag.
  void value(Names names, std::string_view value_name, std::string help, Set set, int shown_names = -1, Arity arity = Arity::One);
  void toggle(Names names, std::string help, std::function<void()> set);

  // Common kinds of value, stored into `target`, which must outlive parse(); it may be an optional.
  void toggle(Names names, std::string help, auto& target, bool to = true) requires(
      std::is_assignable_v<decltype(target), bool>) {
    toggle(std::move(names), std::move(help), [&target, to] { target = to; });
  }
  void text(Names names, std::string_view value_name, std::string help, auto& target, int shown_names = -1) {
    const auto parse = [](auto, auto v) { return Result(std::string(v)); };
    value(std::move(names), value_name, std::move(help), stored(target, parse), shown_names);
  }
  void whole(Names names, std::string help, Range range, auto& target, int shown_names = -1) {
    const auto parse = [range](auto flag, auto v) { return parse_whole(flag, v, range); };
    value(std::move(names), "N", std::move(help), stored(target, parse), shown_names);
  }
  // -1: what it is by default, as in llama.cpp.
  void whole_or_default(Names names, std::string help, Range range, auto& target, int shown_names = -1) {
    const auto parse = [range, &target, usual = target](auto flag, auto v) -> Status {
      target = usual;
      if (v != "-1") { HUNCH_TRY(target, parse_whole(flag, v, range)); }
      return {};
    };
    value(std::move(names), "N", std::move(help), parse, shown_names);
  }
  void number(Names names, std::string help, Range range, auto& target, int shown_names = -1) {
    const auto parse = [range](auto flag, auto v) { return parse_number(flag, v, range); };
    value(std::move(names), "X", std::move(help), stored(target, parse), shown_names);
  }
  void choice(Names names, std::string_view value_name, std::string help, Names choices, auto& target) {
    const auto parse = [choices = std::move(choices)](auto flag, auto v) { return parse_choice(flag, v, choices); };
    value(std::move(names), value_name, std::move(help), stored(target, parse));
  }

  // Flags of other programs, not in the help; "--x-*" is all that begin so. `refuse`: `reason` says what to do instead. `ignore`:
  // harmless; the spelling is noted in ignored(). An optional value is taken where the next argument is in `values`, without
  // these where it is no flag.
  void refuse(Names names, std::string reason);
  void ignore(Names names, Arity arity, Names values = {});

  // Asked when all are read.
  void check(std::function<Status()> of_all) { checks_.push_back(std::move(of_all)); }

  // An argument without a dash.
  void positional(std::string_view name, bool required, std::string help, std::optional<std::string>& target);

  // A usage error, or success; help_wanted() is then true if -h or --help was given, or --flag-names, by which shells complete:
  // help() is then the listed names, one a line.
  Status parse(std::span<const std::string> arguments);
  // What stands behind a flag; nothing: there is no such flag.
  std::optional<Arity> arity(std::string_view name) const;
  bool help_wanted() const { return help_wanted_; }
  const std::vector<std::string>& ignored() const { return ignored_; }

  std::string help() const;                           // grouped, at most 100 columns
  std::vector<std::string_view> known_names() const;  // those listed in the help

 private:
  struct Flag {
    std::vector<std::string_view> names;
    int shown_names = -1;
    std::string group, help, refusal;
    std::string_view value_name;
    Arity arity = Arity::None;
    std::vector<std::string_view> values;
    Set set;
    bool listed = true;
    std::string listed_names() const;  // "-m, --model FILE"
  };
  struct Positional {
    std::string_view name;
    bool required;
    std::string help;
    std::optional<std::string>* target;
  };

  const Flag* find(std::string_view name) const;
  std::vector<std::string> without_dots(std::span<const std::string> arguments) const;
  // Handles the argument at `at` and returns how many arguments it took.
  Result<size_t> take(std::span<const std::string> arguments, size_t at);

  std::string usage_, about_, group_ = "General";
  std::vector<Flag> flags_;
  std::vector<std::function<Status()>> checks_;
  std::vector<Positional> positionals_;
  std::vector<std::string> ignored_;
  bool help_wanted_ = false, names_wanted_ = false;
};

// Hands the items of a list by comma to `take`, one after the other.
template <class Take>
Status each_item(std::string_view list, Take take) {
  while (true) {
    const size_t comma = list.find(',');
    HUNCH_OK(take(list.substr(0, comma)));
    if (comma == list.npos) return {};
    list.remove_prefix(comma + 1);
  }
}

// `text` broken at spaces into lines of at most `width` columns, each but the first behind `indent` spaces.
std::string wrapped(std::string_view text, size_t width, size_t indent);

}
