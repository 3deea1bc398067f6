// The known word nearest to a mistyped one, for "did you mean" in every usage error of the command line.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace hunch {

// Letters to insert, delete, replace or swap with their neighbour to turn `a` into `b` (optimal string alignment).
int edit_distance(std::string_view a, std::string_view b);

// The nearest of `known`, the first among equals; empty where none is near enough to be what was meant.
std::string_view nearest_word(std::string_view word, std::span<const std::string_view> known);

// " (did you mean WORD?)", or nothing.
std::string did_you_mean(std::string_view word, std::span<const std::string_view> known);

}
