// Files of prompts for hunch bench accept and hunch bench batch: a JSON object a line with `text`, and optionally `kind`,
// `context` (a length class, say 28672) and `id`.
#pragma once

#include "text/tokenizer.h"

namespace hunch {

struct BenchPrompt {
  std::string kind;
  int64_t context = 0;
  std::vector<int32_t> ids;
};

// Those of these contexts; all, if none is given. Errors: what cannot be read, and no prompt left.
Result<std::vector<BenchPrompt>> read_prompts(const Tokenizer&, const std::string& path, const std::vector<int64_t>& contexts);

// One of each kind in turn, in the file's order, `most` of them (0: all); then all are cut to the shortest, at most `room`
// tokens, keeping the end: what is compared has one length.
std::vector<BenchPrompt> dealt(std::vector<BenchPrompt> prompts, int64_t most, int64_t room);

}
