// A tree of guesses as vLLM writes it (speculative_token_tree): one tuple of ranks for each node, "[(0,), (1,), (0, 0)]". Node
// (0, 2) is the third likeliest token behind the likeliest one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace hunch {

using TokenTree = std::vector<std::vector<int>>;  // parents before children, siblings by rank

// Round and square brackets both count, so that JSON's lists are taken too. `name` stands in messages. Errors: where the text
// breaks; more than 64 nodes, ranks above 63, a node twice, a node without its parent.
Result<TokenTree> parse_token_tree(std::string_view name, std::string_view text);

std::string token_tree_text(const TokenTree& tree);  // "[(0,), (0, 1)]"

}  // namespace hunch
