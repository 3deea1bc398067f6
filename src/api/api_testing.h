// What tests of this folder share: the shipped model as a server would serve it, and its answers read back.
#pragma once

#include <nlohmann/json.hpp>
#include <variant>

#include "api/call.h"
#include "base/test_results.h"
#include "engine/test_engines.h"

namespace hunch::test {

using nlohmann::json;
using namespace nlohmann::literals;
constexpr Endpoint kText = Endpoint::Completions, kChat = Endpoint::ChatCompletions;
inline const json kHello{{{"role", "user"}, {"content", "Tell me about the sea."}}};

// One engine for all tests of a program: loading costs more than running.
inline Engine& served_engine() {
  static const std::unique_ptr<Engine> engine =
      load({.model = wren_path(), .threads = 1, .context_len = 1024, .max_num_seqs = 8, .max_waiting = 300});
  return *engine;
}

// That model alone, by that engine.
inline std::unique_ptr<ServedModels> models_of(ServedModel model) {
  if (model.id.empty()) model.id = "m";
  model.engine = &served_engine();
  auto made = std::make_unique<ServedModels>();
  expect_error(made->add(std::move(model)), "accepted");
  return made;
}

inline const ServedModels& served_models() {
  static const auto models = models_of({.id = "wren", .aliases = {"gpt-wren"}, .created = 1700000000});
  return *models;
}

inline std::unique_ptr<Call> call(
    Endpoint endpoint, const json& body, ApiLimits limits = {}, const ServedModels& models = served_models()) {
  auto made = Call::parse(endpoint, body.dump(), models, limits);
  if (const auto* error = std::get_if<ApiError>(&made)) {
    ADD_FAILURE() << body << ": " << error->message;
    return nullptr;
  }
  return std::move(std::get<std::unique_ptr<Call>>(made));
}

inline ApiError refusal(Endpoint endpoint, std::string_view body, const ServedModels& models = served_models()) {
  const auto made = Call::parse(endpoint, body, models, {});
  if (const auto* error = std::get_if<ApiError>(&made)) return *error;
  return {.status = 200, .message = "accepted"};
}

using Pointed = std::initializer_list<std::pair<const char*, json>>;

// What `answer` holds at places that JSON pointers name.
inline void expect_at(const json& answer, Pointed wanted, const Place& place = Place::current()) {
  for (const auto& [path, value] : wanted) {
    const json::json_pointer at(path);
    const json found = answer.contains(at) ? answer.at(at) : json("missing");
    if (found != value) ADD_FAILURE_AT(place.file_name(), int(place.line())) << path << ": " << found << ", not " << value;
  }
}

// The answer to a body that does not stream.
inline json answer(Endpoint endpoint, const json& body, ApiLimits limits = {}) {
  const auto made = call(endpoint, body, limits);
  if (!made) return {};
  std::vector<Generation> generations;
  for (size_t i = 0; i < made->choices(); ++i) generations.push_back(generate(served_engine(), made->request(i)));
  return json::parse(made->answer(generations));
}

// The chunks of a body that streams; its last event must be [DONE].
inline std::vector<json> chunks(Endpoint endpoint, const json& body, ApiLimits limits = {}) {
  const auto made = call(endpoint, body, limits);
  if (!made) return {};
  EXPECT_TRUE(made->stream());
  std::string text = made->opening();
  for (size_t i = 0; i < made->choices(); ++i) {
    const auto generation = good(served_engine().generate(made->request(i), [&](const TokenEvent& event) {
      text += made->token(i, event);
      return true;
    }));
    text += made->ended(i, generation);
  }
  text += made->closing();
  std::vector<json> out;
  bool done = false;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find("\n\n", at);
    const std::string line = text.substr(at, end - at);
    at = end + 2;
    EXPECT_TRUE(line.starts_with("data: ") && line.find('\n') == line.npos && !done) << line;
    if (line == "data: [DONE]") done = true;
    else out.push_back(json::parse(line.substr(6)));
  }
  EXPECT_TRUE(done);
  return out;
}

}
