// The work of hunch batch: lines in, requests through the engine, many at once, answers out. Called by batch.cpp.
#pragma once

#include <list>

#include "api/batch_answer.h"
#include "api/chat_prompts.h"
#include "base/clock.h"
#include "cli/batch_files.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"

namespace hunch {

struct BatchCounts {
  int64_t answered = 0, failed = 0, skipped = 0;  // by this run; lines that OUT had
};

class BatchRun {
 public:
  // `defaults`: what a line does not say. `max_in_flight`: requests submitted and not answered.
  BatchRun(Engine& engine, BatchInput& input, BatchOutput& output, const Request& defaults, ChatPrompts chat, int max_in_flight);

  // Until the input ends, the output breaks (output.status() says how) or somebody interrupts; what is not answered then is
  // dropped.
  void run(const InterruptScope& interrupts, ProgressLine& progress);
  const BatchCounts& counts() const { return counts_; }

 private:
  struct Job {
    BatchLine line;
    int64_t number = 0, end = 0;
    Clock::time_point start;
    std::vector<std::unique_ptr<TokenStream>> streams;  // null: over
    std::vector<BatchSample> samples;
    std::optional<Error> error;
  };

  bool take(BatchInput::Line&& line);
  bool start(Job&& job, Request& request);
  bool collect(Job& job, double patience_ms);
  bool write(const Job& job);
  bool refuse(const BatchLine& line, std::string_view id, const Error& error, int64_t number);

  Engine& engine_;
  BatchInput& input_;
  BatchOutput& output_;
  const Request& defaults_;
  int max_in_flight_;
  ChatPrompts chat_;
  const Tokenizer* tokenizer_;  // null: the model has none
  std::set<std::string> seen_;
  std::list<Job> jobs_;
  int in_flight_ = 0;
  int64_t done_bytes_ = 0;
  BatchCounts counts_;
};

}
