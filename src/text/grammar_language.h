// Whether a grammar has any output at all. One whose rules only lead to each other (a schema that requires itself) accepts token
// after token and never comes to an end.
#pragma once

#include <string_view>

namespace hunch {

// `rules`: a rule a line, `name ::= (("a" other) | ([b-z]* third{0, 3}))`, the first of which is the start; what stands behind a
// body (a look-ahead) does not matter. What it cannot read counts as having an output.
bool has_output(std::string_view rules);

}  // namespace hunch
