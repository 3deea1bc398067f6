// One line of a batch file: a request in the words of OpenAI's and vLLM's APIs, read from JSON that nobody has checked. Called by
// batch_run.cpp and by the fuzz target.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "hunch/hunch.h"
#include "text/chat.h"

namespace hunch {

// A line that is longer is not read: a prompt of the longest text, escaped.
inline constexpr size_t kMaxBatchLineBytes = size_t(64) << 20;
inline constexpr int kMaxSamples = 128;

struct BatchLine {
  std::string id;        // as JSON, "\"a\"" or "7"; empty: the line has none that could be read
  bool wrapped = false;  // OpenAI's batch form: "custom_id" and "body"; the answer is wrapped likewise
  std::string model;     // what the line asks for; not looked at

  enum class Prompt : uint8_t { None, Text, Ids, Chat } prompt = Prompt::None;
  std::string text;
  std::vector<ChatTurn> turns;

  Request request;  // but its prompt (filled in for Ids), bad words and, where `speculation` says so, how it speculates
  int samples = 1;  // n
  bool echo = false;
  std::vector<std::string> bad_words;
  std::string speculation;  // the JSON of speculative_config; empty: none
};

// Reads `json` on top of what `out.request` holds: absent keys keep it. On error out.id and out.wrapped still hold what there was
// to read. Errors are usage errors that name the key, and for unknown ones the nearest known.
Status parse_batch_line(std::string_view json, BatchLine& out);

}  // namespace hunch
