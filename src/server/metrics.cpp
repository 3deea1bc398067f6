#include "server/metrics.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <tuple>

namespace hunch {
namespace {

// vLLM's buckets.
constexpr double kFirstToken[] = {
    .001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560};
constexpr double kInterToken[] = {.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
constexpr double kRequest[] = {.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
constexpr double kTokens[] = {
    1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};
constexpr double kChoices[] = {1, 2, 5, 10, 20};
constexpr double kStepTokens[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};  // EngineStats
static_assert(std::size(kStepTokens) + 1 == std::tuple_size_v<decltype(EngineStats::steps_by_tokens)>);

std::string whole(double value) { return fmt::format("{:.0f}", value); }

// What Prometheus' naming says of a family that is no histogram.
std::string_view type_of(std::string_view name) { return name.ends_with("_total") ? "counter" : "gauge"; }

int64_t resident_bytes() {
  int64_t size = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> size >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

int64_t open_descriptors() {
  std::error_code error;
  int64_t count = 0;
  for (std::filesystem::directory_iterator at("/proc/self/fd", error), end; !error && at != end; at.increment(error)) ++count;
  return count;
}

}

Metrics::Model::Model(std::string name)
    : name(std::move(name)),
      first_token(kFirstToken),
      inter_token(kInterToken),
      total(kRequest),
      queued(kRequest),
      prefill(kRequest),
      decode(kRequest),
      inference(kRequest),
      prompt(kTokens),
      generation(kTokens),
      choices(kChoices),
      max_tokens(kTokens) {
  for (const char* reason : {"stop", "length", "abort", "error"}) by_reason[reason] = 0;
}

Metrics::Metrics(std::vector<std::string> models) {
  for (std::string& name : models) models_.emplace_back(std::move(name));
}

void Metrics::asked(size_t model, int choices, int64_t max_tokens) {
  models_[model].choices.observe(choices);
  if (max_tokens > 0) models_[model].max_tokens.observe(max_tokens);
}

void Metrics::unknown_fields(size_t model, int fields) { models_[model].unknown += fields; }

void Metrics::tokens_came(size_t model, int64_t tokens, double seconds_since_last) {
  // Tokens of one round come together; the mean of their time is what a reader sees.
  if (tokens > 0) models_[model].inter_token.observe(seconds_since_last / tokens, tokens);
}

void Metrics::finished(size_t model, const FinishedChoice& choice) {
  Model& m = models_[model];
  ++m.by_reason[std::string(choice.reason)];
  m.total.observe(choice.total_seconds);
  if (choice.first_token_seconds >= 0) m.first_token.observe(choice.first_token_seconds);
  if (!choice.generation) {
    ++m.failed;
    return;
  }
  const Generation& g = *choice.generation;
  const Timings& ms = g.milliseconds;
  m.queued.observe(ms.queued / 1e3);
  m.longest_queue = std::max(m.longest_queue, ms.queued / 1e3);
  m.prefill.observe(ms.prefill / 1e3);
  m.decode.observe(ms.first_to_last_token / 1e3);
  m.inference.observe((ms.prefill + ms.first_to_last_token) / 1e3);
  m.prompt.observe(g.prompt_tokens);
  m.generation.observe(g.tokens.size());
  m.prompt_tokens += g.prompt_tokens, m.cached_tokens += g.reused_tokens, m.generated_tokens += std::ssize(g.tokens);
  m.prefill_ms += ms.prefill, m.draft_ms += ms.draft, m.verify_ms += ms.verify, m.select_ms += ms.select;
  m.kv_bytes += g.kv_bytes_read;
  m.lossy += !g.lossless;
  Drafter& drafter = m.by_drafter[g.proposer.empty() ? "none" : g.proposer];
  ++drafter.requests, drafter.rounds += g.rounds, drafter.drafted += g.drafted, drafter.accepted += g.accepted;
}

void Metrics::interval_over(size_t model, const EngineStats& now) {
  Model& m = models_[model];
  const int64_t rounds = now.rounds - m.then.rounds, drafted = now.drafted - m.then.drafted;
  const int64_t accepted = now.accepted - m.then.accepted;
  m.accept_length = rounds > 0 ? 1 + double(accepted) / rounds : 0;
  m.accept_rate = drafted > 0 ? double(accepted) / drafted : 0;
  m.drafts_a_round = rounds > 0 ? double(drafted) / rounds : 0;
  m.then = now;
}

void Metrics::refused(std::string_view reason) {
  const auto found = refusals_.find(reason);
  if (found != refusals_.end()) ++found->second;
  else refusals_.emplace(reason, 1);
}

void Metrics::answered(int status) { ++by_status_[status]; }

std::string Metrics::text(const std::vector<EngineNow>& engines, const ServerNow& server) const {
  Exposition out;
  write_engine(out, engines);
  write_requests(out);
  write_speculation(out, engines);
  write_server(out, server);
  return out.take();
}

void Metrics::write_engine(Exposition& out, const std::vector<EngineNow>& engines) const {
  const auto each = [&](std::string_view name, std::string_view help, auto value) {
    out.family(name, type_of(name), help);
    for (size_t i = 0; i < models_.size(); ++i) {
      const auto number = [&](const EngineNow& e) {
        if constexpr (std::is_member_pointer_v<decltype(value)>) return double(e.stats.*value);
        else return double(value(e));
      };
      out.value({{"model_name", models_[i].name}, {"engine", "0"}}, number(engines[i]));
    }
  };
  each("vllm:num_requests_running", "Requests that have a seat.", &EngineStats::running);
  each("vllm:num_requests_waiting", "Requests that wait for a seat.", &EngineStats::waiting);
  each("vllm:kv_cache_usage_perc", "Share of KV pages in use by requests (1: all).", [](auto& e) {
    const EngineStats& s = e.stats;
    return s.kv_pages_total ? double(s.kv_pages_used) / s.kv_pages_total : 0.0;
  });
  each("vllm:prefix_cache_queries_total", "Prompt tokens looked up.", &EngineStats::prefix_tokens_asked);
  each("vllm:prefix_cache_hits_total", "Prompt tokens found.", &EngineStats::prefix_tokens_hit);
  each("vllm:num_preemptions_total", "Requests that lost their pages for a while.", &EngineStats::preemptions);
  each("vllm:corrupted_requests_total", "Requests that ended because no valid logits came.", &EngineStats::corrupted);
  out.family("vllm:iteration_tokens_total", "histogram", "Tokens of a step: of prompts read, and written.");
  for (size_t i = 0; i < models_.size(); ++i)
    out.histogram({{"model_name", models_[i].name}, {"engine", "0"}},
        Histogram(kStepTokens, engines[i].stats.steps_by_tokens, double(engines[i].stats.step_tokens)));
  each("llamacpp:requests_processing", "Requests that have a seat.", &EngineStats::running);
  each("llamacpp:requests_deferred", "Requests that wait for a seat.", &EngineStats::waiting);
  each("llamacpp:n_decode_total", "Passes of the model.", &EngineStats::passes);
  each("hunch:kv_pages_used", "KV pages held by requests.", &EngineStats::kv_pages_used);
  each("hunch:kv_pages_cached", "KV pages held by the prefix cache alone.", &EngineStats::kv_pages_cached);
  each("hunch:requests_cancelled_total", "Requests whose client left or was cut off.", &EngineStats::requests_aborted);
  each("hunch:selectable_entries_total", "KV entries that drafts could choose from, over layers.", &EngineStats::entries_offered);
  each("hunch:selected_entries_total", "Those they read.", &EngineStats::entries_selected);
  each("hunch:drafts_dropped_total", "Guesses not tried for want of rows or pages.", &EngineStats::drafts_dropped);
  each("hunch:experts_read_total", "Distinct experts read, of every layer and pass; 0: the model has none.",
      &EngineStats::experts_read);
  each("hunch:compared_tokens_total", "Tokens of passes without a prompt's rows.", &EngineStats::compared_tokens);
  each("hunch:compared_seconds_total", "What they took.", [](auto& e) { return e.stats.compared_ms / 1e3; });
  each("hunch:plain_seconds_total", "What plain decoding would have taken for them.",
      [](auto& e) { return e.stats.compared_plain_ms / 1e3; });
  each("hunch:lossless", "1: answers are those of the model alone, unless a request asks for less.",
      [](auto& e) { return int(e.lossless); });
  out.family("vllm:cache_config_info", "gauge", "The KV cache, as labels.");
  for (size_t i = 0; i < models_.size(); ++i)
    out.value({{"model_name", models_[i].name}, {"engine", "0"}, {"block_size", whole(engines[i].page_entries)},
                  {"num_gpu_blocks", whole(engines[i].stats.kv_pages_total)}},
        1);
}

void Metrics::write_requests(Exposition& out) const {
  const auto each = [&](std::string_view name, std::string_view help, auto member) {
    constexpr bool kHistogram = std::is_same_v<decltype(member), Histogram Model::*>;
    out.family(name, kHistogram ? "histogram" : type_of(name), help);
    for (const Model& m : models_) {
      if constexpr (kHistogram) out.histogram({{"model_name", m.name}, {"engine", "0"}}, m.*member);
      else out.value({{"model_name", m.name}, {"engine", "0"}}, m.*member);
    }
  };
  out.family("vllm:request_success_total", "counter", "Choices that ended, by reason.");
  for (const Model& m : models_)
    for (const auto& [reason, count] : m.by_reason)
      out.value({{"model_name", m.name}, {"engine", "0"}, {"finished_reason", reason}}, count);
  each("vllm:prompt_tokens_total", "Prompt tokens of requests that ended.", &Model::prompt_tokens);
  each("vllm:generation_tokens_total", "Tokens written by requests that ended.", &Model::generated_tokens);
  each("llamacpp:prompt_tokens_total", "Prompt tokens of requests that ended.", &Model::prompt_tokens);
  each("llamacpp:tokens_predicted_total", "Tokens written by requests that ended.", &Model::generated_tokens);
  each("hunch:cached_prompt_tokens_total", "Prompt tokens that were not computed again.", &Model::cached_tokens);
  each("hunch:lossy_choices_total", "Choices that ran with a setting that is not lossless.", &Model::lossy);
  each("hunch:failed_choices_total", "Choices that the engine could not finish.", &Model::failed);
  each("hunch:unknown_fields_total", "Fields of bodies that mean nothing here.", &Model::unknown);
  each("hunch:longest_queue_time_seconds", "The longest wait for a seat so far.", &Model::longest_queue);
  each("vllm:time_to_first_token_seconds", "From the request to its first token.", &Model::first_token);
  each("vllm:inter_token_latency_seconds", "Between tokens.", &Model::inter_token);
  each("vllm:time_per_output_token_seconds", "The older name of the same.", &Model::inter_token);
  each("vllm:e2e_request_latency_seconds", "From the request to its end.", &Model::total);
  each("vllm:request_queue_time_seconds", "Before the first pass.", &Model::queued);
  each("vllm:request_prefill_time_seconds", "Passes over the prompt.", &Model::prefill);
  each("vllm:request_decode_time_seconds", "From the first token to the last.", &Model::decode);
  each("vllm:request_inference_time_seconds", "Both.", &Model::inference);
  each("vllm:request_prompt_tokens", "Prompt tokens of a request.", &Model::prompt);
  each("vllm:request_generation_tokens", "Tokens that a request wrote.", &Model::generation);
  each("vllm:request_params_n", "Choices asked for.", &Model::choices);
  each("vllm:request_params_max_tokens", "Most tokens asked for.", &Model::max_tokens);
}

void Metrics::write_speculation(Exposition& out, const std::vector<EngineNow>& engines) const {
  for (const char* prefix : {"vllm:spec_decode_", "llamacpp:spec_decode_"}) {
    const auto total = [&](std::string_view name, std::string_view help, auto member) {
      out.family(fmt::format("{}{}", prefix, name), "counter", help);
      for (size_t i = 0; i < models_.size(); ++i)
        out.value({{"model_name", models_[i].name}, {"engine", "0"}}, double(engines[i].stats.*member));
    };
    total("num_drafts_total", "Rounds with guesses.", &EngineStats::rounds);
    total("num_draft_tokens_total", "Tokens guessed.", &EngineStats::drafted);
    total("num_accepted_tokens_total", "Guesses that were right.", &EngineStats::accepted);
    out.family(fmt::format("{}num_accepted_tokens_per_pos_total", prefix), "counter", "Guesses that were right, by position.");
    for (size_t model = 0; model < models_.size(); ++model)
      for (size_t i = 0; i < engines[model].stats.accepted_by_position.size(); ++i)
        out.value({{"model_name", models_[model].name}, {"engine", "0"}, {"position", whole(i)}},
            engines[model].stats.accepted_by_position[i]);
  }
  const auto of_interval = [&](std::string_view name, std::string_view help, auto member) {
    out.family(name, "gauge", help);
    for (const Model& m : models_) out.value({{"model_name", m.name}}, m.*member);
  };
  of_interval("sglang:spec_accept_length", "Tokens a round with guesses, over the last ten seconds.", &Model::accept_length);
  of_interval("sglang:spec_accept_rate", "Share of guesses that were right, over the last ten seconds.", &Model::accept_rate);
  of_interval("sglang:spec_num_draft_tokens", "Guesses a round, over the last ten seconds.", &Model::drafts_a_round);
  out.family("hunch:drafted_tokens_per_pos_total", "counter", "Tokens guessed, by position.");
  for (size_t model = 0; model < models_.size(); ++model)
    for (size_t i = 0; i < engines[model].stats.drafted_by_position.size(); ++i)
      out.value({{"model_name", models_[model].name}, {"position", whole(i)}}, engines[model].stats.drafted_by_position[i]);
  const auto by_drafter = [&](std::string_view name, std::string_view help, auto member) {
    out.family(name, "counter", help);
    for (const Model& m : models_)
      for (const auto& [drafter, counts] : m.by_drafter)
        out.value({{"model_name", m.name}, {"drafter", drafter}}, counts.*member);
  };
  by_drafter("hunch:choices_by_drafter_total", "Choices, by how they guessed.", &Drafter::requests);
  by_drafter("hunch:rounds_by_drafter_total", "Rounds with guesses.", &Drafter::rounds);
  by_drafter("hunch:drafted_tokens_by_drafter_total", "Tokens guessed.", &Drafter::drafted);
  by_drafter("hunch:accepted_tokens_by_drafter_total", "Guesses that were right.", &Drafter::accepted);
  out.family(
      "hunch:time_seconds_total", "counter", "Where the time of requests went; a pass that several share counts for each.");
  for (const Model& m : models_) {
    const std::pair<const char*, double> parts[] = {
        {"prefill", m.prefill_ms}, {"draft", m.draft_ms}, {"verify", m.verify_ms}, {"select", m.select_ms}};
    for (const auto& [part, ms] : parts) out.value({{"model_name", m.name}, {"part", part}}, ms / 1e3);
  }
  out.family("hunch:kv_bytes_read_total", "counter", "Keys, values, scores and selected copies read while decoding.");
  for (const Model& m : models_) out.value({{"model_name", m.name}}, m.kv_bytes);
}

void Metrics::write_server(Exposition& out, const ServerNow& server) const {
  out.family("vllm:admission_rejections_total", "counter", "Requests refused because too many waited.");
  const auto full = refusals_.find("queue_full");
  out.value({}, full == refusals_.end() ? 0 : full->second);
  out.family("hunch:refusals_total", "counter", "What was refused, by reason.");
  for (const auto& [reason, count] : refusals_) out.value({{"reason", reason}}, count);
  out.family("hunch:http_responses_total", "counter", "Answers by status; 499: the client left before.");
  for (const auto& [status, count] : by_status_) out.value({{"status", whole(status)}}, count);
  const auto one = [&](std::string_view name, std::string_view help, double value) {
    out.family(name, type_of(name), help);
    out.value({}, value);
  };
  one("hunch:connections", "Open connections.", server.connections);
  one("hunch:requests_being_read", "Requests whose body waits to be read.", server.reading);
  one("hunch:ready", "1: requests are taken.", server.ready);
  one("hunch:engine_stuck_seconds", "Time since the last sign of life of a busy engine.", server.stuck_seconds);
  one("hunch:log_lines_dropped_total", "Log lines that nobody took in time.", server.log_lines_dropped);
  one("process_resident_memory_bytes", "Resident memory.", resident_bytes());
  one("process_open_fds", "Open descriptors.", open_descriptors());
}

}
