// What is checked of an output's structure before it is compiled: sizes, depth, references, constructs that could not be kept to
// the letter. A hostile schema costs a scan of its bytes, and nothing is silently left out.
#pragma once

#include <set>

#include "base/result.h"
#include "hunch/hunch.h"

namespace hunch {

inline constexpr size_t kMaxGrammarBytes = 256 << 10;  // of a schema, expression or grammar
inline constexpr int kMaxSchemaDepth = 64;             // nested values
inline constexpr int64_t kMaxSchemaValues = 20000;     // JSON values in a schema
inline constexpr int64_t kMaxEnumValues = 4096;        // all enums of a schema together
inline constexpr int64_t kMaxRepetitions = 10000;      // product of nested counted repetitions; lengths and item counts
inline constexpr size_t kMaxChoices = 4096;

// Errors are usage errors that name the kind, the place and what is allowed. `patterns` gets the expressions that a schema asks
// of its strings and names.
Status check_structured(const StructuredOutput&, std::set<std::string>* patterns = nullptr);

// A checked schema with words for what its lists and objects may hold where it has none; the automaton wants them.
std::string open_schema(const std::string& text);

// Counted repetitions of a regular expression or a grammar, nested ones multiplied: {1,999} around {1,999} is a million copies.
Status check_repetitions(std::string_view what, std::string_view pattern);

}
