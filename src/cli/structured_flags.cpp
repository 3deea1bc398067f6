// The flags that say what the output must look like: llama.cpp's spellings where it has them.
#include "cli/request_flags.h"
#include "text/grammar_check.h"

namespace hunch {
namespace {

using Kind = StructuredOutput::Kind;

// The last of a repeated flag wins, as elsewhere; but an output cannot look like two different things.
Status take(StructuredOutput& wanted, Kind kind, std::string_view flag, std::string text) {
  if (wanted.kind != Kind::None && wanted.kind != kind)
    return usage_error(
        "{}: the output's structure is given already; use one of --json-schema, --regex, --choice, --grammar", flag);
  wanted.kind = kind;
  if (kind == Kind::Choice) wanted.choices.push_back(std::move(text));
  else wanted.text = std::move(text);
  if (kind == Kind::Choice) return {};
  const Status checked = check_structured(wanted);
  return checked.ok() ? checked : usage_error("{}: {}", flag, checked.error().message);
}

}

void add_structured_flags(FlagSet& set, StructuredOutput& wanted) {
  const auto store = [&wanted](Kind kind, bool file) {
    return [&wanted, kind, file](auto flag, auto value) -> Status {
      std::string text(value);
      if (file) { HUNCH_TRY(text, read_text_file(text)); }
      return take(wanted, kind, flag, std::move(text));
    };
  };
  set.value({"-j", "--json-schema"}, "SCHEMA", "the output is JSON that fits this schema; '{}': any JSON",
      store(Kind::JsonSchema, false));
  set.value({"-jf", "--json-schema-file"}, "FILE", "the same, the schema in a file", store(Kind::JsonSchema, true));
  set.value({"--regex"}, "REGEX", "the whole output matches this expression", store(Kind::Regex, false));
  set.value({"--choice"}, "TEXT", "the output is this text, or one of several (once for each)", store(Kind::Choice, false));
  set.value({"--grammar"}, "EBNF", "the output follows this grammar, whose first rule is root", store(Kind::Grammar, false));
  set.value({"--grammar-file"}, "FILE", "the same, the grammar in a file", store(Kind::Grammar, true));
}

}
