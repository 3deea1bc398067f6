// What can be said of a grammar as xgrammar prints it: whether it has any output at all (one whose rules only lead to each other,
// as of a schema that requires itself, accepts token after token and never comes to an end), and whether strings stay strings.
#pragma once

#include <string_view>

namespace hunch {

// `rules`: a rule a line, `name ::= (("a" other) | ([b-z]* third{0, 3}))`, the first of which is the start; what stands behind a
// body (a look-ahead) does not matter. What it cannot read counts as having an output.
bool has_output(std::string_view rules);

// `rules`: of the schema of one string with a pattern. Whether its text may have a raw quotation mark or backslash, which would
// end the string for a reader of JSON, or a control character where nothing else may stand.
bool leaves_string(std::string_view rules);

}
