// What every generating subcommand does: load with progress, stream tokens as text, report. Used by run, chat, audit, demo,
// bench.
#pragma once

#include "cli/terminal.h"
#include "text/detokenizer.h"

namespace hunch {

// Engine::load, and what its user should know. Clears `progress`.
Result<std::unique_ptr<Engine>> load_engine(const EngineOptions&, ProgressLine* progress = nullptr);
// The same with a line of progress, which must outlive the engine.
Result<std::unique_ptr<Engine>> load_engine(EngineOptions options, ProgressLine& progress);

// Bytes of one token in the KV cache of this engine.
double kv_bytes_per_entry(Engine& engine);

// Turns token events into text: collects it, and where asked writes it to stdout as it comes, accepted guesses in green.
class TokenPrinter {
 public:
  TokenPrinter(const Tokenizer& tokenizer, bool stream, Paint paint) : detokenizer_(tokenizer), stream_(stream), paint_(paint) {}

  bool take(const TokenEvent& event);  // for OnToken: false once stdout is gone
  void finish();                       // what was held back; colour off
  const std::string& text() const { return text_; }
  bool output_lost() const { return lost_; }

 private:
  void print(const std::string& piece, bool guessed);

  Detokenizer detokenizer_;
  bool stream_, green_ = false, lost_ = false;
  Paint paint_;
  std::string text_;
};

// What every request of serve or batch has, before the first: a plan and a constraint that can be had.
Status check_defaults(EngineParts& parts, const Request& request);

}
