// Call: one request of the HTTP API, from its body to its answer, apart from any transport. The server parses it on a worker,
// submits request(choice) of every choice to the model's engine, and writes what the call makes of the engine's tokens: the
// events of a stream, or one body at the end.
#pragma once

#include <variant>

#include "api/error.h"
#include "api/served_models.h"
#include "hunch/hunch.h"

namespace hunch {

enum class Endpoint : uint8_t { Completions, ChatCompletions };

// What a server allows and adds. The bounds that do not depend on a server's choice are constants of body.h.
struct ApiLimits {
  size_t max_body_bytes = size_t(32) << 20;
  bool force_usage = false;  // streams end with a usage chunk whether asked or not
  enum class SpeculationMetrics : uint8_t { None, Summary, Detailed } speculation_metrics = SpeculationMetrics::Summary;
};

class Call {
 public:
  // Everything that costs CPU before admission: JSON, checks, chat template, tokens. May be called by many threads at once.
  // `request_id`: of the header X-Request-Id, becomes part of id(); the body's own request_id wins.
  static std::variant<std::unique_ptr<Call>, ApiError> parse(Endpoint endpoint, std::string_view body, const ServedModels& models,
      const ApiLimits& limits, std::string_view request_id = {});
  ~Call();

  const ServedModel& model() const;
  const std::string& id() const;  // "cmpl-..." or "chatcmpl-..."
  bool stream() const;
  // Choice i is sample i % n of prompt i / n. The request is made at each call: prompts may be long.
  size_t choices() const;
  Request request(size_t choice) const;
  int64_t prompt_tokens() const;   // of all prompts together
  int unknown_fields() const;      // of the body, which were ignored
  double timeout_seconds() const;  // what the client set for itself; 0: nothing

  // The rest is for one thread at a time. Every text that a stream's functions return is whole server-sent events ("data:
  // ...\n\n"), possibly none.
  std::string opening();                                      // first: the role of every choice (chat), echoed prompts
  std::string token(size_t choice, const TokenEvent& event);  // in the order of the engine
  std::string ended(size_t choice, const Generation& generation);
  std::string closing();                      // after the last choice: the usage chunk, if wanted, and [DONE]
  std::string failed(const ApiError& error);  // instead of whatever would come next; the stream is over

  // Not streaming: the body. `generations`: one for every choice.
  std::string answer(const std::vector<Generation>& generations);

  struct State;  // call_state.h

 private:
  explicit Call(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}
