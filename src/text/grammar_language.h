// Of a grammar as xgrammar prints it: whether it has any output (where rules only lead to each other, as of a schema that
// requires itself, tokens are accepted without an end), and whether strings stay strings.
#pragma once

#include <string_view>

namespace hunch {

// `rules`: a rule a line, `name ::= (("a" other) | ([b-z]* third{0, 3}))`, the first of which is the start; what stands behind a
// body (a look-ahead) does not matter. What it cannot read counts as having an output.
bool has_output(std::string_view rules);

// `rules`: of the schema of one string with a pattern. Whether its text may have a raw quotation mark or backslash, which would
// end the string, or a control character where nothing else may stand.
bool leaves_string(std::string_view rules);

}
