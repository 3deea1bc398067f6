// The C interface over include/hunch/hunch.h. The edge where exceptions of third-party code and of the allocator end.
#include "hunch/hunch_c.h"

#include <exception>
#include <iterator>
#include <new>

#include "engine/parts.h"
#include "text/detokenizer.h"

using namespace hunch;

struct hunch_engine {
  std::unique_ptr<Engine> engine;
  std::atomic<int> streams{0};
};

struct hunch_stream {
  hunch_engine* owner = nullptr;
  std::unique_ptr<TokenStream> stream;
  TokenEvent event;  // what the last token points to
  std::unique_ptr<Generation> generation;
};

namespace {

hunch_status say(hunch_error* error, hunch_status status, std::string_view message) {
  if (!error) return status;
  const size_t n = std::min(message.size(), sizeof error->message - 1);
  std::memcpy(error->message, message.data(), n);
  error->message[n] = 0;
  return status;
}
hunch_status good(hunch_error* error) { return say(error, HUNCH_STATUS_OK, ""); }
hunch_status usage(hunch_error* error, std::string_view message) { return say(error, HUNCH_STATUS_USAGE, message); }
hunch_status failed(hunch_error* error, const Error& why) {
  return say(error, why.kind == Error::Kind::Usage ? HUNCH_STATUS_USAGE : HUNCH_STATUS_FAILURE, why.message);
}

// Runs `body`; what it throws becomes a failure.
template <class Body>
hunch_status guarded(hunch_error* error, Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) { return say(error, HUNCH_STATUS_FAILURE, "out of memory"); } catch (const std::exception& e) {
    return say(error, HUNCH_STATUS_FAILURE, e.what());
  }
}

constexpr const char* kNoSize = "`size` is not set: call the structure's init function, or set it to sizeof";

// What the caller's structure and ours have in common, over the defaults.
template <class S>
bool has_size(const S* given) {
  return given->size >= sizeof(size_t) && given->size % sizeof(size_t) == 0 && given->size <= (1 << 16);
}
template <class S>
bool read_struct(const S* from, S& to) {
  if (!has_size(from)) return false;
  std::memcpy(&to, from, std::min(from->size, sizeof(S)));
  return true;
}
template <class S>
hunch_status write_struct(S from, S* to, hunch_error* error) {
  if (!has_size(to)) return usage(error, kNoSize);
  from.size = to->size;
  std::memcpy(to, &from, std::min(from.size, sizeof(S)));
  return good(error);
}

std::string text_or(const char* text, std::string otherwise) { return text ? text : std::move(otherwise); }

// Null where a list is said to have members and has none.
template <class T>
bool missing(const T* list, size_t count) {
  return count > 0 && !list;
}

hunch_status to_structure(const hunch_request& from, StructuredOutput& to, hunch_error* error) {
  using Kind = StructuredOutput::Kind;
  constexpr Kind kKinds[] = {Kind::None, Kind::JsonObject, Kind::JsonSchema, Kind::Regex, Kind::Choice, Kind::Grammar};
  if (from.structure < 0 || from.structure >= int(std::size(kKinds))) return usage(error, "structure is no hunch_structure");
  to.kind = kKinds[from.structure];
  if (to.kind == Kind::Choice) {
    if (!from.choices || from.num_choices == 0) return usage(error, "structure asks for choices, and there are none");
    for (size_t i = 0; i < from.num_choices; ++i) {
      if (!from.choices[i] || !*from.choices[i]) return usage(error, "a choice is NULL or empty");
      to.choices.emplace_back(from.choices[i]);
    }
  } else if (to.kind != Kind::None && to.kind != Kind::JsonObject) {
    if (!from.structure_text) return usage(error, "structure_text is NULL: the schema, expression or grammar");
    to.text = from.structure_text;
  }
  return HUNCH_STATUS_OK;
}

hunch_status to_request(const hunch_request& from, Request& to, hunch_error* error) {
  if (missing(from.prompt, from.prompt_len)) return usage(error, "prompt is NULL and prompt_len is not 0");
  if (missing(from.stop_ids, from.num_stop_ids)) return usage(error, "stop_ids is NULL and num_stop_ids is not 0");
  if (missing(from.stop, from.num_stop)) return usage(error, "stop is NULL and num_stop is not 0");
  to.prompt.assign(from.prompt, from.prompt + from.prompt_len);
  to.max_tokens = from.max_tokens;
  to.ignore_eos = from.ignore_eos != 0;
  to.priority = from.priority;
  to.sample_index = from.sample_index;
  to.stop_ids.assign(from.stop_ids, from.stop_ids + from.num_stop_ids);
  for (size_t i = 0; i < from.num_stop; ++i) {
    if (!from.stop[i] || !*from.stop[i]) return usage(error, "a stop text is NULL or empty");
    to.stop.emplace_back(from.stop[i]);
  }
  SamplingOptions& s = to.sampling;
  // Not "below 0": NaN must reach the engine, which refuses it.
  if (!(from.temperature < 0)) s.temperature = from.temperature;
  if (!(from.top_p < 0)) s.top_p = from.top_p;
  if (!(from.min_p < 0)) s.min_p = from.min_p;
  if (from.top_k >= 0) s.top_k = from.top_k;
  if (from.has_seed) s.seed = from.seed;
  s.repetition_penalty = from.repetition_penalty;
  s.presence_penalty = from.presence_penalty;
  s.frequency_penalty = from.frequency_penalty;
  s.min_tokens = from.min_tokens;
  s.logprobs = from.logprobs;
  SpeculationOptions& o = to.speculation;
  o.proposer = text_or(from.drafter, o.proposer);
  o.policy = text_or(from.policy, o.policy);
  o.rule = text_or(from.rule, o.rule);
  o.num_tokens = from.num_draft_tokens;
  o.ratio = from.ratio;
  return to_structure(from, to.structured, error);
}

}

extern "C" {

const char* hunch_version(void) { return "0.1.0"; }

void hunch_engine_options_init(hunch_engine_options* options) {
  if (!options) return;
  *options = {};
  options->size = sizeof *options;
  options->max_num_seqs = EngineOptions{}.max_num_seqs;
  options->prefix_caching = 1;
}

hunch_status hunch_engine_load(const hunch_engine_options* options, hunch_engine** engine, hunch_error* error) {
  if (engine) *engine = nullptr;
  return guarded(error, [&] {
    if (!options || !engine) return usage(error, "options or engine is NULL");
    hunch_engine_options given;
    hunch_engine_options_init(&given);
    if (!read_struct(options, given)) return usage(error, kNoSize);
    if (!given.model || !*given.model) return usage(error, "model is not set: a Hugging Face folder or a GGUF file");
    EngineOptions to;
    to.model = given.model;
    to.device = text_or(given.device, to.device);
    to.isa = text_or(given.isa, "");
    to.kv_dtype = text_or(given.kv_dtype, "");
    to.threads = given.threads;
    to.max_num_seqs = given.max_num_seqs;
    to.max_num_batched_tokens = given.max_num_batched_tokens;
    to.prefix_caching = given.prefix_caching != 0;
    to.context_len = given.context_len;
    to.kv_memory_bytes = given.kv_memory_bytes;
    if (to.threads < 0 || to.max_num_batched_tokens < 0 || to.kv_memory_bytes < 0)
      return usage(error, "threads, max_num_batched_tokens and kv_memory_bytes must be 0 or more");
    auto loaded = Engine::load(to);
    if (!loaded.ok()) return failed(error, loaded.error());
    *engine = new hunch_engine{.engine = std::move(*loaded)};
    return good(error);
  });
}

hunch_status hunch_engine_free(hunch_engine* engine, hunch_error* error) {
  if (engine && engine->streams > 0) return usage(error, "the engine still has streams: free them first");
  return guarded(error, [&] {
    const std::unique_ptr<hunch_engine> owned(engine);
    return good(error);
  });
}

int64_t hunch_engine_context_len(const hunch_engine* engine) { return engine ? engine->engine->context_len() : 0; }

hunch_status hunch_engine_get_stats(const hunch_engine* engine, hunch_engine_stats* stats, hunch_error* error) {
  return guarded(error, [&] {
    if (!engine || !stats) return usage(error, "engine or stats is NULL");
    const EngineStats s = engine->engine->stats();
    hunch_engine_stats out{};
    out.running = s.running, out.waiting = s.waiting;
    out.kv_pages_used = s.kv_pages_used, out.kv_pages_cached = s.kv_pages_cached, out.kv_pages_total = s.kv_pages_total;
    out.prefix_tokens_asked = s.prefix_tokens_asked, out.prefix_tokens_hit = s.prefix_tokens_hit;
    out.requests_finished = s.requests_finished, out.requests_refused = s.requests_refused;
    out.requests_aborted = s.requests_aborted, out.preemptions = s.preemptions;
    out.passes = s.passes, out.prompt_tokens = s.prompt_tokens, out.generated_tokens = s.generated_tokens;
    out.rounds = s.rounds, out.drafted = s.drafted, out.accepted = s.accepted, out.drafts_dropped = s.drafts_dropped;
    return write_struct(out, stats, error);
  });
}

hunch_status hunch_tokenize(const hunch_engine* engine, const char* text, size_t length, int32_t parse_special, int32_t add_bos,
    int32_t* ids, size_t capacity, size_t* count, hunch_error* error) {
  return guarded(error, [&] {
    if (!engine || !count || missing(text, length) || missing(ids, capacity)) return usage(error, "a pointer is NULL");
    *count = 0;
    const auto& tokenizer = engine->engine->parts().tokenizer;
    if (!tokenizer) return say(error, HUNCH_STATUS_FAILURE, "this model has no tokenizer");
    const auto encoded = tokenizer->encode(
        std::string_view(length ? text : "", length), {.parse_special = parse_special != 0, .add_bos = add_bos != 0});
    if (!encoded.ok()) return failed(error, encoded.error());
    *count = encoded.value().size();
    if (*count > capacity) return say(error, HUNCH_STATUS_TOO_SMALL, "the buffer is too small for the ids");
    std::ranges::copy(encoded.value(), ids);
    return good(error);
  });
}

hunch_status hunch_detokenize(const hunch_engine* engine, const int32_t* ids, size_t count, char* text, size_t capacity,
    size_t* length, hunch_error* error) {
  return guarded(error, [&] {
    if (!engine || !length || missing(ids, count) || missing(text, capacity)) return usage(error, "a pointer is NULL");
    *length = 0;
    const auto& tokenizer = engine->engine->parts().tokenizer;
    if (!tokenizer) return say(error, HUNCH_STATUS_FAILURE, "this model has no tokenizer");
    const std::string out = detokenize(*tokenizer, std::span<const int32_t>(ids, count));
    *length = out.size();
    if (out.size() > capacity) return say(error, HUNCH_STATUS_TOO_SMALL, "the buffer is too small for the text");
    std::ranges::copy(out, text);
    return good(error);
  });
}

void hunch_request_init(hunch_request* request) {
  if (!request) return;
  *request = {};
  request->size = sizeof *request;
  request->max_tokens = -1;
  request->temperature = request->top_p = request->min_p = -1;
  request->top_k = -1;
  request->repetition_penalty = 1;
  request->logprobs = -1;
}

hunch_status hunch_submit(hunch_engine* engine, const hunch_request* request, hunch_stream** stream, hunch_error* error) {
  if (stream) *stream = nullptr;
  return guarded(error, [&] {
    if (!engine || !request || !stream) return usage(error, "engine, request or stream is NULL");
    hunch_request given;
    hunch_request_init(&given);
    if (!read_struct(request, given)) return usage(error, kNoSize);
    Request to;
    if (const hunch_status status = to_request(given, to, error); status != HUNCH_STATUS_OK) return status;
    auto submitted = engine->engine->submit(to);
    if (!submitted.ok()) return failed(error, submitted.error());
    *stream = new hunch_stream{.owner = engine, .stream = std::move(*submitted)};
    ++engine->streams;
    return good(error);
  });
}

hunch_status hunch_stream_next(hunch_stream* stream, double milliseconds, hunch_token* token, hunch_error* error) {
  return guarded(error, [&] {
    if (!stream || !token) return usage(error, "stream or token is NULL");
    if (!has_size(token)) return usage(error, kNoSize);  // before one is taken
    if (milliseconds != milliseconds) return usage(error, "milliseconds is not a number");
    constexpr double kLongest = 1e9;  // of one wait: a clock's nanoseconds hold no more than 292 years
    TokenStream& tokens = *stream->stream;
    auto event = milliseconds < 0 ? tokens.next() : tokens.next_within(std::min(milliseconds, kLongest));
    if (!event) {
      if (tokens.finished()) return say(error, HUNCH_STATUS_END, "no more tokens will come");
      return say(error, HUNCH_STATUS_TIMEOUT, "no token came in time");
    }
    const TokenEvent& e = stream->event = std::move(*event);
    hunch_token out{};
    out.id = e.id, out.index = e.index, out.logprob = e.logprob;
    out.drafted = e.from == TokenEvent::From::Draft;
    out.text = e.text.c_str(), out.text_len = e.text.size();
    return write_struct(out, token, error);
  });
}

hunch_status hunch_stream_cancel(hunch_stream* stream, hunch_error* error) {
  return guarded(error, [&] {
    if (!stream) return usage(error, "stream is NULL");
    stream->stream->cancel();
    return good(error);
  });
}

hunch_status hunch_stream_result(hunch_stream* stream, hunch_result* result, hunch_error* error) {
  return guarded(error, [&] {
    if (!stream || !result) return usage(error, "stream or result is NULL");
    auto outcome = stream->stream->result();
    if (!outcome.ok()) return failed(error, outcome.error());
    if (!stream->generation) stream->generation = std::make_unique<Generation>(std::move(*outcome));
    const Generation& g = *stream->generation;
    hunch_result out{};
    out.finish = g.finish == FinishReason::Stop ? HUNCH_FINISH_STOP
        : g.finish == FinishReason::Length      ? HUNCH_FINISH_LENGTH
                                                : HUNCH_FINISH_INTERRUPTED;
    out.lossless = g.lossless;
    out.tokens = g.tokens.data(), out.num_tokens = g.tokens.size();
    out.text = g.text.c_str(), out.text_len = g.text.size();
    out.seed = g.seed;
    out.prompt_tokens = g.prompt_tokens, out.reused_tokens = g.reused_tokens;
    out.rounds = g.rounds, out.drafted = g.drafted, out.accepted = g.accepted;
    out.prefill_ms = g.milliseconds.prefill, out.decode_ms = g.milliseconds.first_to_last_token;
    out.tokens_per_second = g.tokens_per_second(), out.mean_acceptance_length = g.mean_acceptance_length();
    return write_struct(out, result, error);
  });
}

void hunch_stream_free(hunch_stream* stream) {
  if (!stream) return;
  hunch_engine* owner = stream->owner;
  (void)guarded(nullptr, [&] {
    const std::unique_ptr<hunch_stream> owned(stream);
    return HUNCH_STATUS_OK;
  });
  --owner->streams;
}

}  // extern "C"
