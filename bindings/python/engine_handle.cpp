#include "engine_handle.h"

#include <Python.h>
#include <unistd.h>

#include <nanobind/nanobind.h>

#include "api/speculation_settings.h"
#include "engine/parts.h"
#include "text/chat_renderer.h"
#include "text/detokenizer.h"

namespace nb = nanobind;

namespace hunch::python {
namespace {

constexpr double kSliceMs = 20;  // the longest time without a look at signals
constexpr int kReturnMs = 1000;  // that close() leaves other threads to come back to Python

// Without the interpreter's lock. Counted: a thread that is still waiting for the lock when the interpreter ends is unwound from
// here, through a destructor, which ends the process. So close(), which runs before that, lets all come back.
class Released {
 public:
  explicit Released(std::atomic<int>& outside) : outside_(outside) {
    ++outside_;
    state_ = PyEval_SaveThread();
  }
  ~Released() {
    PyEval_RestoreThread(state_);
    --outside_;
  }
  Released(const Released&) = delete;
  Released& operator=(const Released&) = delete;

 private:
  std::atomic<int>& outside_;
  PyThreadState* state_;
};

void look_for_signals() {
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

// The command line's words for arguments of LLM().
constexpr std::pair<std::string_view, std::string_view> kWords[] = {
    {"--speculative-config", "speculative_config"},
    {"--kv-memory", "kv_cache_memory_bytes"},
    {"--kv-type q8_0", "kv_cache_dtype='q8_0'"},
    {"--device cpu", "device='cpu'"},
    {"--max-num-batched-tokens", "max_num_batched_tokens"},
    {"lower -c", "lower max_model_len"},
};
std::string in_words_of_python(std::string message) {
  for (const auto& [flag, argument] : kWords)
    for (size_t at; (at = message.find(flag)) != message.npos;) message.replace(at, flag.size(), argument);
  return message;
}

SpeculationOptions speculation_of(const std::string& config, const std::vector<DrafterOptions>* loaded) {
  return unwrap(resolve_speculation({.config = config, .loaded = loaded}));
}

}

// In a call that may wait: without the interpreter's lock, and close() waits for its end.
struct EngineHandle::Inside {
  explicit Inside(EngineHandle& engine) : released(engine.outside_), shared(engine.inside_) {}
  const Released released;
  const std::shared_lock<std::shared_mutex> shared;
};

void raise(const Error& error) {
  std::string message = in_words_of_python(error.message);
  if (error.kind == Error::Kind::Usage) throw UsageError(std::move(message));
  throw EngineError(std::move(message));
}

std::vector<DrafterOptions> drafters_of(const std::string& config) {
  (void)speculation_of(config, nullptr);  // nothing is loaded for requests that cannot run
  return unwrap(resolve_drafters({.config = config}));
}

StreamHandle::~StreamHandle() {
  if (owner_.foreign()) {
    (void)stream_.release();
    return;
  }
  close();
}

TokenStream* StreamHandle::running() {
  if (!stream_ || stream_->finished()) return nullptr;
  if (cancelled_) stream_->cancel();
  return stream_.get();
}

std::vector<TokenEvent> StreamHandle::take(double milliseconds) {
  std::vector<TokenEvent> out;
  for (double left = milliseconds;; left -= kSliceMs) {
    look_for_signals();
    owner_.check_usable();
    const EngineHandle::Inside inside(owner_);
    const std::lock_guard lock(mutex_);
    TokenStream* stream = running();
    if (!stream) return out;
    auto event = stream->next_within(std::clamp(left, 0.0, kSliceMs));
    for (; event; event = stream->next_within(0)) out.push_back(std::move(*event));
    if (!out.empty() || left <= kSliceMs || stream->finished()) return out;
  }
}

bool StreamHandle::finished() {
  owner_.check_usable();
  const EngineHandle::Inside inside(owner_);
  const std::lock_guard lock(mutex_);
  return !stream_ || stream_->finished();
}

void StreamHandle::cancel() {
  owner_.check_usable();
  cancelled_ = true;
  const EngineHandle::Inside inside(owner_);
  // A thread in take() would win the mutex time and again.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (lock) (void)running();
}

Generation StreamHandle::result() {
  while (!finished()) take(1000);
  const EngineHandle::Inside inside(owner_);
  const std::lock_guard lock(mutex_);
  if (!stream_) throw EngineError("this request was closed before its end");
  return unwrap(stream_->result());
}

void StreamHandle::close() {
  if (owner_.foreign() || owner_.gone_) return;
  cancelled_ = true;
  const EngineHandle::Inside inside(owner_);
  const std::lock_guard lock(mutex_);
  if (!stream_) return;
  stream_.reset();  // waits for the end of the pass that it is part of
  const std::lock_guard list(owner_.list_);
  owner_.streams_.erase(entry_);
}

EngineHandle::EngineHandle(const EngineOptions& options) : process_(getpid()) {
  const Released released(outside_);
  engine_ = unwrap(Engine::load(options));
}

EngineHandle::~EngineHandle() {
  if (foreign()) {
    (void)engine_.release();
    return;
  }
  close();
}

bool EngineHandle::foreign() const { return getpid() != process_; }

void EngineHandle::check_usable() const {
  if (foreign())
    throw EngineError(
        fmt::format("this LLM was loaded by process {} and this is a fork of it ({}), where its threads do not exist: make the "
                    "LLM in the process that uses it, or start processes by spawn",
            process_, getpid()));
  if (closed_) throw EngineError("this LLM is closed");
}

Engine& EngineHandle::engine() {
  check_usable();
  return *engine_;
}

const Tokenizer& EngineHandle::tokenizer() {
  const auto& tokenizer = engine().parts().tokenizer;
  if (!tokenizer) throw UsageError("this model has no tokenizer: give and take token ids");
  return *tokenizer;
}

std::unique_ptr<StreamHandle> EngineHandle::submit(const Request& request) {
  check_usable();
  const Inside inside(*this);
  check_usable();
  auto stream = engine_->submit(request);
  if (!stream.ok()) {
    // Of a caller in the same program this is a mistake like any other, whatever the file was that the text came from.
    if (std::ssize(request.prompt) >= engine_->context_len()) throw UsageError(stream.error().message);
    raise(stream.error());
  }
  // The handle last: one that is destroyed here would ask for the locks that are held.
  auto handle = std::make_unique<StreamHandle>(*this, std::move(*stream));
  const std::lock_guard list(list_);
  handle->entry_ = streams_.insert(streams_.end(), handle.get());
  return handle;
}

std::vector<size_t> EngineHandle::wait_any(const std::vector<StreamHandle*>& streams) {
  std::vector<size_t> over;
  while (over.empty() && !streams.empty()) {
    look_for_signals();
    check_usable();
    const Inside inside(*this);
    // Only the first that runs is waited for: in so short a time no other stream fills up.
    double patience = kSliceMs;
    for (size_t i = 0; i < streams.size(); ++i) {
      if (!streams[i]) {
        over.push_back(i);
        continue;
      }
      const std::lock_guard lock(streams[i]->mutex_);
      TokenStream* stream = streams[i]->running();
      if (stream)
        for (auto event = stream->next_within(patience); event; event = stream->next_within(0)) {}
      patience = 0;
      if (!stream || stream->finished()) over.push_back(i);
    }
  }
  return over;
}

Tokens EngineHandle::encode(std::string_view text, bool parse_special, bool add_bos) {
  const Tokenizer& own = tokenizer();
  const Inside inside(*this);
  check_usable();
  return unwrap(own.encode(text, {.parse_special = parse_special, .add_bos = add_bos}));
}

std::string EngineHandle::decode(const Tokens& ids, bool skip_special) { return detokenize(tokenizer(), ids, skip_special); }

std::string EngineHandle::token_bytes(int32_t id) { return std::string(tokenizer().token_bytes(id)); }

std::optional<int32_t> EngineHandle::token_id(std::string_view text) { return tokenizer().token_id(text); }

std::pair<Tokens, Tokens> EngineHandle::encode_chat(
    const std::string& messages, const std::string& tools, const std::string& kwargs) try {
  using Json = nlohmann::ordered_json;
  const ChatRenderer renderer = unwrap(ChatRenderer::make(engine().chat_template(), tokenizer()));
  const Json turns = Json::parse(messages), functions = Json::parse(tools), variables = Json::parse(kwargs);
  if (!variables.is_null())
    if (const Status status = check_template_kwargs(variables); !status.ok()) raise(status.error());
  ChatPrompt prompt = unwrap(renderer.render({
      .messages = &turns,
      .tools = functions.is_null() ? nullptr : &functions,
      .kwargs = variables.is_null() ? nullptr : &variables,
  }));
  return {std::move(prompt.ids), renderer.stop_ids()};
} catch (const nlohmann::json::exception& e) {  // NaN, half a surrogate
  raise(usage_error(std::string("a chat that is no JSON: ") + e.what()));
}

SpeculationOptions EngineHandle::speculation(const std::string& config) {
  return speculation_of(config, &engine().parts().options.drafters);
}

void EngineHandle::close() {
  if (foreign() || closed_.exchange(true)) return;
  const Released released(outside_);
  {
    const std::unique_lock inside(inside_);
    const std::lock_guard list(list_);
    for (StreamHandle* stream : streams_) stream->stream_->cancel();  // all first: they then end in one pass
    for (StreamHandle* stream : streams_) stream->stream_.reset();
    streams_.clear();
    engine_.reset();
    gone_ = true;
  }
  for (int ms = 0; outside_ > 1 && ms < kReturnMs; ++ms) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}
