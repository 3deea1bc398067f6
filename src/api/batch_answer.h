// Answers of hunch batch as JSON: what came of a line's samples, or why there is nothing.
#pragma once

#include "api/batch_line.h"
#include "base/result.h"
#include "hunch/hunch.h"
#include "text/tokenizer.h"

namespace hunch {

struct BatchSample {
  Generation generation;
  double first_token_ms = -1;  // since the line was submitted; -1: no token came
};

// One line without its end. `tokenizer` may be null: then there are ids and no texts.
std::string batch_answer(
    const BatchLine& line, const std::vector<BatchSample>& samples, std::string_view model, const Tokenizer* tokenizer);
// `id`: as JSON; empty: null, and the line number tells which line it was.
std::string batch_error(const BatchLine& line, std::string_view id, const Error& error, int64_t line_number);

}
