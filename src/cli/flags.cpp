// Parsing follows the table in order of the arguments; the help is the same table printed, so the two cannot disagree.
#include "cli/flags.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "api/nearest.h"
#include "text/excerpt.h"

namespace hunch {
namespace {

constexpr size_t kColumns = 100, kHelpColumn = 32;

// Negative numbers are values, not flags: "-1", "-.5".
bool looks_like_flag(std::string_view a) { return a.size() > 1 && a[0] == '-' && !(a[1] >= '0' && a[1] <= '9') && a[1] != '.'; }

}

std::string FlagSet::Flag::listed_names() const {
  const size_t n = shown_names < 0 ? names.size() : size_t(shown_names);
  auto out = fmt::format("{}", fmt::join(names.begin(), names.begin() + n, ", "));
  if (!value_name.empty()) out += fmt::format(" {}", value_name);
  return out;
}

void FlagSet::value(Names names, std::string_view value_name, std::string help, Set set, int shown_names, Arity arity) {
  flags_.push_back({.names = std::move(names),
      .shown_names = shown_names,
      .group = group_,
      .help = std::move(help),
      .value_name = value_name,
      .arity = arity,
      .set = std::move(set),
      .listed = shown_names != 0});
}

void FlagSet::toggle(Names names, std::string help, std::function<void()> set) {
  const auto call = [set = std::move(set)](auto, auto) { return set(), Status(); };
  flags_.push_back({.names = std::move(names), .group = group_, .help = std::move(help), .set = call});
}

void FlagSet::refuse(Names names, std::string reason) {
  flags_.push_back({.names = std::move(names), .refusal = std::move(reason), .listed = false});
}

void FlagSet::ignore(Names names, Arity arity, Names values) {
  const auto remember = [this](auto name, auto) {
    if (std::ranges::find(ignored_, name) == ignored_.end()) ignored_.emplace_back(name);
    return Status();
  };
  flags_.push_back({.names = std::move(names), .arity = arity, .values = std::move(values), .set = remember, .listed = false});
}

void FlagSet::positional(std::string_view name, bool required, std::string help, std::optional<std::string>& target) {
  positionals_.push_back({name, required, std::move(help), &target});
}

const FlagSet::Flag* FlagSet::find(std::string_view name) const {
  const auto is = [name](
                      std::string_view n) { return n.ends_with('*') ? name.starts_with(n.substr(0, n.size() - 1)) : n == name; };
  for (const Flag& flag : flags_)
    if (std::ranges::any_of(flag.names, is)) return &flag;
  return nullptr;
}

Result<size_t> FlagSet::take(std::span<const std::string> arguments, size_t at) {
  const std::string_view argument = arguments[at];
  // "--flag=value" only with two dashes: "-p=x" would be a prompt that begins with "=" for half of all programs.
  const size_t equals = argument.starts_with("--") ? argument.find('=') : argument.npos;
  const std::string_view name = argument.substr(0, equals);
  if (name == "-h" || name == "--help") {
    help_wanted_ = true;
    return size_t(1);
  }
  if (name == "--flag-names") {
    help_wanted_ = names_wanted_ = true;
    return size_t(1);
  }
  const Flag* flag = find(name);
  if (!flag) {
    const auto known = known_names();
    return usage_error("unknown flag {}{}", excerpt(name), did_you_mean(name, known));
  }
  if (!flag->refusal.empty()) return usage_error("{}: {}", name, flag->refusal);
  const bool attached = equals != argument.npos, more = at + 1 < arguments.size();
  std::string_view text;
  size_t taken = 1;
  if (attached) {
    if (flag->arity == Arity::None)
      return usage_error("{} takes no value, but got {}", name, excerpt(argument.substr(equals + 1)));
    text = argument.substr(equals + 1);
  } else if (flag->arity == Arity::One) {
    if (!more)
      return usage_error(
          "{} needs a value{}", name, flag->value_name.empty() ? "" : fmt::format(": {} {}", name, flag->value_name));
    text = arguments[at + 1], taken = 2;
  } else if (flag->arity == Arity::Optional && more) {
    const std::string& next = arguments[at + 1];
    const auto& values = flag->values;
    if (values.empty() ? !looks_like_flag(next) : std::ranges::find(values, next) != values.end()) text = next, taken = 2;
  }
  HUNCH_OK(flag->set(name, text));
  return taken;
}

// vLLM's dotted form of flags that take JSON: "--speculative-config.method ngram" is one key of it. They become one value, behind
// the rest.
std::vector<std::string> FlagSet::without_dots(std::span<const std::string> arguments) const {
  std::vector<std::string> out;
  std::map<std::string, nlohmann::ordered_json> whole;
  for (size_t at = 0; at < arguments.size(); ++at) {
    const std::string& argument = arguments[at];
    if (argument == "--") return {arguments.begin(), arguments.end()};
    const size_t equals = std::min(argument.find('='), argument.size()), dot = argument.find('.');
    const std::string_view name = std::string_view(argument).substr(0, std::min(dot, argument.size()));
    const bool dotted = dot < equals && (name.ends_with("-config") || name.ends_with("-kwargs")) && arity(name) == Arity::One;
    if (!dotted || (equals == argument.size() && at + 1 == arguments.size())) {
      out.push_back(argument);
      continue;
    }
    const std::string text = equals < argument.size() ? argument.substr(equals + 1) : arguments[++at];
    const auto value = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
    whole[argument.substr(0, dot)][argument.substr(dot + 1, equals - dot - 1)] =
        value.is_discarded() ? nlohmann::ordered_json(text) : value;
  }
  for (const auto& [name, value] : whole) {
    out.push_back(name);
    out.push_back(value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  }
  return out;
}

Status FlagSet::parse(std::span<const std::string> given) {
  const std::vector<std::string> arguments = without_dots(given);
  size_t next_positional = 0;
  bool flags_ended = false;
  for (size_t at = 0; at < arguments.size();) {
    const std::string& argument = arguments[at];
    if (!flags_ended && argument == "--") {
      flags_ended = true, ++at;
      continue;
    }
    if (!flags_ended && looks_like_flag(argument)) {
      HUNCH_TRY(const size_t taken, take(arguments, at));
      at += taken;
      continue;
    }
    if (next_positional == positionals_.size())
      return usage_error("what is {} for? {}", excerpt(argument),
          find("--prompt") ? "A text to continue goes behind -p, a file behind -f" : usage_);
    *positionals_[next_positional++].target = argument;
    ++at;
  }
  if (help_wanted_) return {};  // somebody who asks for help need not name the model first
  for (size_t i = next_positional; i < positionals_.size(); ++i)
    if (positionals_[i].required) return usage_error("{} is missing; usage: {}", positionals_[i].name, usage_);
  for (const auto& check : checks_) HUNCH_OK(check());
  return {};
}

std::optional<FlagSet::Arity> FlagSet::arity(std::string_view name) const {
  const Flag* flag = find(name);
  return flag ? std::optional(flag->arity) : std::nullopt;
}

std::vector<std::string_view> FlagSet::known_names() const {
  std::vector<std::string_view> names{"--help"};
  for (const Flag& flag : flags_)
    if (flag.listed) names.insert(names.end(), flag.names.begin(), flag.names.end());
  return names;
}

std::string FlagSet::help() const {
  if (names_wanted_) return fmt::format("{}\n", fmt::join(known_names(), "\n"));
  auto out = fmt::format("usage: {}\n\n{}\n", usage_, wrapped(about_, kColumns, 0));
  auto entry = [&](const std::string& left, const std::string& help) {
    out += "  " + left;
    if (left.size() + 4 > kHelpColumn) {
      out += "\n" + std::string(kHelpColumn, ' ');  // too wide for its column: the text goes below
    } else {
      out += std::string(kHelpColumn - 2 - left.size(), ' ');
    }
    out += wrapped(help, kColumns - kHelpColumn, kHelpColumn) + "\n";
  };
  if (!positionals_.empty()) {
    out += "\nArguments\n";
    for (const Positional& p : positionals_) entry(std::string(p.name), p.help);
  }
  // Groups in the order in which they first occur, whatever was added between.
  std::vector<std::string> groups;
  for (const Flag& flag : flags_)
    if (flag.listed && std::ranges::find(groups, flag.group) == groups.end()) groups.push_back(flag.group);
  for (const std::string& group : groups) {
    out += "\n" + group + "\n";
    for (const Flag& flag : flags_)
      if (flag.listed && flag.group == group) entry(flag.listed_names(), flag.help);
  }
  return out;
}

std::string wrapped(std::string_view text, size_t width, size_t indent) {
  std::string out;
  size_t column = 0;
  while (!text.empty()) {
    const size_t space = text.find(' ');
    const std::string_view word = text.substr(0, space);
    if (column > 0 && column + 1 + word.size() > width) {
      out += '\n';
      out.append(indent, ' ');
      column = 0;
    } else if (column > 0) {
      out += ' ', ++column;
    }
    out += word, column += word.size();
    text = space == text.npos ? std::string_view() : text.substr(space + 1);
  }
  return out;
}

}
