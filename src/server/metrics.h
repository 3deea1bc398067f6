// Metrics: what /metrics tells, under vLLM's and llama.cpp's names, for which there are dashboards, and our own. Filled and
// printed on the loop's thread. Labels come from what was known at start, never from requests.
#pragma once

#include <map>

#include "hunch/hunch.h"
#include "server/exposition.h"

namespace hunch {

// One choice of a request, as it ended.
struct FinishedChoice {
  const Generation* generation = nullptr;  // null: the engine failed it
  std::string_view reason;                 // stop, length, abort, error
  double first_token_seconds = -1;         // since the request came; -1: no token
  double total_seconds = 0;
};

class Metrics {
 public:
  explicit Metrics(std::vector<std::string> models);

  void asked(size_t model, int choices, int64_t max_tokens);
  void tokens_came(size_t model, int64_t tokens, double seconds_since_last);  // for inter-token latency
  void finished(size_t model, const FinishedChoice& choice);
  void unknown_fields(size_t model, int fields);  // of a body, which were ignored
  // To be told every ten seconds, for the gauges of the last interval.
  void interval_over(size_t model, const EngineStats& now);
  // A request that was not run. Reasons are words of the source.
  void refused(std::string_view reason);
  void answered(int status);

  struct EngineNow {
    EngineStats stats;
    int max_seqs = 0, page_entries = 0;
    bool lossless = true;  // with the settings that requests have unless they say otherwise
  };
  struct ServerNow {
    int connections = 0, reading = 0;
    int64_t log_lines_dropped = 0;
    double stuck_seconds = 0;
    bool ready = true;
  };
  std::string text(const std::vector<EngineNow>& engines, const ServerNow& server) const;

 private:
  struct Drafter {
    int64_t requests = 0, rounds = 0, drafted = 0, accepted = 0;
  };
  struct Model {
    explicit Model(std::string name);
    std::string name;
    std::map<std::string, int64_t> by_reason;
    std::map<std::string, Drafter> by_drafter;
    int64_t prompt_tokens = 0, cached_tokens = 0, generated_tokens = 0, lossy = 0, failed = 0, unknown = 0;
    double prefill_ms = 0, draft_ms = 0, verify_ms = 0, select_ms = 0, kv_bytes = 0, longest_queue = 0;
    EngineStats then;  // at the end of the last interval
    double accept_length = 0, accept_rate = 0, drafts_a_round = 0;
    Histogram first_token, inter_token, total, queued, prefill, decode, inference, prompt, generation, choices, max_tokens;
  };
  void write_engine(Exposition& out, const std::vector<EngineNow>& engines) const;
  void write_requests(Exposition& out) const;
  void write_speculation(Exposition& out, const std::vector<EngineNow>& engines) const;
  void write_server(Exposition& out, const ServerNow& server) const;

  std::vector<Model> models_;
  std::map<std::string, int64_t, std::less<>> refusals_;
  std::map<int, int64_t> by_status_;
};

}
