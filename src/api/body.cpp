// A table of keys, each with the function that reads it: a new parameter is one entry. null means absent everywhere, as in
// OpenAI's clients, which send the keys of their whole form.
#include "api/body.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "api/body_keys.h"
#include "api/nearest.h"
#include "engine/sampling_options.h"
#include "text/excerpt.h"

namespace hunch {
namespace {

constexpr double kMostTokens = double(int64_t(1) << 40), kAny = std::numeric_limits<double>::max();
constexpr double kMostTemperature = 100, kGreedyBelow = 1e-5;  // vLLM's: as good as greedy, and divisions by it overflow
constexpr double kMostPriority = double(int64_t(1) << 30), kMostSeconds = 86400;

Status read_seed(const Field& v, BodyReader& in) {
  auto& seed = in.out.request.sampling.seed;
  int64_t any = 0;
  const bool batch = in.kind == BodyKind::Batch;  // stricter with what a whole file is made of
  if (v.get(any) != SUCCESS || (any < -1 && batch))
    return wrong(v, " must be -1 (random) or a whole number in {}..{}", batch ? 0 : INT64_MIN, INT64_MAX);
  if (any == -1) seed.reset();  // random, as in llama.cpp
  else seed = uint64_t(any);
  return {};
}

Status read_temperature(const Field& v, BodyReader& in) {
  HUNCH_TRY(const double t, number_value(v, {0, kMostTemperature}));
  in.out.request.sampling.temperature = t < kGreedyBelow ? 0 : t;
  return {};
}

Status read_top_k(const Field& v, BodyReader& in) {
  HUNCH_TRY(const int64_t k, whole_value(v, {-1, kMostId}));
  in.out.request.sampling.top_k = int(std::max<int64_t>(0, k));  // vLLM's -1 and llama.cpp's 0: all
  return {};
}

Status read_max_tokens(const Field& v, BodyReader& in) {
  const bool batch = in.kind == BodyKind::Batch;
  HUNCH_TRY(const int64_t n, whole_value(v, {v.key == "n_predict" ? -1.0 : 0.0, kMostTokens}));  // llama.cpp's -1: no limit
  in.out.request.max_tokens = n;
  in.out.limited = n >= 0 && (!batch || n == 0);  // a batch gives what the context has room for
  in.out.endless = n < 0;
  in.out.limit_key = v.key;
  return {};
}

// A number of alternatives (completions), or whether there are any (chat; top_logprobs then says how many).
Status read_logprobs(const Field& v, BodyReader& in) {
  int& logprobs = in.out.request.sampling.logprobs;
  bool on = false;
  if (v.get(on) == SUCCESS) {
    logprobs = on ? std::max(0, logprobs) : -1;
    return {};
  }
  HUNCH_TRY(const int64_t n, whole_value(v, {0, kMaxLogprobs}));
  if (v.key != "n_probs" || n > 0) logprobs = int(n);  // llama.cpp's 0: none
  return {};
}

Status read_logit_bias(const Field& v, BodyReader& in) {
  object entries;
  if (v.get(entries) != SUCCESS) return wanted(v, "an object of token ids and numbers");
  auto& biases = in.out.request.sampling.logit_bias;
  biases.clear();
  for (const auto& [name, value] : entries) {
    if (biases.size() == kMaxLogitBias) return wrong(v, " has more than {} entries", kMaxLogitBias);
    int32_t id = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
    if (error != std::errc() || end != name.data() + name.size() || id < 0) return wrong(v, ": {} is no token id", excerpt(name));
    HUNCH_TRY(const double bias, number_value({value, v.key}, {-100, 100}));
    biases.emplace_back(id, float(bias));
  }
  return check_keys(entries, in.fault);
}

Status read_stop(const Field& v, BodyReader& in) {
  array none;
  if (v.get(none) == SUCCESS && none.size() == 0) return in.out.request.stop.clear(), Status();
  HUNCH_TRY(in.out.request.stop, texts_value(v, kMaxStopTexts));
  return check_stop_texts(in.out.request.stop);
}

Status read_stream_options(const Field& v, BodyReader& in) {
  object options;
  if (v.get(options) != SUCCESS) return wanted(v, "an object");
  HUNCH_OK(check_keys(options, in.fault));
  for (const auto& [name, value] : options) {
    if (value.is_null()) continue;
    bool* target = name == "include_usage" ? &in.out.include_usage
        : name == "continuous_usage_stats" ? &in.out.continuous_usage
                                           : nullptr;
    if (!target) continue;
    HUNCH_TRY(*target, truth_value({value, name}));
  }
  return {};
}

Status read_allowed_ids(const Field& v, BodyReader& in) {
  HUNCH_TRY(in.out.request.sampling.allowed_token_ids, ids_value(v));
  if (!in.out.request.sampling.allowed_token_ids.empty()) return {};
  return wrong(v, " is empty, so that nothing may follow: leave it out to allow all");
}

Status read_salt(const Field& v, BodyReader& in) {
  std::string_view salt;  // any bytes will do: it is compared and never shown
  if (v.get(salt) != SUCCESS) return wanted(v, "a string");
  if (salt.size() > kMaxSaltBytes) return wrong(v, " has {} bytes; at most {} are allowed", salt.size(), kMaxSaltBytes);
  in.out.request.cache_salt = std::string(salt);
  return {};
}

Status read_request_id(const Field& v, BodyReader& in) {
  HUNCH_TRY(std::string id, text_value(v));
  if (id.empty() || id.size() > 128 || !std::ranges::all_of(id, [](unsigned char c) { return c > ' ' && c < 127; }))
    return wrong(v, " must be 1 to 128 printable characters without blanks");
  in.out.request_id = std::move(id);
  return {};
}

constexpr unsigned kBatch = 1, kText = 2, kChat = 4, kHttp = kText | kChat, kAll = 7;
struct Key {
  std::string_view name;
  KeyReader* read;
  unsigned kinds = kAll;
};
constexpr unsigned bit(BodyKind kind) { return kind == BodyKind::Batch ? kBatch : kind == BodyKind::Chat ? kChat : kText; }

// Readers of the common kinds, made from where the value goes.
#define HUNCH_VALUE(reader, target, ...) \
  [](const Field& v, BodyReader& in) -> Status { \
    HUNCH_TRY(auto value, reader(v __VA_OPT__(, ) __VA_ARGS__)); \
    in.out.target = static_cast<std::decay_t<decltype(in.out.target)>>(std::move(value)); \
    return {}; \
  }
#define HUNCH_NUMBER(target, ...) HUNCH_VALUE(number_value, request.sampling.target, Range{__VA_ARGS__})
#define HUNCH_WHOLE(target, ...) HUNCH_VALUE(whole_value, target, Range{__VA_ARGS__})
#define HUNCH_TRUTH(target) HUNCH_VALUE(truth_value, target)
// A whole number that goes nowhere.
#define HUNCH_CHECKED(...) \
  [](const Field& v, BodyReader&) -> Status { \
    HUNCH_OK(whole_value(v, {__VA_ARGS__})); \
    return {}; \
  }
Status ignore(const Field&, BodyReader&) { return {}; }
Status refuse(const Field& v, BodyReader&) {
  bool on = true;
  array none;
  if ((v.get(on) == SUCCESS && !on) || (v.get(none) == SUCCESS && none.size() == 0)) return {};  // switched off is fine
  return wrong(v, " is not available: leave it out");
}
Status refuse_suffix(const Field& v, BodyReader& in) {
  std::string_view s;
  return v.get(s) == SUCCESS && s.empty() ? Status() : refuse(v, in);
}
// Of llama.cpp's: switched off only.
Status refuse_sampler(const Field& v, BodyReader& in) {
  double x = 0;
  const double off = v.key == "typical_p" ? 1 : v.key == "top_n_sigma" ? -1 : 0;
  return v.get(x) == SUCCESS && x == off ? Status() : refuse(v, in);
}
Status elsewhere(const Field& v, BodyReader&) {
  return wrong(v, " belongs to /v1/{}", v.key == "messages" ? "chat/completions" : "completions");
}

const Key kKeys[] = {
    {"prompt", read_prompt, kBatch | kText},
    {"prompt", elsewhere, kChat},
    {"messages", read_messages, kBatch | kChat},
    {"messages", elsewhere, kText},
    {"model", HUNCH_VALUE(text_value, model)},
    {"max_tokens", read_max_tokens},
    {"n_predict", read_max_tokens, kHttp},
    {"max_completion_tokens", read_max_tokens},
    {"temperature", read_temperature},
    {"top_p", HUNCH_NUMBER(top_p, 0, 1, true)},
    {"top_k", read_top_k},
    {"min_p", HUNCH_NUMBER(min_p, 0, 1)},
    {"seed", read_seed},
    {"n", HUNCH_WHOLE(samples, 1, kMaxSamples)},
    {"best_of", HUNCH_CHECKED(1, kAny), kHttp},  // compared with n once that is known
    {"stop", read_stop},
    {"stop_token_ids", HUNCH_VALUE(ids_value, request.stop_ids, kMaxIdList)},
    {"ignore_eos", HUNCH_TRUTH(request.ignore_eos)},
    {"min_tokens", HUNCH_WHOLE(request.sampling.min_tokens, 0, kMostTokens)},
    {"logprobs", read_logprobs},
    {"n_probs", read_logprobs, kHttp},
    {"top_logprobs", HUNCH_WHOLE(request.sampling.logprobs, 0, kMaxLogprobs)},
    {"prompt_logprobs", HUNCH_WHOLE(request.sampling.prompt_logprobs, 0, kMaxLogprobs)},
    {"presence_penalty", HUNCH_NUMBER(presence_penalty, -2, 2)},
    {"frequency_penalty", HUNCH_NUMBER(frequency_penalty, -2, 2)},
    {"repetition_penalty", HUNCH_NUMBER(repetition_penalty, 0.01, 100)},
    {"repeat_penalty", HUNCH_NUMBER(repetition_penalty, 0.01, 100), kHttp},
    {"repeat_last_n", HUNCH_CHECKED(-1, kMostTokens), kHttp},  // the window of penalties; see settle()
    {"logit_bias", read_logit_bias},
    {"bad_words", HUNCH_VALUE(texts_value, bad_words, kMaxIdList)},
    {"allowed_token_ids", read_allowed_ids},
    {"priority", HUNCH_WHOLE(request.priority, -kMostPriority, kMostPriority)},
    {"cache_prompt", HUNCH_TRUTH(request.cache_prompt)},
    {"cache_salt", read_salt},
    {"skip_special_tokens", HUNCH_TRUTH(request.skip_special_tokens)},
    {"add_special_tokens", HUNCH_TRUTH(add_special_tokens)},
    {"truncate_prompt_tokens", HUNCH_WHOLE(truncate_prompt, 1, kMostId), kHttp},
    {"truncate_prompt_tokens", refuse, kBatch},
    {"echo", HUNCH_TRUTH(echo), kBatch | kText},
    {"echo", refuse, kChat},
    {"include_stop_str_in_output", HUNCH_TRUTH(include_stop), kHttp},
    {"include_stop_str_in_output", refuse, kBatch},
    {"speculative_config", read_speculative_config},
    {"lossless", read_lossless},
    {"response_format", read_response_format},
    {"structured_outputs", read_structured_outputs},
    {"guided_json", read_guided},
    {"guided_regex", read_guided},
    {"guided_choice", read_guided},
    {"guided_grammar", read_guided},
    {"json_schema", read_guided, kHttp},
    {"grammar", read_guided, kHttp},
    {"stream", HUNCH_TRUTH(stream), kHttp},
    {"stream_options", read_stream_options, kHttp},
    {"timings_per_token", HUNCH_TRUTH(timings_per_token), kHttp},
    {"return_tokens", HUNCH_TRUTH(return_tokens), kHttp},
    {"return_token_ids", HUNCH_TRUTH(return_token_ids), kHttp},
    {"return_token_sources", HUNCH_TRUTH(return_token_sources), kHttp},
    {"return_tokens_as_token_ids", HUNCH_TRUTH(tokens_as_ids), kHttp},
    {"request_id", read_request_id, kHttp},
    {"id_slot", HUNCH_CHECKED(-1, kMostId), kHttp},  // requests are placed by their prefixes here
    {"timeout", HUNCH_VALUE(number_value, timeout_seconds, Range{0, kMostSeconds, true}), kHttp},
    {"tools", read_tools, kChat},
    {"tool_choice", read_tool_choice, kChat},
    {"parallel_tool_calls", HUNCH_TRUTH(parallel_tool_calls), kChat},
    {"include_reasoning", HUNCH_TRUTH(include_reasoning), kChat},
    {"chat_template_kwargs", read_template_kwargs, kChat},
    {"reasoning_effort", read_template_kwargs, kChat},
    {"chat_template", HUNCH_VALUE(text_value, chat_template), kChat},  // taken only where clients are trusted with it
    {"add_generation_prompt", HUNCH_TRUTH(add_generation_prompt), kChat},
    // For servers and their accounts: nothing here depends on them.
    {"user", ignore},
    {"metadata", ignore},
    {"store", ignore},
    {"service_tier", ignore},
    {"return_progress", ignore, kHttp},
    {"spaces_between_special_tokens", ignore, kHttp},
    {"guided_decoding_backend", ignore, kHttp},
    {"guided_whitespace_pattern", refuse},
    // Known elsewhere, and not here.
    {"suffix", refuse_suffix},
    {"mirostat", refuse_sampler},
    {"dry_multiplier", refuse_sampler},
    {"xtc_probability", refuse_sampler},
    {"dynatemp_range", refuse_sampler},
    {"typical_p", refuse_sampler},
    {"top_n_sigma", refuse_sampler},
    {"use_beam_search", refuse},
    {"functions", refuse},
    {"function_call", refuse, kHttp},
    {"prompt_embeds", refuse, kHttp},
    {"continue_final_message", refuse, kChat},
    {"audio", refuse, kHttp},
    {"stream", refuse, kBatch},
    {"stream_options", refuse, kBatch},
    {"best_of", refuse, kBatch},
    {"tools", refuse, kBatch},
    {"tool_choice", refuse, kBatch},
};
#undef HUNCH_NUMBER
#undef HUNCH_WHOLE
#undef HUNCH_TRUTH
#undef HUNCH_VALUE
#undef HUNCH_CHECKED

const Key* find_key(std::string_view name, BodyKind kind) {
  const auto at = std::ranges::find_if(kKeys, [&](const Key& key) { return key.name == name && (key.kinds & bit(kind)); });
  return at == std::end(kKeys) ? nullptr : at;
}

// What two keys say together; the order in which they stand must not matter.
Status settle(const object& fields, BodyReader& in) {
  Body& out = in.out;
  const auto number = [&](std::string_view key) {
    double x = 0;
    return fields[key].get(x) == SUCCESS ? x : -1;
  };
  const auto blame = [&](std::string_view param, std::string message) {
    in.fault.param = param;
    return usage_error(std::move(message));
  };
  if (out.input == Body::Input::None) {
    const std::string_view missing = in.kind == BodyKind::Chat ? "messages" : "prompt";
    return blame(missing, in.kind == BodyKind::Batch ? "no \"prompt\" and no \"messages\"" : fmt::format("no \"{}\"", missing));
  }
  if (out.input == Body::Input::Chat && out.echo) return blame("echo", "\"echo\" is for \"prompt\", not for \"messages\"");
  SamplingOptions& sampling = out.request.sampling;
  const bool penalized = sampling.repetition_penalty != 1 || sampling.presence_penalty != 0 || sampling.frequency_penalty != 0;
  if (const double n = number("repeat_last_n"); n == 0)
    sampling.repetition_penalty = 1, sampling.presence_penalty = sampling.frequency_penalty = 0;
  else if (n > 0 && penalized)
    return blame("repeat_last_n", "\"repeat_last_n\": penalties look at the whole text here; set it to -1, or to 0 for none");
  for (const std::string_view key : {"max_tokens", "max_completion_tokens"})  // the newer word wins
    if (const double n = number(key); n >= 0)
      out.request.max_tokens = int64_t(n), out.limited = in.kind != BodyKind::Batch || n == 0, out.limit_key = key;
  bool on = false;
  if (number("top_logprobs") >= 0) {
    if (number("logprobs") < 0 && (fields["logprobs"].get(on) != SUCCESS || !on)) {
      // 0 others of no tokens asks for nothing; SDKs send it.
      if (number("top_logprobs") > 0 || in.kind == BodyKind::Batch)
        return blame("top_logprobs", "\"top_logprobs\" needs \"logprobs\": true");
      sampling.logprobs = -1;
    } else {
      sampling.logprobs = std::max(int(number("top_logprobs")), int(number("logprobs")));
    }
  }
  if (const double best_of = number("best_of"); best_of >= 0 && best_of != out.samples)
    return blame("best_of", "\"best_of\" must equal \"n\": samples are not ranked here");
  const bool limited = out.limited || number("max_tokens") > 0 || number("max_completion_tokens") > 0;
  if (limited && sampling.min_tokens > out.request.max_tokens)
    return blame("min_tokens",
        fmt::format("\"min_tokens\" is {}, more than \"max_tokens\", which is {}", sampling.min_tokens, out.request.max_tokens));
  if (!out.stream && fields["stream_options"].is_object())
    return blame("stream_options", "\"stream_options\" needs \"stream\": true");
  if (out.stream && sampling.prompt_logprobs >= 0)
    return blame("prompt_logprobs", "\"prompt_logprobs\" come in one piece: set \"stream\" to false");
  if (out.stream && out.echo && sampling.logprobs >= 0)
    return blame("echo", "\"echo\" with \"logprobs\" comes in one piece: set \"stream\" to false");
  const size_t prompts = std::max<size_t>(1, out.prompts.size());
  if (prompts * size_t(out.samples) > size_t(kMaxChoices))
    return blame(
        "n", fmt::format("\"n\" is {} for {} prompts: at most {} choices are made at once", out.samples, prompts, kMaxChoices));
  if (out.constrained && (out.tool_choice == Body::ToolChoice::Required || out.tool_choice == Body::ToolChoice::Named))
    return blame("tool_choice", "\"tool_choice\" asks for a call, and its form is fixed: leave the other constraint out");
  return {};
}

}

Status check_keys(const object& fields, BodyFault& fault) {
  std::vector<std::string_view> names;
  for (const auto& [name, value] : fields) {
    if (names.size() == kMaxBodyKeys) {
      fault.code = "too_many_fields";
      return usage_error("the request has more than {} keys", kMaxBodyKeys);
    }
    names.push_back(name);
  }
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice == names.end()) return {};
  fault.param = twice->substr(0, 64);
  return usage_error("the key {} stands there twice", excerpt(*twice));
}

Status read_fields(const object& fields, BodyReader& in) {
  const bool batch = in.kind == BodyKind::Batch;
  HUNCH_OK(check_keys(fields, in.fault));
  for (const auto& [name, value] : fields) {
    const Key* key = find_key(name, in.kind);
    in.fault.param = name.substr(0, 64);
    if (!key) {
      if (!batch) {
        HUNCH_OK(check_no_speculation_meant(name));
        ++in.out.unknown_keys;
        continue;
      }
      if (name == "id" || name == "custom_id" || value.is_null()) continue;
      auto known = settable_keys(in.kind);
      known.insert(known.end(), {"id", "custom_id"});
      return usage_error("unknown key {}{}", excerpt(name), did_you_mean(name, known));
    }
    if (value.is_null()) continue;
    HUNCH_OK(key->read({value, name}, in));
  }
  in.fault.param.clear();
  return settle(fields, in);
}

std::vector<std::string_view> settable_keys(BodyKind kind) {
  std::vector<std::string_view> out;
  for (const Key& key : kKeys)
    if ((key.kinds & bit(kind)) && key.read != ignore && key.read != refuse && key.read != elsewhere &&
        key.read != refuse_suffix && key.read != refuse_sampler)
      out.push_back(key.name);
  return out;
}

Status read_body(std::string_view json, BodyKind kind, Body& out, BodyFault& fault) {
  BodyReader in{kind, out, fault};
  simdjson::dom::parser parser;
  HUNCH_TRY(const element root, parse_json(parser, json));
  object fields;
  if (root.get(fields) != SUCCESS) return wanted({root, "body"}, "an object");
  return read_fields(fields, in);
}

}
