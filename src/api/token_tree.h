// A tree of guesses as vLLM writes it (speculative_token_tree): one tuple of ranks for each node, "[(0,), (1,), (0, 0)]". Node
// (0, 2) is the third likeliest token behind the likeliest one.
#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"

namespace hunch {

// Round and square brackets both count, so that JSON's lists are taken too. `name` stands in messages. Errors: where the text
// breaks, more than 64 nodes, and what StaticTree::make finds wrong.
Result<std::vector<std::vector<int>>> parse_token_tree(std::string_view name, std::string_view text);

}
