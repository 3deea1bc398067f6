// What every generating subcommand does: load with progress, stream tokens as text, report. Used by run, chat, audit, demo,
// bench.
#pragma once

#include "cli/terminal.h"

namespace hunch {

// Engine::load, and what its user should know. Clears `progress`.
Result<std::unique_ptr<Engine>> load_engine(const EngineOptions&, ProgressLine* progress = nullptr);
// The same with a line of progress, which must outlive the engine.
Result<std::unique_ptr<Engine>> load_engine(EngineOptions options, ProgressLine& progress);

// Bytes of one token in the KV cache of this engine.
double kv_bytes_per_entry(Engine& engine);

// Writes the text of token events to stdout as it comes, where asked, accepted guesses in green.
class TokenPrinter {
 public:
  TokenPrinter(bool stream, Paint paint) : stream_(stream), paint_(paint) {}

  bool take(const TokenEvent& event);   // for OnToken: false once stdout is gone
  void finish(std::string_view whole);  // of Generation::text what was held back; colour off
  bool output_lost() const { return lost_; }

 private:
  void print(std::string_view piece, bool guessed);

  bool stream_, green_ = false, lost_ = false;
  Paint paint_;
  size_t taken_ = 0;  // bytes
};

// What every request of serve or batch has, before the first: a plan and a constraint that can be had.
Status check_defaults(EngineParts& parts, const Request& request);

}
