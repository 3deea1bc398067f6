// Whole answers, and what they have in common with streams.
#include <fmt/format.h>

#include <algorithm>

#include "api/call_state.h"
#include "api/json_text.h"
#include "text/detokenizer.h"

namespace hunch {

using nlohmann::ordered_json;

Generation Call::State::shown(const Generation& generation) const {
  return body.scores_only() ? scores_of(generation) : generation;
}

std::string Call::State::end_of_text(const Generation& g) const {
  if (!body.include_stop) return {};
  const auto& ids = body.request.stop_ids;
  if (g.stopped_by_id >= 0 && names.tokenizer && std::ranges::find(ids, g.stopped_by_id) != ids.end())
    return detokenize(*names.tokenizer, std::span(&g.stopped_by_id, 1), names.skip_special);
  return g.stopped_by;
}

// vLLM's: the text or the id of the request that ended it; null for the model's own end.
ordered_json Call::State::stop_reason(const Generation& g) const {
  if (!g.stopped_by.empty()) return g.stopped_by;
  const auto& ids = body.request.stop_ids;
  if (g.stopped_by_id >= 0 && std::ranges::find(ids, g.stopped_by_id) != ids.end()) return g.stopped_by_id;
  if (g.finish == FinishReason::Interrupted) return "interrupted";
  return nullptr;
}

std::string_view Call::State::finish_reason(const Generation& g, std::string_view arguments) const {
  return g.finish == FinishReason::Stop && nlohmann::json::accept(arguments) ? "tool_calls" : openai_finish(g.finish);
}

ordered_json Call::State::head(std::string_view object) const {
  ordered_json out{{"id", id}, {"object", object}, {"created", created}, {"model", model_name}};
  if (!served->fingerprint.empty()) out["system_fingerprint"] = served->fingerprint;
  return out;
}

ordered_json Call::State::call_json(const ReplyDelta::Call& call, size_t choice, bool with_index) const {
  ordered_json out;
  if (with_index) out["index"] = call.index;
  if (!call.name.empty()) {
    // Known by the answer it is part of; distinct among all calls of all answers.
    out["id"] = fmt::format("call_{}_{}_{}", id.substr(id.find('-') + 1), choice, call.index);
    out["type"] = "function";
    out["function"]["name"] = call.name;
  }
  out["function"]["arguments"] = call.arguments;
  return out;
}

ordered_json Call::State::usage_of(const std::vector<const Generation*>& generations) const {
  int64_t completion = 0, cached = 0, thoughts = 0;
  for (size_t i = 0; i < generations.size(); ++i) {
    completion += std::ssize(generations[i]->tokens), thoughts += thought_tokens(*generations[i]);
    // Prompts count once, however many samples were drawn from them.
    if (i % size_t(body.samples) == 0) cached += generations[i]->reused_tokens;
  }
  return usage_json(prompt_tokens(), completion, cached, thoughts);
}

std::string Call::answer(const std::vector<Generation>& generations) {
  const State& s = *state_;
  HUNCH_CHECK(generations.size() == s.num_choices());
  std::vector<Generation> shown;
  shown.reserve(generations.size());
  for (const Generation& g : generations) shown.push_back(s.shown(g));
  std::vector<const Generation*> all;
  for (const Generation& g : shown) all.push_back(&g);

  ordered_json out = s.head(s.chat() ? "chat.completion" : "text_completion");
  ordered_json choices = ordered_json::array();
  for (size_t i = 0; i < shown.size(); ++i) {
    const Generation& g = shown[i];
    const Tokens& prompt = s.prepared.prompts[s.prompt_of(i)];
    const std::string text = g.text + s.end_of_text(g);
    ordered_json choice{{"index", i}};
    std::string arguments;
    if (s.chat()) {
      ReplyDelta reply;
      if (auto reader = s.make_reader()) reader->feed(text, reply), reader->finish(reply);
      else reply.content = text;
      for (const ReplyDelta::Call& call : reply.calls) State::follow(call, arguments);
      choice["message"] = s.message_json(reply, i);
      choice["logprobs"] = s.wants_logprobs() ? chat_logprobs(scored_tokens(g), s.names) : ordered_json();
    } else {
      choice["text"] = s.body.echo ? s.echoed(i) + text : text;
      choice["logprobs"] = nullptr;
      if (s.wants_logprobs()) {
        std::vector<ScoredToken> tokens;
        if (s.body.echo) tokens = scored_prompt(prompt, g);
        for (const ScoredToken& token : scored_tokens(g)) tokens.push_back(token);
        int64_t offset = 0;
        choice["logprobs"] = completion_logprobs(tokens, s.names, offset);
      }
      if (s.body.request.sampling.prompt_logprobs >= 0) choice["prompt_logprobs"] = prompt_logprobs(g, s.names);
      if (s.body.return_token_ids) choice["prompt_token_ids"] = prompt;
    }
    choice["finish_reason"] = s.finish_reason(g, arguments);
    choice["stop_reason"] = s.stop_reason(g);
    if (s.body.return_token_ids) choice["token_ids"] = g.tokens;
    if (s.body.return_tokens) choice["tokens"] = g.tokens;
    choices.push_back(std::move(choice));
  }
  out["choices"] = std::move(choices);
  if (s.chat() && s.body.request.sampling.prompt_logprobs >= 0) out["prompt_logprobs"] = prompt_logprobs(shown[0], s.names);
  if (s.chat() && s.body.return_token_ids) out["prompt_token_ids"] = s.prepared.prompts[0];
  out["usage"] = s.usage_of(all);
  out["timings"] = timings_json(all);
  out["metrics"] = metrics_json(all, s.limits.speculation_metrics);
  return json_line(out);
}

ordered_json Call::State::message_json(const ReplyDelta& reply, size_t choice) const {
  ordered_json out{{"role", "assistant"}};
  // What was thought under both names that clients look for.
  if (!reply.reasoning.empty() && body.include_reasoning)
    out["reasoning_content"] = reply.reasoning, out["reasoning"] = reply.reasoning;
  std::vector<ReplyDelta::Call> calls;  // every call whole
  for (const ReplyDelta::Call& part : reply.calls) {
    if (calls.empty() || part.index != calls.back().index) calls.push_back({.index = part.index});
    calls.back().name += part.name, calls.back().arguments += part.arguments;
  }
  out["content"] = reply.content.empty() && !calls.empty() ? ordered_json() : ordered_json(reply.content);
  if (calls.empty()) return out;
  out["tool_calls"] = ordered_json::array();
  for (const ReplyDelta::Call& call : calls) out["tool_calls"].push_back(call_json(call, choice, false));
  return out;
}

}
