// /tokenize and /detokenize: llama.cpp's dialect where the text is called "content", else vLLM's.
#include <fmt/format.h>

#include "api/body_keys.h"
#include "api/chat_prompts.h"
#include "api/info_bodies.h"
#include "api/json_text.h"
#include "engine/parts.h"
#include "text/detokenizer.h"
#include "text/unicode.h"

namespace hunch {
namespace {

using nlohmann::ordered_json;
using simdjson::SUCCESS;
using simdjson::dom::element;
using simdjson::dom::object;

constexpr size_t kMaxIds = size_t(1) << 22;  // of a list to detokenise

// What both routes begin with.
struct Asked {
  simdjson::dom::parser parser;
  object fields;
  const ServedModel* model = nullptr;
  const Tokenizer* tokenizer = nullptr;
};

ApiError refused(const Error& error, std::string param) {
  ApiError out = api_error(error);
  out.param = std::move(param);
  return out;
}

std::optional<ApiError> read(std::string_view body, const ServedModels& models, const ApiLimits& limits, Asked& out) {
  if (body.size() > limits.max_body_bytes)
    return api_error(413, fmt::format("the body has {} bytes; at most {} are taken", body.size(), limits.max_body_bytes));
  const auto root = parse_json(out.parser, body);
  if (!root.ok()) return refused(root.error(), "");
  if (root.value().get(out.fields) != SUCCESS) return refused(wanted("body", "an object", root.value()), "");
  std::string_view name;
  element model;
  if (out.fields["model"].get(model) == SUCCESS && !model.is_null() && model.get(name) != SUCCESS)
    return refused(wanted("model", "a string", model), "model");
  const auto found = models.find(name);
  if (const auto* error = std::get_if<ApiError>(&found)) return *error;
  out.model = std::get<const ServedModel*>(found);
  EngineParts& parts = out.model->engine->parts();
  if (!parts.tokenizer) return refused(usage_error("this model has no tokenizer"), "model");
  out.tokenizer = &*parts.tokenizer;
  return {};
}

// A switch that may be absent.
Status read_switch(const object& fields, std::string_view key, bool& out, BodyFault& fault) {
  element v;
  if (fields[key].get(v) != SUCCESS || v.is_null()) return {};
  fault.param = key;
  HUNCH_TRY(out, truth_value(key, v));
  return {};
}

ordered_json piece_json(const Tokenizer& tokenizer, int32_t id) {
  const std::string_view bytes = tokenizer.token_bytes(id);
  if (!first_invalid_utf8(bytes)) return std::string(bytes);
  ordered_json out = ordered_json::array();
  for (const char c : bytes) out.push_back(int(static_cast<unsigned char>(c)));
  return out;
}

Result<Tokens> encode_text(const Asked& asked, std::string_view key, const element& v, EncodeOptions options, BodyFault& fault) {
  fault.param = key;
  HUNCH_TRY(const std::string text, text_value(key, v));
  // As long as what a prompt may be: nothing longer is of use here.
  if (text.size() / asked.tokenizer->longest_token_bytes() > size_t(asked.model->engine->context_len())) {
    fault.code = "context_length_exceeded";
    return usage_error(fmt::format(
        "\"{}\" has {} bytes, more tokens than the context of {} holds", key, text.size(), asked.model->engine->context_len()));
  }
  return asked.tokenizer->encode(text, options);
}

Result<std::string> tokenize(const Asked& asked, const ServedModels& models, BodyFault& fault) {
  const object& fields = asked.fields;
  bool specials = false, parse_special = true, pieces = false, strings = false;
  element v;
  const bool llama = fields["content"].get(v) == SUCCESS && !v.is_null();
  specials = !llama;  // the dialects differ in this default
  HUNCH_OK(read_switch(fields, llama ? "add_special" : "add_special_tokens", specials, fault));
  HUNCH_OK(read_switch(fields, "parse_special", parse_special, fault));
  HUNCH_OK(read_switch(fields, "with_pieces", pieces, fault));
  HUNCH_OK(read_switch(fields, "return_token_strs", strings, fault));
  Tokens ids;
  const EncodeOptions options{.parse_special = parse_special, .add_bos = specials};
  if (llama) {
    HUNCH_TRY(ids, encode_text(asked, "content", v, options, fault));
    ordered_json tokens = ordered_json::array();
    for (const int32_t id : ids)
      if (pieces) tokens.push_back({{"id", id}, {"piece", piece_json(*asked.tokenizer, id)}});
      else tokens.push_back(id);
    return json_line({{"tokens", std::move(tokens)}});
  }
  if (fields["messages"].get(v) == SUCCESS && !v.is_null()) {
    Body body;
    BodyReader in{BodyKind::Chat, body, fault};
    HUNCH_OK(read_fields(fields, in));
    fault.param = body.chat_template.empty() ? "messages" : "chat_template";
    HUNCH_TRY(ChatPrompts::Prompt prompt, models.chat(*asked.model).encode(body));
    ids = std::move(prompt.ids);
  } else if (fields["prompt"].get(v) == SUCCESS && !v.is_null()) {
    HUNCH_TRY(ids, encode_text(asked, "prompt", v, options, fault));
  } else {
    fault.param = "prompt";
    return usage_error("no text: give \"content\", \"prompt\" or \"messages\"");
  }
  ordered_json out{{"count", ids.size()}, {"max_model_len", asked.model->engine->context_len()}, {"tokens", ids}};
  if (strings) {
    out["token_strs"] = ordered_json::array();
    for (const int32_t id : ids) out["token_strs"].push_back(std::string(asked.tokenizer->token_bytes(id)));
  }
  return json_line(out);
}

Result<std::string> detokenize_ids(const Asked& asked, BodyFault& fault) {
  fault.param = "tokens";
  element v;
  if (asked.fields["tokens"].get(v) != SUCCESS) return usage_error("no \"tokens\": give a list of token ids");
  HUNCH_TRY(const Tokens ids, ids_value("tokens", v, kMaxIds));
  const int64_t vocab = asked.model->engine->parts().model->shape().vocab_size;
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] >= vocab) return usage_error(fmt::format("\"tokens\": item {} is {}; ids must lie in [0, {})", i, ids[i], vocab));
  const std::string text = detokenize(*asked.tokenizer, ids, /*skip_special=*/false);
  return json_line({{"content", text}, {"prompt", text}});  // one name for each dialect
}

template <class Answer>
std::variant<std::string, ApiError> answered(
    std::string_view body, const ServedModels& models, const ApiLimits& limits, const Answer& answer) {
  Asked asked;
  if (auto error = read(body, models, limits, asked)) return std::move(*error);
  BodyFault fault;
  Result<std::string> out = answer(asked, fault);
  if (out.ok()) return std::move(*out);
  ApiError error = refused(out.error(), fault.param);
  if (!fault.code.empty()) error.code = fault.code;
  return error;
}

}

std::variant<std::string, ApiError> tokenize_answer(std::string_view body, const ServedModels& models, const ApiLimits& limits) {
  return answered(body, models, limits, [&](const Asked& asked, BodyFault& fault) { return tokenize(asked, models, fault); });
}

std::variant<std::string, ApiError> detokenize_answer(
    std::string_view body, const ServedModels& models, const ApiLimits& limits) {
  return answered(body, models, limits, detokenize_ids);
}

}
