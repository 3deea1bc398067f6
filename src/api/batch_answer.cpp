// Shapes follow OpenAI's: `choices` and `usage`, and for lines that came in the wrapped form `response` around them. The id
// stands first: an interrupted file is recognised by it.
#include "api/batch_answer.h"

#include <ctime>
#include <nlohmann/json.hpp>

#include "api/answer_json.h"
#include "api/json_text.h"
#include "engine/approximation.h"
#include "text/detokenizer.h"

namespace hunch {
namespace {

using nlohmann::ordered_json;

ordered_json id_json(std::string_view id) {
  auto parsed = ordered_json::parse(id, nullptr, false);
  return id.empty() || parsed.is_discarded() ? ordered_json() : parsed;
}

ordered_json logprobs_json(const BatchLine& line, const Generation& g, const TokenNames& names) {
  if (line.body.request.sampling.logprobs < 0) return nullptr;
  std::vector<ScoredToken> all;
  if (line.body.echo) all = scored_prompt(line.body.prompts[0].ids, g);
  for (const ScoredToken& token : scored_tokens(g)) all.push_back(token);
  if (all.empty()) return nullptr;
  int64_t offset = 0;
  return line.body.input == Body::Input::Chat ? chat_logprobs(all, names) : completion_logprobs(all, names, offset);
}

ordered_json choice_json(const BatchLine& line, const Generation& g, size_t index, const Tokenizer* tokenizer) {
  ordered_json out{{"index", index}};
  std::string text = g.text;
  if (const auto& prompts = line.body.prompts; line.body.echo && tokenizer)
    text = (prompts[0].is_text ? prompts[0].text : detokenize(*tokenizer, prompts[0].ids)) + text;
  if (line.body.input == Body::Input::Chat) out["message"] = {{"role", "assistant"}, {"content", text}};
  out["text"] = text;
  out["tokens"] = g.tokens;
  out["finish_reason"] = finish_name(g.finish);
  if (!g.stopped_by.empty()) out["stop_reason"] = g.stopped_by;
  const TokenNames names{.tokenizer = tokenizer};
  out["logprobs"] = logprobs_json(line, g, names);
  if (line.body.request.sampling.prompt_logprobs >= 0 && !g.prompt_logprobs.empty())
    out["prompt_logprobs"] = prompt_logprobs(g, names);
  out["seed"] = g.seed;
  return out;
}

ordered_json metrics_json(const std::vector<BatchSample>& samples) {
  const Generation& first = samples.front().generation;
  Generation all;  // the samples' counts, so that the rates are those of Generation
  double ttft = -1, decode = 0;
  int64_t steps = 0;
  for (const BatchSample& sample : samples) {
    const Generation& g = sample.generation;
    all.steps += g.steps, all.experts_read += g.experts_read;
    all.rounds += g.rounds, all.drafted += g.drafted, all.accepted += g.accepted;
    decode = std::max(decode, g.milliseconds.first_to_last_token);
    steps += std::max<int64_t>(0, std::ssize(g.tokens) - 1);
    if (sample.first_token_ms >= 0) ttft = ttft < 0 ? sample.first_token_ms : std::min(ttft, sample.first_token_ms);
    all.lossless = all.lossless && g.lossless, all.approximation.add(g.approximation);
    if (!g.warning.empty()) all.warning = g.warning;
  }
  ordered_json out;
  out["ttft_ms"] = ttft < 0 ? ordered_json() : ordered_json(ttft);
  out["tokens_per_second"] = per_second(steps, decode);
  out["mean_acceptance_length"] = all.mean_acceptance_length();
  out["rounds"] = all.rounds, out["drafted"] = all.drafted, out["accepted"] = all.accepted;
  if (all.experts_read > 0) out["experts_read_per_step"] = all.experts_per_step();
  out["drafter"] = first.proposer, out["policy"] = first.policy, out["rule"] = first.rule, out["gamma"] = first.gamma;
  out["lossless"] = all.lossless;
  if (all.approximation.any()) out["approx"] = approximation_json(all.approximation);
  if (!all.warning.empty()) out["warning"] = all.warning;
  out["seed"] = first.seed;
  return out;
}

// The line as it came: bare, or OpenAI's envelope.
std::string enveloped(const BatchLine& line, ordered_json id, ordered_json body, ordered_json error) {
  ordered_json out{{"id", id}};
  if (!line.wrapped) {
    if (!error.is_null()) out["error"] = std::move(error);
    else out.update(body);
    return json_line(out);
  }
  out["custom_id"] = std::move(id);
  out["response"] = nullptr;
  if (error.is_null()) out["response"] = {{"status_code", 200}, {"body", std::move(body)}};
  out["error"] = std::move(error);
  return json_line(out);
}

}

std::string batch_answer(
    const BatchLine& line, const std::vector<BatchSample>& samples, std::string_view model, const Tokenizer* tokenizer) {
  const bool chat = line.body.input == Body::Input::Chat;
  const ordered_json id = id_json(line.id);
  ordered_json body;
  if (line.wrapped) {  // OpenAI's own readers want them
    body["id"] = (chat ? "chatcmpl-" : "cmpl-") + (id.is_string() ? id.get<std::string>() : id.dump());
    body["created"] = std::time(nullptr);
  }
  body.update({{"object", chat ? "chat.completion" : "text_completion"}, {"model", model}, {"choices", ordered_json::array()}});
  int64_t completion = 0, cached = 0;
  for (size_t i = 0; i < samples.size(); ++i) {
    const Generation& g = samples[i].generation;
    body["choices"].push_back(choice_json(line, line.body.scores_only() ? scores_of(g) : g, i, tokenizer));
    completion += line.body.scores_only() ? 0 : std::ssize(g.tokens);
    cached = i == 0 ? g.reused_tokens : std::min(cached, g.reused_tokens);
  }
  body["usage"] = usage_json(samples.front().generation.prompt_tokens, completion, cached, -1);
  body["metrics"] = metrics_json(samples);
  return enveloped(line, id, std::move(body), nullptr);
}

std::string batch_error(const BatchLine& line, std::string_view id, const Error& error, int64_t line_number) {
  const bool usage = error.kind == Error::Kind::Usage;
  return enveloped(line, id_json(id), nullptr,
      {{"message", error.message}, {"type", usage ? "invalid_request_error" : "engine_error"}, {"line", line_number}});
}

}
