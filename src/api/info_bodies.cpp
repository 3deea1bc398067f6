#include "api/info_bodies.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "api/chat_prompts.h"
#include "api/json_text.h"
#include "engine/parts.h"

namespace hunch {
namespace {

using nlohmann::ordered_json;

ordered_json model_json(const ServedModel& model, const std::string& name) {
  EngineParts& parts = model.engine->parts();
  const ModelShape& shape = parts.model->shape();
  return {{"id", name}, {"object", "model"}, {"created", model.created}, {"owned_by", "hunch"}, {"root", model.id},
      {"parent", nullptr}, {"max_model_len", model.engine->context_len()},
      {"meta",
          {{"n_ctx_train", shape.context_len}, {"n_embd", shape.hidden}, {"n_vocab", shape.vocab_size},
              {"size", parts.model->weight_bytes()}}}};
}

std::string token_text(EngineParts& parts, std::optional<int32_t> id) {
  return parts.tokenizer && id ? std::string(parts.tokenizer->token_bytes(*id)) : std::string();
}

// The defaults of a request, by the names under which it could set them; null: the model's own.
ordered_json defaults_json(const Request& defaults) {
  const SamplingOptions& s = defaults.sampling;
  const auto maybe = [](const auto& value) { return value ? ordered_json(*value) : ordered_json(); };
  return {{"n_predict", defaults.max_tokens}, {"temperature", maybe(s.temperature)}, {"top_k", maybe(s.top_k)},
      {"top_p", maybe(s.top_p)}, {"min_p", maybe(s.min_p)}, {"seed", maybe(s.seed)}, {"repeat_penalty", s.repetition_penalty},
      {"presence_penalty", s.presence_penalty}, {"frequency_penalty", s.frequency_penalty},
      {"cache_prompt", defaults.cache_prompt}};
}

}

std::string models_body(const ServedModels& models) {
  ordered_json data = ordered_json::array();
  for (size_t i = 0; i < models.size(); ++i) {
    const ServedModel& model = models.at(i);
    data.push_back(model_json(model, model.id));
    for (const std::string& alias : model.aliases) data.push_back(model_json(model, alias));
  }
  return json_line({{"object", "list"}, {"data", std::move(data)}});
}

Answered model_body(const ServedModels& models, std::string_view name) {
  const auto found = models.find(name);
  if (const auto* error = std::get_if<ApiError>(&found)) return *error;
  return json_line(model_json(*std::get<const ServedModel*>(found), std::string(name)));
}

Answered props_body(const ServedModels& models, std::string_view name, std::string_view version) {
  const auto found = models.find(name);
  if (const auto* error = std::get_if<ApiError>(&found)) return *error;
  const ServedModel& model = *std::get<const ServedModel*>(found);
  EngineParts& parts = model.engine->parts();
  ordered_json out{
      {"default_generation_settings", {{"n_ctx", model.engine->context_len()}, {"params", defaults_json(model.defaults)}}},
      {"total_slots", parts.limits.max_seqs}, {"model_alias", model.id}, {"model_path", model.path},
      {"modalities", {{"vision", false}, {"audio", false}}}, {"chat_template", models.chat(model).source()}};
  if (const std::string& tools = models.chat(model).source(true); tools != out["chat_template"])
    out["chat_template_tool_use"] = tools;
  out["bos_token"] = token_text(parts, parts.tokenizer ? parts.tokenizer->bos_id() : std::nullopt);
  const bool ends = parts.tokenizer && !parts.tokenizer->eos_ids().empty();
  out["eos_token"] = token_text(parts, ends ? std::optional(parts.tokenizer->eos_ids()[0]) : std::nullopt);
  out["build_info"] = fmt::format("hunch {}", version);
  out["engine"] = model.engine->description();
  ordered_json drafters = ordered_json::array();
  for (const DrafterOptions& drafter : parts.options.drafters) drafters.push_back(drafter.method);
  out["speculation"] = {
      {"method", model.defaults.speculation.proposer},
      {"lossless", model.defaults.speculation.lossless()},
      {"drafters", std::move(drafters)},
  };
  return json_line(out);
}

std::string slots_body(const ServedModels& models) {
  ordered_json out = ordered_json::array();
  for (size_t i = 0; i < models.size(); ++i) {
    const ServedModel& model = models.at(i);
    const EngineStats stats = model.engine->stats();
    for (int seat = 0; seat < model.engine->parts().limits.max_seqs; ++seat)
      out.push_back({
          {"id", out.size()},
          {"model", model.id},
          {"n_ctx", model.engine->context_len()},
          {"speculative", model.defaults.speculation.proposer != "none"},
          {"is_processing", seat < stats.running},
      });
  }
  return json_line(out);
}

std::string version_body(std::string_view version) { return json_line({{"version", version}}); }

}
