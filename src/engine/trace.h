// Trace: what an engine did when, in Chrome's trace event format (chrome://tracing, ui.perfetto.dev): a lane of the engine's
// drafting, passes and selection, and one of every request's waiting, prompt chunks and rounds. Written by Service, one event a
// line as it happens: a killed program leaves a readable file.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string_view>

#include "base/clock.h"
#include "base/result.h"

namespace hunch {

class Trace {
 public:
  // Errors: the file cannot be written. It is replaced.
  static Result<std::unique_ptr<Trace>> open(const std::string& path);
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  // Names a lane; lane 0 is the engine's. Texts must need no escaping: they are this program's own words.
  void lane(int64_t lane, std::string_view name);
  // Something that took from `start` for so long. `args`: the inside of a JSON object, such as "\"drafted\":3"; may be empty.
  void span(int64_t lane, std::string_view name, Clock::time_point start, double ms, std::string_view args);

 private:
  explicit Trace(std::FILE* file);
  void write(std::string_view line);

  std::FILE* file_;  // null: a write failed, nothing more is written
  Clock::time_point origin_ = Clock::now();
};

}
