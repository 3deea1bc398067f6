// Grammars and expressions as people write them, for xgrammar, which reads them otherwise.
#pragma once

#include <string>
#include <string_view>

namespace hunch {

// llama.cpp's GBNF without what EBNF lacks: `.` for any character, {,n}, "\[", alternatives with nothing in them.
std::string plain_ebnf(std::string_view gbnf);
// With every `.` for any character but a line's end, as it is in Python.
std::string plain_regex(std::string_view regex);

}
