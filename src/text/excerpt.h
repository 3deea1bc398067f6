// Quoting foreign text in error messages: bounded, on one line, valid UTF-8.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hunch {

// "text" in double quotes: at most `characters` of it, then "..."; control characters and broken UTF-8 as \n, \t or \xNN.
std::string excerpt(std::string_view text, size_t characters = 60);

}
