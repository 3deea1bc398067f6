// The work of hunch batch: lines in, requests through the engine, many at once, answers out. Called by batch.cpp.
#pragma once

#include <chrono>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "api/batch_answer.h"
#include "api/batch_line.h"
#include "base/result.h"
#include "cli/batch_files.h"
#include "cli/chat_form.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"
#include "hunch/hunch.h"

namespace hunch {

// A parsed line to a request that the engine can take: tokens of prompt and bad words, stop ids of the chat form, speculation.
class BatchPreparer {
 public:
  BatchPreparer(Engine& engine, const ChatTemplateFlags& chat_template);
  Status prepare(BatchLine& line);
  const Tokenizer* tokenizer() const { return tokenizer_; }

 private:
  Engine& engine_;
  const Tokenizer* tokenizer_;  // null: the model has none
  const ChatTemplateFlags& chat_template_;
  std::optional<ChatForm> chat_;  // made for the first line that needs it
};

struct BatchCounts {
  int64_t answered = 0, failed = 0, skipped = 0;  // by this run; lines that OUT had
};

class BatchRun {
 public:
  // `defaults`: what a line does not say. `max_in_flight`: requests submitted and not answered.
  BatchRun(Engine& engine, BatchInput& input, BatchOutput& output, const Request& defaults,
           const ChatTemplateFlags& chat_template, int max_in_flight)
      : engine_(engine),
        input_(input),
        output_(output),
        defaults_(defaults),
        max_in_flight_(max_in_flight),
        preparer_(engine, chat_template) {}

  // Until the input ends, the output breaks (output.status() says how) or somebody interrupts; what is not answered then is
  // dropped.
  void run(const InterruptScope& interrupts, ProgressLine& progress);
  const BatchCounts& counts() const { return counts_; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Job {
    BatchLine line;
    int64_t number = 0, end = 0;
    Clock::time_point start;
    std::vector<std::unique_ptr<TokenStream>> streams;  // null: over
    std::vector<BatchSample> samples;
    std::optional<Error> error;
  };

  bool take(BatchInput::Line&& line);
  bool start(Job&& job);
  bool collect(Job& job, double patience_ms);
  bool write(const Job& job);
  bool refuse(const BatchLine& line, std::string_view id, const Error& error, int64_t number);

  Engine& engine_;
  BatchInput& input_;
  BatchOutput& output_;
  const Request& defaults_;
  int max_in_flight_;
  BatchPreparer preparer_;
  std::set<std::string> seen_;
  std::list<Job> jobs_;
  int in_flight_ = 0;
  int64_t done_bytes_ = 0;
  BatchCounts counts_;
};

}  // namespace hunch
