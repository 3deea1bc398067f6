// A table of keys, each with the function that reads it: a new parameter is one entry. null means absent everywhere, as in
// OpenAI's clients, which send the keys of their whole form.
#include "api/batch_line.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "api/nearest.h"
#include "api/values.h"
#include "engine/sampling_options.h"
#include "text/excerpt.h"

namespace hunch {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::element_type;
using simdjson::dom::object;

constexpr size_t kMaxDepth = 16;
constexpr double kMostId = 1 << 30, kMostTokens = double(int64_t(1) << 40);

std::string_view kind_name(const element& v) {
  switch (v.type()) {
    case element_type::NULL_VALUE: return "null";
    case element_type::BOOL: return "true or false";
    case element_type::STRING: return "a string";
    case element_type::ARRAY: return "a list";
    case element_type::OBJECT: return "an object";
    default: return "a number";
  }
}

Error wanted(std::string_view key, std::string_view what, const element& v) {
  return usage_error(fmt::format("\"{}\" must be {}, not {}", key, what, kind_name(v)));
}

Result<double> number(std::string_view key, const element& v, const Range& range) {
  double x = 0;
  if (v.get(x) != simdjson::SUCCESS) return wanted(key, fmt::format("a number {}", range.text()), v);
  if (!range.holds(x)) return usage_error(fmt::format("\"{}\" must be a number {}, not {:g}", key, range.text(), x));
  return x;
}

Result<int64_t> whole(std::string_view key, const element& v, const Range& range) {
  double x = 0;
  if (v.get(x) != simdjson::SUCCESS) return wanted(key, fmt::format("a whole number {}", range.text()), v);
  if (!range.holds(x) || x != std::floor(x))
    return usage_error(fmt::format("\"{}\" must be a whole number {}, not {:g}", key, range.text(), x));
  return int64_t(x);
}

Result<bool> truth(std::string_view key, const element& v) {
  bool b = false;
  if (v.get(b) != simdjson::SUCCESS) return wanted(key, "true or false", v);
  return b;
}

Result<std::string> text(std::string_view key, const element& v) {
  std::string_view s;
  if (v.get(s) != simdjson::SUCCESS) return wanted(key, "a string", v);
  return std::string(s);
}

Result<std::vector<int32_t>> token_ids(std::string_view key, const element& v) {
  array list;
  if (v.get(list) != simdjson::SUCCESS) return wanted(key, "a list of token ids", v);
  std::vector<int32_t> ids;
  for (const element item : list) {
    HUNCH_TRY(const int64_t id, whole(key, item, {0, kMostId}));
    ids.push_back(int32_t(id));
  }
  return ids;
}

// A string or a list of strings, none of them empty.
Result<std::vector<std::string>> texts(std::string_view key, const element& v) {
  std::vector<std::string> out;
  array list;
  if (v.get(list) == simdjson::SUCCESS) {
    for (const element item : list) {
      HUNCH_TRY(std::string s, text(key, item));
      out.push_back(std::move(s));
    }
  } else {
    if (!v.is_string()) return wanted(key, "a string or a list of strings", v);
    HUNCH_TRY(std::string s, text(key, v));
    out.push_back(std::move(s));
  }
  if (std::find(out.begin(), out.end(), "") != out.end())
    return usage_error(fmt::format("\"{}\" holds an empty string: leave it out", key));
  return out;
}

Status read_prompt(std::string_view key, const element& v, BatchLine& out) {
  if (out.prompt != BatchLine::Prompt::None) return usage_error("\"prompt\" and \"messages\" exclude each other");
  array list;
  if (v.is_string()) {
    out.prompt = BatchLine::Prompt::Text;
    HUNCH_TRY(out.text, text(key, v));
    return {};
  }
  if (v.get(list) != simdjson::SUCCESS) return wanted(key, "a string or a list of token ids", v);
  for (const element item : list)
    if (item.is_string() || item.is_array()) return usage_error("\"prompt\" is a list of prompts: write one prompt a line");
  out.prompt = BatchLine::Prompt::Ids;
  HUNCH_TRY(out.request.prompt, token_ids(key, v));
  return {};
}

// The text of a message: a string, or OpenAI's list of parts where all are texts.
Result<std::string> content_text(const element& v) {
  array parts;
  if (v.get(parts) != simdjson::SUCCESS) return text("content", v);
  std::string all;
  for (const element part : parts) {
    std::string_view type, words;
    if (part["type"].get(type) != simdjson::SUCCESS || type != "text" || part["text"].get(words) != simdjson::SUCCESS)
      return usage_error("\"content\" holds a part that is no text: this engine reads text only");
    all += words;
  }
  return all;
}

Status read_messages(std::string_view key, const element& v, BatchLine& out) {
  if (out.prompt != BatchLine::Prompt::None) return usage_error("\"prompt\" and \"messages\" exclude each other");
  array list;
  if (v.get(list) != simdjson::SUCCESS) return wanted(key, "a list of messages", v);
  out.prompt = BatchLine::Prompt::Chat;
  for (const element message : list) {
    object fields;
    if (message.get(fields) != simdjson::SUCCESS)
      return wanted("messages", "a list of objects with \"role\" and \"content\"", message);
    ChatTurn turn;
    bool role = false, content = false;
    for (const auto& [name, value] : fields) {
      if (name == "role" && !role) {
        role = true;
        HUNCH_TRY(turn.role, text("role", value));
      } else if (name == "content" && !content) {
        content = true;
        HUNCH_TRY(turn.content, content_text(value));
      } else if (!value.is_null()) {
        return usage_error(
            fmt::format("a message's {} cannot be used: it has \"role\" and \"content\", once each", excerpt(name)));
      }
    }
    if (!role || !content)
      return usage_error(fmt::format("message {} lacks \"{}\"", out.turns.size(), role ? "content" : "role"));
    if (turn.role == "developer") turn.role = "system";  // OpenAI's newer word
    out.turns.push_back(std::move(turn));
  }
  return {};
}

Status read_seed(std::string_view key, const element& v, BatchLine& out) {
  uint64_t seed = 0;
  int64_t negative = 0;
  if (v.get(seed) == simdjson::SUCCESS) out.request.sampling.seed = seed;
  else if (v.get(negative) == simdjson::SUCCESS && negative == -1) out.request.sampling.seed.reset();  // random, as in llama.cpp
  else return usage_error(fmt::format("\"{}\" must be -1 (random) or a whole number in 0..18446744073709551615", key));
  return {};
}

// A number of alternatives (completions), or whether there are any (chat; top_logprobs then says how many).
Status read_logprobs(std::string_view key, const element& v, BatchLine& out) {
  int& logprobs = out.request.sampling.logprobs;
  bool on = false;
  if (v.get(on) == simdjson::SUCCESS) {
    logprobs = on ? std::max(0, logprobs) : -1;
    return {};
  }
  HUNCH_TRY(const int64_t n, whole(key, v, {0, kMaxLogprobs}));
  logprobs = int(n);
  return {};
}

Status read_logit_bias(std::string_view key, const element& v, BatchLine& out) {
  object entries;
  if (v.get(entries) != simdjson::SUCCESS) return wanted(key, "an object of token ids and numbers", v);
  out.request.sampling.logit_bias.clear();
  for (const auto& [name, value] : entries) {
    int32_t id = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
    if (error != std::errc() || end != name.data() + name.size() || id < 0)
      return usage_error(fmt::format("\"{}\": {} is no token id", key, excerpt(name)));
    HUNCH_TRY(const double bias, number(key, value, {-100, 100}));
    out.request.sampling.logit_bias.emplace_back(id, float(bias));
  }
  return {};
}

struct Key {
  std::string_view name;
  Status (*read)(std::string_view key, const element&, BatchLine&);
};

// Readers of the common kinds, made from where the value goes.
#define HUNCH_BATCH_VALUE(reader, target, ...) \
  [](std::string_view key, const element& v, BatchLine& out) -> Status { \
    HUNCH_TRY(const auto value, reader(key, v __VA_OPT__(, ) __VA_ARGS__)); \
    out.target = static_cast<std::decay_t<decltype(out.target)>>(value); \
    return {}; \
  }
Status ignore(std::string_view, const element&, BatchLine&) { return {}; }
Status refuse(std::string_view key, const element& v, BatchLine&) {
  bool on = true;
  if (v.get(on) == simdjson::SUCCESS && !on) return {};  // switched off is fine
  return usage_error(fmt::format("\"{}\" is not available: leave it out", key));
}

constexpr double kAny = std::numeric_limits<double>::max();

const Key kKeys[] = {
    {"prompt", read_prompt},
    {"messages", read_messages},
    {"model", HUNCH_BATCH_VALUE(text, model)},
    {"max_tokens", HUNCH_BATCH_VALUE(whole, request.max_tokens, Range{1, kMostTokens})},
    {"max_completion_tokens", HUNCH_BATCH_VALUE(whole, request.max_tokens, Range{1, kMostTokens})},
    {"temperature", HUNCH_BATCH_VALUE(number, request.sampling.temperature, Range{0, kAny})},
    {"top_p", HUNCH_BATCH_VALUE(number, request.sampling.top_p, Range{0, 1, true})},
    {"top_k",
     [](std::string_view key, const element& v, BatchLine& out) -> Status {
       HUNCH_TRY(const int64_t k, whole(key, v, {-1, kMostId}));
       out.request.sampling.top_k = int(std::max<int64_t>(0, k));  // vLLM's -1 and llama.cpp's 0: all
       return {};
     }},
    {"min_p", HUNCH_BATCH_VALUE(number, request.sampling.min_p, Range{0, 1})},
    {"seed", read_seed},
    {"n", HUNCH_BATCH_VALUE(whole, samples, Range{1, kMaxSamples})},
    {"stop", HUNCH_BATCH_VALUE(texts, request.stop)},
    {"stop_token_ids", HUNCH_BATCH_VALUE(token_ids, request.stop_ids)},
    {"ignore_eos", HUNCH_BATCH_VALUE(truth, request.ignore_eos)},
    {"min_tokens", HUNCH_BATCH_VALUE(whole, request.sampling.min_tokens, Range{0, kMostTokens})},
    {"logprobs", read_logprobs},
    {"top_logprobs", HUNCH_BATCH_VALUE(whole, request.sampling.logprobs, Range{0, kMaxLogprobs})},
    {"prompt_logprobs", HUNCH_BATCH_VALUE(whole, request.sampling.prompt_logprobs, Range{0, kMaxLogprobs})},
    {"presence_penalty", HUNCH_BATCH_VALUE(number, request.sampling.presence_penalty, Range{-2, 2})},
    {"frequency_penalty", HUNCH_BATCH_VALUE(number, request.sampling.frequency_penalty, Range{-2, 2})},
    {"repetition_penalty", HUNCH_BATCH_VALUE(number, request.sampling.repetition_penalty, Range{0, kAny, true})},
    {"logit_bias", read_logit_bias},
    {"bad_words", HUNCH_BATCH_VALUE(texts, bad_words)},
    {"allowed_token_ids", HUNCH_BATCH_VALUE(token_ids, request.sampling.allowed_token_ids)},
    {"priority", HUNCH_BATCH_VALUE(whole, request.priority, Range{-kMostId, kMostId})},
    {"cache_prompt", HUNCH_BATCH_VALUE(truth, request.cache_prompt)},
    {"echo", HUNCH_BATCH_VALUE(truth, echo)},
    {"speculative_config",
     [](std::string_view key, const element& v, BatchLine& out) -> Status {
       if (!v.is_object()) return wanted(key, "an object", v);
       out.speculation = simdjson::minify(v);
       return {};
     }},
    // For servers and their accounts: nothing here depends on them.
    {"user", ignore},
    {"metadata", ignore},
    {"store", ignore},
    {"service_tier", ignore},
    // Known elsewhere, and not here.
    {"stream", refuse},
    {"stream_options", refuse},
    {"suffix", refuse},
    {"best_of", refuse},
    {"use_beam_search", refuse},
    {"tools", refuse},
    {"tool_choice", refuse},
    {"functions", refuse},
    {"response_format", refuse},
    {"guided_json", refuse},
    {"structured_outputs", refuse},
    {"truncate_prompt_tokens", refuse},
    {"include_stop_str_in_output", refuse},
};
#undef HUNCH_BATCH_VALUE

constexpr std::string_view kOuter[] = {"custom_id", "method", "url", "body"};

Error unknown_key(std::string_view name, bool wrapped) {
  std::vector<std::string_view> known{"id", "custom_id"};
  if (wrapped) known.assign(std::begin(kOuter), std::end(kOuter));
  else
    for (const Key& key : kKeys)
      if (key.read != ignore && key.read != refuse) known.push_back(key.name);
  return usage_error(fmt::format("unknown key {}{}", excerpt(name), did_you_mean(name, known)));
}

// Keys seen in one object: a repeated one would silently hide the other.
class Seen {
 public:
  Status add(std::string_view name) {
    if (std::find(names_.begin(), names_.end(), name) != names_.end())
      return usage_error(fmt::format("the key {} stands there twice", excerpt(name)));
    names_.push_back(name);
    return {};
  }
  bool has(std::string_view name) const { return std::find(names_.begin(), names_.end(), name) != names_.end(); }

 private:
  std::vector<std::string_view> names_;
};

Status read_request(const object& fields, BatchLine& out) {
  Seen seen;
  for (const auto& [name, value] : fields) {
    HUNCH_OK(seen.add(name));
    if (value.is_null() || (!out.wrapped && (name == "id" || name == "custom_id"))) continue;
    const auto key =
        std::find_if(std::begin(kKeys), std::end(kKeys), [&, wanted = name](const Key& k) { return k.name == wanted; });
    if (key == std::end(kKeys)) return unknown_key(name, false);
    HUNCH_OK(key->read(name, value, out));
  }
  if (out.prompt == BatchLine::Prompt::None) return usage_error("no \"prompt\" and no \"messages\"");
  if (out.prompt == BatchLine::Prompt::Chat && out.echo) return usage_error("\"echo\" is for \"prompt\", not for \"messages\"");
  bool both = false;  // order of keys must not matter: top_logprobs alone asks for nothing
  if (seen.has("top_logprobs") && (!seen.has("logprobs") || (fields["logprobs"].get(both) == simdjson::SUCCESS && !both)))
    return usage_error("\"top_logprobs\" needs \"logprobs\": true");
  return {};
}

// The id, kept as JSON so that 7 and "7" stay different.
Status read_id(const object& root, BatchLine& out) {
  element v;
  if (root["custom_id"].get(v) != simdjson::SUCCESS && root["id"].get(v) != simdjson::SUCCESS)
    return usage_error("no \"id\": every line needs one, as a string or a whole number");
  if (!v.is_string() && !v.is_int64() && !v.is_uint64()) return wanted("id", "a string or a whole number", v);
  out.id = simdjson::minify(v);
  return {};
}

}  // namespace

Status parse_batch_line(std::string_view json, BatchLine& out) {
  if (json.size() > kMaxBatchLineBytes)
    return usage_error(fmt::format("the line is longer than {} MiB", kMaxBatchLineBytes >> 20));
  simdjson::dom::parser parser;
  if (parser.allocate(std::max<size_t>(json.size(), 64), kMaxDepth) != simdjson::SUCCESS)
    return Error{"no memory to read the line"};
  element root;
  if (const auto error = parser.parse(json.data(), json.size()).get(root); error != simdjson::SUCCESS)
    return usage_error(fmt::format("not JSON: {}; it begins {}", simdjson::error_message(error), excerpt(json, 40)));
  object fields;
  if (root.get(fields) != simdjson::SUCCESS) return wanted("line", "an object", root);
  element body;
  out.wrapped = fields["body"].get(body) == simdjson::SUCCESS;
  HUNCH_OK(read_id(fields, out));
  if (!out.wrapped) return read_request(fields, out);
  Seen seen;
  for (const auto& [name, value] : fields) {
    HUNCH_OK(seen.add(name));
    if (std::find(std::begin(kOuter), std::end(kOuter), name) == std::end(kOuter) && name != "id") return unknown_key(name, true);
    if (name == "url" && !value.is_null()) {
      HUNCH_TRY(const std::string url, text(name, value));
      if (url != "/v1/completions" && url != "/v1/chat/completions")
        return usage_error(fmt::format("\"url\" must be /v1/completions or /v1/chat/completions, not {}", excerpt(url)));
    }
  }
  object inner;
  if (body.get(inner) != simdjson::SUCCESS) return wanted("body", "an object", body);
  return read_request(inner, out);
}

}  // namespace hunch
