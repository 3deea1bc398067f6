// A finished generation as people and as programs read it: the statistics block of --stats and the object of --json.
#pragma once

#include <nlohmann/json.hpp>

#include "api/json_text.h"
#include "cli/terminal.h"
#include "hunch/hunch.h"

namespace hunch {

struct Report {
  const Generation& generation;
  std::string text;  // of the continuation
  std::string model;
  double kv_bytes_per_entry = 0;  // of one token in the KV cache; 0: unknown

  // KV bytes that plain decoding reads per token of this run: the context, on average over the continuation.
  double plain_kv_bytes_per_token() const;
};

nlohmann::ordered_json report_json(const Report& report);

// At most 80 columns. Ends with the line that llama.cpp's users grep for where the run speculated.
std::string report_text(const Report& report, const Paint& paint);

// Acceptance by position as a small picture, one line a position, indented by two.
std::string acceptance_picture(const std::vector<double>& acceptance, const Paint& paint);

// "12.3 MB"
std::string bytes_text(double bytes);
// "lossless: yes, the same stream as plain decoding" and so on.
std::string lossless_text(const Generation& generation);

}
