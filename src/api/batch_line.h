// One line of a batch file: a request in the words of OpenAI's and vLLM's APIs, bare or in OpenAI's envelope. Called by
// batch_run.cpp and by the fuzz target.
#pragma once

#include "api/body.h"
#include "base/result.h"

namespace hunch {

// A line that is longer is not read: a prompt of the longest text, escaped.
inline constexpr size_t kMaxBatchLineBytes = size_t(64) << 20;

struct BatchLine {
  std::string id;        // as JSON, "\"a\"" or "7"; empty: the line has none that could be read
  bool wrapped = false;  // OpenAI's batch form: "custom_id" and "body"; the answer is wrapped likewise
  Body body;             // its model is not looked at
};

// Reads `json` on top of what `out.body` holds: absent keys keep it. On error out.id and out.wrapped still hold what there was
// to read. Errors are usage errors that name the key, and for unknown ones the nearest known.
Status parse_batch_line(std::string_view json, BatchLine& out);

}
