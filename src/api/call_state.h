// What a Call holds between its body and its answer. For call.cpp, call_answer.cpp and call_stream.cpp only.
#pragma once

#include <chrono>

#include "api/answer_json.h"
#include "api/body.h"
#include "api/call.h"
#include "api/prepare.h"
#include "api/reply_reader.h"

namespace hunch {

struct Call::State {
  // One choice of a stream.
  struct Choice {
    std::vector<TokenEvent> held;  // tokens whose text, or part of it, is not out yet
    size_t text_bytes = 0;         // of the engine's text, taken so far
    int64_t tokens = 0;
    int64_t offset = 0;  // code points, for text_offset
    ReplyReaderPtr reader;
    bool over = false;
    std::string arguments;  // of its last call
    std::chrono::steady_clock::time_point first;
  };

  Endpoint endpoint = Endpoint::Completions;
  const ServedModel* served = nullptr;
  ApiLimits limits;
  Body body;
  PreparedBody prepared;
  std::string tool_parser, reasoning_parser;  // of this chat; empty: none
  std::string id, model_name;
  int64_t created = 0;
  TokenNames names;
  std::vector<Choice> choices;
  std::vector<std::optional<Generation>> ended;  // of a stream's choices, without their columns

  std::optional<ApiError> read(std::string_view json, const ServedModels& models, std::string_view request_id);

  bool chat() const { return endpoint == Endpoint::ChatCompletions; }
  size_t prompt_of(size_t choice) const { return choice / size_t(body.samples); }
  size_t num_choices() const { return prepared.prompts.size() * size_t(body.samples); }
  int64_t prompt_tokens() const;
  bool wants_logprobs() const { return body.request.sampling.logprobs >= 0; }
  std::string echoed(size_t choice) const;  // the prompt's text

  // call_answer.cpp, in both forms.
  Generation shown(const Generation& generation) const;         // without what was not asked for
  std::string end_of_text(const Generation& generation) const;  // the stop text, where it is to be shown
  nlohmann::ordered_json stop_reason(const Generation& generation) const;
  static void follow(const ReplyDelta::Call& part, std::string& arguments) {
    if (!part.name.empty()) arguments.clear();
    arguments += part.arguments;
  }
  std::string_view finish_reason(const Generation& generation, std::string_view arguments) const;  // of its last call
  nlohmann::ordered_json head(std::string_view object) const;                                      // id, object, created, model
  nlohmann::ordered_json call_json(const ReplyDelta::Call& call, size_t choice, bool with_index) const;
  nlohmann::ordered_json message_json(const ReplyDelta& reply, size_t choice) const;
  ReplyReaderPtr make_reader() const;                          // null: all text is content
  int64_t thought_tokens(const Generation& generation) const;  // of a chat's reply, marks included
  nlohmann::ordered_json usage_of(const std::vector<const Generation*>& generations) const;

 private:
  std::optional<ApiError> settle_lengths();
  Status settle_reply(const ServedModels& models, BodyFault& fault);
};

}
