// From a body to requests: which model, its defaults, what was said, checked and tokenised.
#include "api/call.h"

#include <fmt/format.h>

#include <random>

#include "api/body_keys.h"
#include "api/call_state.h"
#include "engine/parts.h"
#include "text/detokenizer.h"

namespace hunch {
namespace {

constexpr int64_t kCompletionTokens = 16;  // OpenAI's default; chats have the rest of the context

std::string random_id() {
  std::random_device device;
  std::string out;
  for (int i = 0; i < 3; ++i) out += fmt::format("{:08x}", device());
  return out;
}

}

ApiError refused(const Error& error, const BodyFault& fault) {
  ApiError out = api_error(error);
  out.param = fault.param;
  if (!fault.code.empty()) out.code = fault.code;
  return out;
}

std::optional<ApiError> read_object(
    std::string_view json, const ApiLimits& limits, simdjson::dom::parser& parser, object& fields) {
  if (json.size() > limits.max_body_bytes)
    return api_error(413, fmt::format("the body has {} bytes; at most {} are taken", json.size(), limits.max_body_bytes));
  const auto root = parse_json(parser, json);
  if (!root.ok()) return refused(root.error());
  if (root.value().get(fields) != SUCCESS) return refused(wanted({root.value(), "body"}, "an object"));
  return {};
}

std::optional<ApiError> Call::State::read(std::string_view json, const ServedModels& models, std::string_view request_id) {
  BodyFault fault;
  BodyReader in{chat() ? BodyKind::Chat : BodyKind::Completions, body, fault};
  simdjson::dom::parser parser;
  object fields;
  if (auto error = read_object(json, limits, parser, fields)) return error;

  // The model first: what the body does not say is its to say.
  std::string_view name;
  if (fields["model"].get(name) != SUCCESS) name = {};
  auto found = models.find(name);
  if (const auto* unknown = std::get_if<ApiError>(&found)) return *unknown;
  served = std::get<const ServedModel*>(found);
  model_name = name.empty() ? served->id : std::string(name);
  body.request = served->defaults;
  if (const Status status = read_fields(fields, in); !status.ok()) return refused(status.error(), fault);

  EngineParts& parts = served->engine->parts();
  names = {.tokenizer = parts.tokenizer ? &*parts.tokenizer : nullptr,
      .as_ids = body.tokens_as_ids,
      .skip_special = body.request.skip_special_tokens};
  if (!chat() && !body.limited && !body.endless && body.request.max_tokens < 0) body.request.max_tokens = kCompletionTokens;
  if (const Status status = settle_reply(models, fault); !status.ok()) return refused(status.error(), fault);
  auto made = prepare_body(body, *served->engine, models.chat(*served), fault);
  if (!made.ok()) return refused(made.error(), fault);
  prepared = std::move(*made);
  if (auto error = settle_lengths()) return error;

  id = fmt::format("{}-{}", chat() ? "chatcmpl" : "cmpl",
      !body.request_id.empty()  ? body.request_id
          : !request_id.empty() ? std::string(request_id)
                                : random_id());
  created = int64_t(std::time(nullptr));
  if (body.stream) {
    choices = std::vector<Choice>(num_choices());
    ended.resize(num_choices());
  }
  return {};
}

std::optional<ApiError> Call::State::settle_lengths() {
  const int64_t least = prepared.request.sampling.min_tokens, most = prepared.request.max_tokens;
  for (const auto& prompt : prepared.prompts) {
    const int64_t room = served->engine->context_len() - std::ssize(prompt), may = most < 0 ? room : std::min(room, most);
    if (least > may && !body.scores_only())
      return refused(
          usage_error("\"min_tokens\" is {}, more than the {} tokens that may come", least, may), {.param = "min_tokens"});
  }
  return {};
}

int64_t Call::State::prompt_tokens() const {
  int64_t sum = 0;
  for (const auto& prompt : prepared.prompts) sum += std::ssize(prompt);
  return sum;
}

std::string Call::State::echoed(size_t choice) const {
  const Body::Prompt& prompt = body.prompts[prompt_of(choice)];
  if (body.truncate_prompt > 0 && names.tokenizer)
    return detokenize(*names.tokenizer, prepared.prompts[prompt_of(choice)], names.skip_special);
  return prompt.is_text || !names.tokenizer ? prompt.text : detokenize(*names.tokenizer, prompt.ids, names.skip_special);
}

Call::Call(std::unique_ptr<State> state) : state_(std::move(state)) {}
Call::~Call() = default;

std::variant<std::unique_ptr<Call>, ApiError> Call::parse(
    Endpoint endpoint, std::string_view body, const ServedModels& models, const ApiLimits& limits, std::string_view request_id) {
  auto state = std::make_unique<State>();
  state->endpoint = endpoint, state->limits = limits;
  if (auto error = state->read(body, models, request_id)) return std::move(*error);
  return std::unique_ptr<Call>(new Call(std::move(state)));
}

const ServedModel& Call::model() const { return *state_->served; }
const std::string& Call::id() const { return state_->id; }
bool Call::stream() const { return state_->body.stream; }
size_t Call::choices() const { return state_->num_choices(); }
int64_t Call::prompt_tokens() const { return state_->prompt_tokens(); }
int Call::unknown_fields() const { return state_->body.unknown_keys; }
double Call::timeout_seconds() const { return state_->body.timeout_seconds; }

Request Call::request(size_t choice) const {
  Request request = state_->prepared.request;
  request.prompt = state_->prepared.prompts[state_->prompt_of(choice)];
  request.sample_index = uint32_t(choice % size_t(state_->body.samples));
  return request;
}

}
