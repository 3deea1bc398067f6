#include "api/answer_json.h"

#include <fmt/format.h>

#include <algorithm>

#include "api/json_text.h"
#include "engine/approximation.h"
#include "text/unicode.h"

namespace hunch {

using nlohmann::ordered_json;

std::string TokenNames::bytes(int32_t id) const {
  if (!tokenizer || (skip_special && tokenizer->is_special(id))) return {};
  return std::string(tokenizer->token_bytes(id));
}

std::string TokenNames::name(int32_t id) const {
  if (as_ids || !tokenizer) return fmt::format("token_id:{}", id);
  const std::string_view bytes = tokenizer->token_bytes(id);
  if (!first_invalid_utf8(bytes)) return std::string(bytes);
  std::string out = "bytes:";
  for (const unsigned char c : bytes) out += fmt::format("\\x{:02x}", int(c));
  return out;
}

ordered_json completion_logprobs(std::span<const ScoredToken> tokens, const TokenNames& names, int64_t& offset) {
  ordered_json words = ordered_json::array(), values = words, tops = words, offsets = words;
  for (const ScoredToken& token : tokens) {
    const std::string name = names.name(token.id);
    words.push_back(name);
    offsets.push_back(offset);
    // A character counts where it begins: the text holds it once, however many tokens make it.
    for (const char c : names.bytes(token.id)) offset += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    if (!token.scored) {
      values.push_back(nullptr), tops.push_back(nullptr);
      continue;
    }
    values.push_back(token.logprob);
    // Best first; of two tokens that are written alike the better one stays. The token itself is always among them.
    ordered_json top = ordered_json::object();
    for (const TokenLogprob& one : token.top)
      if (const std::string other = names.name(one.id); !top.contains(other)) top[other] = one.logprob;
    if (!top.contains(name)) top[name] = token.logprob;
    tops.push_back(std::move(top));
  }
  return {{"tokens", words}, {"token_logprobs", values}, {"top_logprobs", tops}, {"text_offset", offsets}};
}

namespace {

ordered_json named_logprob(int32_t id, float logprob, const TokenNames& names) {
  return {{"token", names.name(id)}, {"logprob", logprob},
      {"bytes", bytes_json(names.tokenizer ? names.tokenizer->token_bytes(id) : "")}};
}

}

ordered_json chat_logprobs(std::span<const ScoredToken> tokens, const TokenNames& names) {
  ordered_json content = ordered_json::array();
  for (const ScoredToken& token : tokens) {
    ordered_json one = named_logprob(token.id, token.logprob, names);
    ordered_json& top = one["top_logprobs"] = ordered_json::array();
    for (const TokenLogprob& other : token.top) top.push_back(named_logprob(other.id, other.logprob, names));
    content.push_back(std::move(one));
  }
  return {{"content", std::move(content)}};
}

ordered_json prompt_logprobs(const Generation& g, const TokenNames& names) {
  ordered_json out = ordered_json::array({nullptr});  // nothing stands before the first token
  const auto entry = [&](int32_t id, float logprob, ordered_json rank) -> ordered_json {
    return {{"logprob", logprob}, {"rank", std::move(rank)}, {"decoded_token", names.name(id)}};
  };
  for (size_t i = 0; i < g.prompt_logprobs.size(); ++i) {
    ordered_json one = ordered_json::object();
    const TokenLogprob& own = g.prompt_logprobs[i];
    one[std::to_string(own.id)] = entry(own.id, own.logprob, nullptr);
    if (i < g.prompt_top.size())
      for (int rank = 0; const TokenLogprob& other : g.prompt_top[i])
        one[std::to_string(other.id)] = entry(other.id, other.logprob, ++rank);
    out.push_back(std::move(one));
  }
  return out;
}

Generation scores_of(Generation g) {
  g.tokens.clear(), g.text.clear(), g.logprobs.clear(), g.top.clear();
  g.finish = FinishReason::Length, g.stopped_by.clear(), g.stopped_by_id = -1;
  return g;
}

std::vector<ScoredToken> scored_prompt(const Tokens& prompt, const Generation& g) {
  std::vector<ScoredToken> out;
  for (size_t i = 0; i < prompt.size(); ++i) {
    ScoredToken token{.id = prompt[i], .scored = i > 0 && i <= g.prompt_logprobs.size()};
    if (token.scored) {
      token.logprob = g.prompt_logprobs[i - 1].logprob;
      if (i <= g.prompt_top.size()) token.top = g.prompt_top[i - 1];
    }
    out.push_back(token);
  }
  return out;
}

std::vector<ScoredToken> scored_tokens(const Generation& g) {
  std::vector<ScoredToken> out;
  for (size_t i = 0; i < g.tokens.size() && i < g.logprobs.size(); ++i) {
    out.push_back({.id = g.tokens[i], .logprob = g.logprobs[i]});
    if (i < g.top.size()) out.back().top = g.top[i];
  }
  return out;
}

ordered_json usage_json(int64_t prompt, int64_t completion, int64_t cached, int64_t thoughts) {
  ordered_json out{
      {"prompt_tokens", prompt},
      {"completion_tokens", completion},
      {"total_tokens", prompt + completion},
      {"prompt_tokens_details", {{"cached_tokens", cached}}},
  };
  if (thoughts >= 0) out["completion_tokens_details"] = {{"reasoning_tokens", thoughts}};
  return out;
}

ordered_json timings_json(std::span<const Generation* const> generations) {
  int64_t cached = 0, prompt = 0, predicted = 0, steps = 0, drafted = 0, accepted = 0;
  double prompt_ms = 0, predicted_ms = 0;
  for (const Generation* g : generations) {
    cached += g->reused_tokens, prompt += g->prompt_tokens - g->reused_tokens;
    predicted += std::ssize(g->tokens), steps += std::max<int64_t>(0, std::ssize(g->tokens) - 1);
    drafted += g->drafted, accepted += g->accepted;
    prompt_ms = std::max(prompt_ms, g->milliseconds.prefill);
    predicted_ms = std::max(predicted_ms, g->milliseconds.first_to_last_token);
  }
  return {{"cache_n", cached}, {"prompt_n", prompt}, {"prompt_ms", prompt_ms},
      {"prompt_per_second", per_second(prompt, prompt_ms)}, {"predicted_n", predicted}, {"predicted_ms", predicted_ms},
      {"predicted_per_second", per_second(steps, predicted_ms)}, {"draft_n", drafted}, {"draft_n_accepted", accepted}};
}

namespace {

// [accepted] rounds, dense.
void count(std::vector<int64_t>& histogram, size_t accepted) {
  if (histogram.size() <= accepted) histogram.resize(accepted + 1);
  ++histogram[accepted];
}

ordered_json speculation_json(std::span<const Generation* const> generations, bool detailed) {
  Generation all;  // the counts of all, so that the rates are those of Generation
  std::vector<int64_t> histogram;
  std::vector<std::vector<int64_t>> by_length;
  ordered_json step_accepted = ordered_json::array(), step_drafted = ordered_json::array();
  for (const Generation* g : generations) {
    all.rounds += g->rounds, all.drafted += g->drafted, all.accepted += g->accepted;
    all.gamma = std::max(all.gamma, g->gamma);
    for (const DraftRound& round : g->draft_rounds) {
      count(histogram, round.accepted);
      if (by_length.size() <= round.drafted) by_length.resize(round.drafted + 1);
      count(by_length[round.drafted], round.accepted);
      if (detailed) step_accepted.push_back(round.accepted), step_drafted.push_back(round.drafted);
    }
  }
  if (all.gamma > 0 && histogram.size() <= size_t(all.gamma)) histogram.resize(all.gamma + 1);
  ordered_json lengths = ordered_json::object();
  for (size_t i = 0; i < by_length.size(); ++i)
    if (!by_length[i].empty()) lengths[std::to_string(i)] = by_length[i];
  ordered_json out{{"mean_acceptance_length", all.mean_acceptance_length()},
      {"draft_acceptance_rate", all.drafted > 0 ? ordered_json(double(all.accepted) / double(all.drafted)) : ordered_json()},
      {"acceptance_histogram", histogram}, {"acceptance_histogram_by_draft_length", std::move(lengths)},
      {"num_spec_steps", all.rounds}, {"num_accepted_draft_tokens", all.accepted}, {"num_draft_tokens", all.drafted},
      {"num_spec_tokens", all.gamma}};
  if (detailed) out["per_step_accepted"] = std::move(step_accepted), out["per_step_drafted"] = std::move(step_drafted);
  return out;
}

}

ordered_json metrics_json(std::span<const Generation* const> generations, ApiLimits::SpeculationMetrics detail) {
  using Detail = ApiLimits::SpeculationMetrics;
  ordered_json out;
  const Generation& first = *generations.front();
  if (detail != Detail::None) out["speculative_decoding"] = speculation_json(generations, detail == Detail::Detailed);
  Generation all;  // sums, for the rates
  for (const Generation* g : generations) {
    all.lossless = all.lossless && g->lossless, all.approximation.add(g->approximation);
    if (!g->warning.empty()) all.warning = g->warning;
    const Timings& ms = g->milliseconds;
    all.milliseconds.prefill += ms.prefill, all.milliseconds.draft += ms.draft;
    all.milliseconds.verify += ms.verify, all.milliseconds.select += ms.select;
    all.plain_tokens += g->plain_tokens, all.plain_milliseconds += g->plain_milliseconds;
    add_to(all.drafted_by_position, g->drafted_by_position), add_to(all.accepted_by_position, g->accepted_by_position);
  }
  out["acceptance_by_position"] = all.acceptance_by_position();
  const Timings& ms = all.milliseconds;
  out["time_ms"] = {{"prefill", ms.prefill}, {"draft", ms.draft}, {"verify", ms.verify}, {"select", ms.select}};
  // What this engine, by the costs that it measured, would have reached without guesses, in the same company.
  const double plain = all.plain_tokens_per_second();
  out["plain_tokens_per_second"] = plain > 0 ? ordered_json(plain) : ordered_json();
  out["drafter"] = first.proposer, out["policy"] = first.policy, out["rule"] = first.rule;
  out["lossless"] = all.lossless;
  if (all.approximation.any()) out["approx"] = approximation_json(all.approximation);
  out["seed"] = int64_t(first.seed);
  if (!all.warning.empty()) out["warning"] = all.warning;
  return out;
}

std::string_view openai_finish(FinishReason reason) { return reason == FinishReason::Stop ? "stop" : "length"; }

}
