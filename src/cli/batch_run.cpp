#include "cli/batch_run.h"

#include "api/prepare.h"
#include "engine/parts.h"

namespace hunch {

BatchRun::BatchRun(
    Engine& engine, BatchInput& input, BatchOutput& output, const Request& defaults, ChatPrompts chat, int max_in_flight)
    : engine_(engine),
      input_(input),
      output_(output),
      defaults_(defaults),
      max_in_flight_(max_in_flight),
      chat_(std::move(chat)),
      tokenizer_(engine.parts().tokenizer ? &*engine.parts().tokenizer : nullptr) {}

bool BatchRun::refuse(const BatchLine& line, std::string_view id, const Error& error, int64_t number) {
  if (!output_.write(batch_error(line, id, error, number))) return false;
  ++counts_.failed;
  return true;
}

// Reads a line and starts its requests, or answers why not. False: the output is gone.
bool BatchRun::take(BatchInput::Line&& text) {
  Job job;
  job.number = text.number, job.end = text.end;
  job.line.body.request = defaults_;
  Status status = text.too_long ? Status(usage_error("the line is longer than {} MiB", kMaxBatchLineBytes >> 20))
                                : parse_batch_line(text.text, job.line);
  const std::string& id = job.line.id;
  // What stands under the id of another line, or under none, is known by the number of its line.
  const bool repeated = !id.empty() && !seen_.insert(id).second;
  if (repeated || id.empty()) {
    if (output_.answered_lines().contains(text.number)) return ++counts_.skipped, true;
    if (repeated) status = usage_error("the id {} stands in an earlier line too: ids must be unique", id);
    return refuse(job.line, "", status.error(), text.number);
  }
  if (output_.answered_ids().contains(id)) return ++counts_.skipped, true;
  if (!status.ok()) return refuse(job.line, id, status.error(), text.number);
  BodyFault fault;
  auto prepared = prepare_body(job.line.body, engine_, chat_, fault);
  if (!prepared.ok()) return refuse(job.line, id, prepared.error(), text.number);
  if (job.line.body.echo) job.line.body.prompts[0].ids = prepared->prompts[0];
  prepared->request.prompt = std::move(prepared->prompts[0]);
  return start(std::move(job), prepared->request);
}

bool BatchRun::start(Job&& job, Request& request) {
  job.start = Clock::now();
  for (int i = 0; i < job.line.body.samples; ++i) {
    request.sample_index = uint32_t(i);
    auto stream = engine_.submit(request);
    if (!stream.ok()) return refuse(job.line, job.line.id, stream.error(), job.number);
    job.streams.push_back(std::move(*stream));
  }
  job.samples.resize(job.streams.size());
  in_flight_ += int(job.streams.size());
  jobs_.push_back(std::move(job));
  return true;
}

// Takes the tokens that are there. True: every sample is over.
bool BatchRun::collect(Job& job, double patience_ms) {
  bool over = true;
  for (size_t i = 0; i < job.streams.size(); ++i) {
    auto& stream = job.streams[i];
    if (!stream) continue;
    while (stream->next_within(patience_ms)) {
      double& first = job.samples[i].first_token_ms;
      if (first < 0) first = ms_since(job.start);
      patience_ms = 0;
    }
    patience_ms = 0;
    if (!stream->finished()) {
      over = false;
      continue;
    }
    auto outcome = stream->result();
    if (outcome.ok()) job.samples[i].generation = std::move(*outcome);
    else job.error = outcome.error();
    stream.reset();
    --in_flight_;
  }
  return over;
}

bool BatchRun::write(const Job& job) {
  if (job.error) return refuse(job.line, job.line.id, *job.error, job.number);
  if (!output_.write(batch_answer(job.line, job.samples, engine_.model_name(), tokenizer_))) return false;
  ++counts_.answered;
  return true;
}

void BatchRun::run(const InterruptScope& interrupts, ProgressLine& progress) {
  bool output_there = true;
  while (output_there && !interrupts.stopped()) {
    bool moved = false;
    while (output_there && in_flight_ < max_in_flight_ && !interrupts.stopped()) {
      auto line = input_.next();
      if (!line) break;
      done_bytes_ = line->end;
      output_there = take(std::move(*line));
      moved = true;
    }
    if (jobs_.empty() && !moved) {
      if (input_.ended()) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    // Waiting at the oldest: its tokens come with everybody else's.
    double patience_ms = 10;
    for (auto job = jobs_.begin(); output_there && job != jobs_.end();) {
      const bool over = collect(*job, patience_ms);
      patience_ms = 0;
      if (over) {
        output_there = write(*job);
        job = jobs_.erase(job);
      } else {
        ++job;
      }
    }
    int64_t open_bytes = 0;  // of the file: lines that were read and are not answered
    for (const Job& job : jobs_) open_bytes = std::max(open_bytes, done_bytes_ - job.end + 1);
    const auto answers = fmt::format("{} done", counts_.answered + counts_.failed + counts_.skipped);
    if (input_.bytes() > 0) progress.show(answers, std::min(done_bytes_ - open_bytes, input_.bytes() - 1), input_.bytes());
  }
  jobs_.clear();  // cancels what was not answered
  progress.clear();
}

}
