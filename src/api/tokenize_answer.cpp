// /tokenize and /detokenize: llama.cpp's dialect where the text is called "content", else vLLM's.
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

// What both routes begin with.
struct Asked {
  simdjson::dom::parser parser;
  object fields;
  const ServedModel* model = nullptr;
  const Tokenizer* tokenizer = nullptr;
};

std::optional<ApiError> read(std::string_view body, const ServedModels& models, const ApiLimits& limits, Asked& out) {
  if (auto error = read_object(body, limits, out.parser, out.fields)) return error;
  BodyFault fault;
  if (const Status status = check_keys(out.fields, fault); !status.ok()) return refused(status.error(), fault);
  std::string_view name;
  element model;
  if (out.fields["model"].get(model) == SUCCESS && !model.is_null() && model.get(name) != SUCCESS)
    return refused(wanted({model, "model"}, "a string"), {.param = "model"});
  const auto found = models.find(name);
  if (const auto* error = std::get_if<ApiError>(&found)) return *error;
  out.model = std::get<const ServedModel*>(found);
  EngineParts& parts = out.model->engine->parts();
  if (!parts.tokenizer) return refused(usage_error("this model has no tokenizer"), {.param = "model"});
  out.tokenizer = &*parts.tokenizer;
  return {};
}

// A switch that may be absent.
Status read_switch(const object& fields, std::string_view key, bool& out, BodyFault& fault) {
  element v;
  if (fields[key].get(v) != SUCCESS || v.is_null()) return {};
  fault.param = key;
  HUNCH_TRY(out, truth_value({v, key}));
  return {};
}

ordered_json piece_json(const Tokenizer& tokenizer, int32_t id) {
  const std::string_view bytes = tokenizer.token_bytes(id);
  if (!first_invalid_utf8(bytes)) return std::string(bytes);
  return bytes_json(bytes);
}

Result<Tokens> encode_text(const Asked& asked, const Field& v, EncodeOptions options, BodyFault& fault) {
  fault.param = v.key;
  HUNCH_TRY(const std::string text, text_value(v));
  // As long as what a prompt may be: nothing longer is of use here.
  if (text.size() / asked.tokenizer->longest_token_bytes() > size_t(asked.model->engine->context_len())) {
    fault.code = "context_length_exceeded";
    return wrong(v, " has {} bytes, more tokens than the context of {} holds", text.size(), asked.model->engine->context_len());
  }
  return asked.tokenizer->encode(text, options);
}

Result<std::string> tokenize(const Asked& asked, const ServedModels& models, BodyFault& fault) {
  const object& fields = asked.fields;
  element v;
  const bool llama = fields["content"].get(v) == SUCCESS && !v.is_null();
  bool specials = !llama, parse_special = true, pieces = false, strings = false;  // the dialects differ in the first's default
  HUNCH_OK(read_switch(fields, llama ? "add_special" : "add_special_tokens", specials, fault));
  HUNCH_OK(read_switch(fields, "parse_special", parse_special, fault));
  HUNCH_OK(read_switch(fields, "with_pieces", pieces, fault));
  HUNCH_OK(read_switch(fields, "return_token_strs", strings, fault));
  Tokens ids;
  const EncodeOptions options{.parse_special = parse_special, .add_bos = specials};
  if (llama) {
    HUNCH_TRY(ids, encode_text(asked, {v, "content"}, options, fault));
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
    HUNCH_TRY(ChatPrompts::Prompt prompt, models.chat(*asked.model).encode(body, fault));
    ids = std::move(prompt.ids);
  } else if (fields["prompt"].get(v) == SUCCESS && !v.is_null()) {
    HUNCH_TRY(ids, encode_text(asked, {v, "prompt"}, options, fault));
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
  HUNCH_TRY(const Tokens ids, ids_value({v, "tokens"}, size_t(asked.model->engine->context_len())));
  const int64_t vocab = asked.model->engine->parts().model->shape().vocab_size;
  for (size_t i = 0; i < ids.size(); ++i)
    if (ids[i] >= vocab) return usage_error("\"tokens\": item {} is {}; ids must lie in [0, {})", i, ids[i], vocab);
  const std::string text = detokenize(*asked.tokenizer, ids, /*skip_special=*/false);
  return json_line({{"content", text}, {"prompt", text}});  // one name for each dialect
}

template <class Answer>
Answered answered(std::string_view body, const ServedModels& models, const ApiLimits& limits, const Answer& answer) {
  Asked asked;
  if (auto error = read(body, models, limits, asked)) return std::move(*error);
  BodyFault fault;
  Result<std::string> out = answer(asked, fault);
  if (out.ok()) return std::move(*out);
  return refused(out.error(), fault);
}

}

Answered tokenize_answer(std::string_view body, const ServedModels& models, const ApiLimits& limits) {
  return answered(body, models, limits, [&](const Asked& asked, BodyFault& fault) { return tokenize(asked, models, fault); });
}

Answered detokenize_answer(std::string_view body, const ServedModels& models, const ApiLimits& limits) {
  return answered(body, models, limits, detokenize_ids);
}

}
