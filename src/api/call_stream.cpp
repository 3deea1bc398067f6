// The events of a stream. A chunk goes out when there is text for it: tokens whose characters are not whole yet, or that may
// become a stop text, wait for the next one. All chunks of a choice together are its whole answer.

#include "api/call_state.h"
#include "api/json_text.h"
#include "base/clock.h"

namespace hunch {
namespace {

using nlohmann::ordered_json;

std::string event_text(const ordered_json& data) { return "data: " + json_line(data) + "\n\n"; }

// Writes the chunks of one stream.
class ChunkWriter {
 public:
  explicit ChunkWriter(Call::State& state) : s_(state) {}

  ordered_json choice(size_t index) const {
    ordered_json out{{"index", index}};
    if (s_.chat()) out["delta"] = ordered_json::object();
    else out["text"] = "";
    out["logprobs"] = nullptr;
    out["finish_reason"] = nullptr;
    return out;
  }

  std::string chunk(ordered_json choice, const ordered_json& extra = nullptr) const {
    ordered_json out = head();
    out["choices"] = ordered_json::array({std::move(choice)});
    if (s_.body.stream && (s_.body.include_usage || s_.limits.force_usage))
      out["usage"] = s_.body.continuous_usage ? usage_so_far() : ordered_json();
    if (extra.is_object()) out.update(extra);
    return event_text(out);
  }

  ordered_json head() const { return s_.head(s_.chat() ? "chat.completion.chunk" : "text_completion"); }

  // The logprobs and ids of the tokens that the choice holds, which are out now.
  void release_tokens(size_t index, ordered_json& choice) const {
    auto& c = s_.choices[index];
    if (c.held.empty()) return;
    if (s_.wants_logprobs()) {
      std::vector<ScoredToken> tokens;
      for (const TokenEvent& e : c.held) tokens.push_back({.id = e.id, .logprob = e.logprob, .top = e.top});
      choice["logprobs"] = s_.chat() ? chat_logprobs(tokens, s_.names) : completion_logprobs(tokens, s_.names, c.offset);
    }
    ordered_json ids = ordered_json::array();
    for (const TokenEvent& e : c.held) ids.push_back(e.id);
    if (s_.body.return_token_ids) choice["token_ids"] = ids;
    if (s_.body.return_tokens) choice["tokens"] = std::move(ids);
    c.held.clear();
  }

  // The text into the choice, as content or as what a chat's reader makes of it. `last`: nothing follows. False: nothing to show.
  bool put_text(size_t index, std::string_view text, bool last, ordered_json& choice) const {
    auto& c = s_.choices[index];
    if (!s_.chat()) {
      choice["text"] = text;
      return !text.empty();
    }
    ReplyDelta delta;
    if (c.reader) {
      c.reader->feed(text, delta);
      if (last) c.reader->finish(delta);
    } else {
      delta.content = text;
    }
    ordered_json& out = choice["delta"];
    if (!delta.reasoning.empty() && s_.body.include_reasoning)
      out["reasoning_content"] = delta.reasoning, out["reasoning"] = delta.reasoning;
    if (!delta.content.empty()) out["content"] = delta.content;
    if (!delta.calls.empty()) {
      out["tool_calls"] = ordered_json::array();
      for (const ReplyDelta::Call& call : delta.calls) {
        s_.follow(call, c.arguments);
        out["tool_calls"].push_back(s_.call_json(call, index, true));
      }
    }
    return !out.empty();
  }

  ordered_json usage_so_far() const {
    int64_t tokens = 0;
    for (const auto& c : s_.choices) tokens += c.tokens;
    return usage_json(s_.prompt_tokens(), tokens, 0, -1);
  }

  ordered_json timings_so_far(size_t index) const {
    const auto& c = s_.choices[index];
    const double ms = ms_since(c.first);
    return {{"prompt_n", s_.prepared.prompts[s_.prompt_of(index)].size()}, {"predicted_n", c.tokens}, {"predicted_ms", ms},
        {"predicted_per_second", c.tokens > 1 ? per_second(c.tokens - 1, ms) : ordered_json()}};
  }

 private:
  Call::State& s_;
};

// What usage, timings and metrics are made of.
Generation without_columns(Generation g) {
  g.text.clear(), g.logprobs = {}, g.top = {}, g.prompt_logprobs = {}, g.prompt_top = {};
  return g;
}

}

std::string Call::opening() {
  State& s = *state_;
  const ChunkWriter writer(s);
  std::string out;
  for (size_t i = 0; i < s.num_choices(); ++i) {
    ordered_json choice = writer.choice(i), extra;
    if (s.chat()) {
      choice["delta"] = {{"role", "assistant"}, {"content", ""}};
      s.choices[i].reader = s.make_reader();
      if (s.body.return_token_ids) extra = {{"prompt_token_ids", s.prepared.prompts[0]}};
    } else if (s.body.echo) {
      choice["text"] = s.echoed(i);
    } else if (!s.body.return_token_ids) {
      continue;
    }
    if (!s.chat() && s.body.return_token_ids) choice["prompt_token_ids"] = s.prepared.prompts[s.prompt_of(i)];
    out += writer.chunk(std::move(choice), extra);
  }
  return out;
}

std::string Call::token(size_t index, const TokenEvent& event) {
  State& s = *state_;
  State::Choice& c = s.choices[index];
  if (s.body.scores_only() || c.over) return {};
  if (c.tokens++ == 0) c.first = Clock::now();
  c.held.push_back(event);
  c.held.back().text.clear();
  if (event.text.empty()) return {};
  c.text_bytes += event.text.size();
  const ChunkWriter writer(s);
  ordered_json choice = writer.choice(index);
  if (!writer.put_text(index, event.text, false, choice)) return {};
  writer.release_tokens(index, choice);
  if (s.body.return_token_sources) {
    ordered_json source{{"text", event.text}, {"drafter", nullptr}};
    if (!event.drafter.empty()) source["drafter"] = event.drafter;
    choice["token_sources"] = ordered_json::array({std::move(source)});
  }
  return writer.chunk(
      std::move(choice), s.body.timings_per_token ? ordered_json{{"timings", writer.timings_so_far(index)}} : ordered_json());
}

std::string Call::ended(size_t index, const Generation& generation) {
  State& s = *state_;
  State::Choice& c = s.choices[index];
  if (std::exchange(c.over, true)) return {};
  const Generation g = s.shown(generation);
  c.tokens = std::ssize(g.tokens);
  const ChunkWriter writer(s);
  ordered_json choice = writer.choice(index), extra;
  // What the engine held back, in case it might become a stop text, comes with the end.
  const std::string rest = g.text.substr(std::min(c.text_bytes, g.text.size())) + s.end_of_text(g);
  writer.put_text(index, rest, true, choice);
  writer.release_tokens(index, choice);
  choice["finish_reason"] = s.finish_reason(g, c.arguments);
  choice["stop_reason"] = s.stop_reason(g);
  const Generation* const one[] = {&g};
  extra["timings"] = timings_json(one);
  if (!s.body.include_usage && !s.limits.force_usage) extra["metrics"] = metrics_json(one, s.limits.speculation_metrics);
  s.ended[index] = without_columns(g);
  return writer.chunk(std::move(choice), extra);
}

std::string Call::closing() {
  State& s = *state_;
  std::string out;
  std::vector<const Generation*> all;
  for (const auto& g : s.ended)
    if (g) all.push_back(&*g);
  if ((s.body.include_usage || s.limits.force_usage) && all.size() == s.num_choices()) {
    ordered_json last = ChunkWriter(s).head();
    last["choices"] = ordered_json::array();
    last["usage"] = s.usage_of(all);
    last["timings"] = timings_json(all);
    last["metrics"] = metrics_json(all, s.limits.speculation_metrics);
    out = event_text(last);
  }
  return out + "data: [DONE]\n\n";
}

std::string Call::failed(const ApiError& error) { return "data: " + error_body(error) + "\n\n"; }

}
