// What Python holds of an engine and of its running requests. They make safe what Python allows: closing an engine while other
// threads wait for its tokens, Ctrl-C in the middle of a wait, forking. Bound to Python by module.cpp, used by hunch/llm.py.
//
// Every call that may wait releases the interpreter's lock and comes back within 20 ms to look for signals; hunch itself installs
// no signal handlers.
#pragma once

#include <sys/types.h>

#include <list>
#include <mutex>
#include <shared_mutex>
#include <stdexcept>

#include "hunch/hunch.h"

namespace hunch::python {

// Becomes ValueError.
struct UsageError : std::invalid_argument {
  using invalid_argument::invalid_argument;
};
// Becomes RuntimeError.
struct EngineError : std::runtime_error {
  using runtime_error::runtime_error;
};
[[noreturn]] void raise(const Error&);

template <class T>
T unwrap(Result<T>&& result) {
  if (!result.ok()) raise(result.error());
  return std::move(result).value();
}

// The drafters that a speculative configuration (JSON) names, to be loaded with an engine; the whole of it is checked.
std::vector<DrafterOptions> drafters_of(const std::string& config);

class EngineHandle;

// A running request. Members may be called from any thread that holds the interpreter's lock; the tokens go to who asks first.
class StreamHandle {
 public:
  StreamHandle(EngineHandle& owner, std::unique_ptr<TokenStream> stream) : owner_(owner), stream_(std::move(stream)) {}
  ~StreamHandle();  // cancels what still runs
  StreamHandle(const StreamHandle&) = delete;
  StreamHandle& operator=(const StreamHandle&) = delete;

  // The tokens that came, waiting for the first of them at most so long. Raises what a signal's handler raises (Ctrl-C).
  std::vector<TokenEvent> take(double milliseconds);
  bool finished();
  void cancel();  // soon; tokens that are out stay out
  // Waits for the end. Tokens that were not taken are dropped.
  Generation result();
  // Ends the request and gives its memory back. The stream yields nothing more.
  void close();

 private:
  friend class EngineHandle;
  // Under mutex_: the stream if it may still yield something, told of a cancellation.
  TokenStream* running();

  EngineHandle& owner_;
  std::unique_ptr<TokenStream> stream_;  // null: closed
  std::mutex mutex_;                     // taken without the interpreter's lock only
  std::atomic<bool> cancelled_{false};   // said by a thread that did not get mutex_; whoever has it passes it on
  std::list<StreamHandle*>::iterator entry_;
};

class EngineHandle {
 public:
  explicit EngineHandle(const EngineOptions&);
  ~EngineHandle();
  EngineHandle(const EngineHandle&) = delete;
  EngineHandle& operator=(const EngineHandle&) = delete;

  std::unique_ptr<StreamHandle> submit(const Request&);
  // Takes and drops tokens of all these until at least one of them is over; which are, ascending. Null pointers are over.
  std::vector<size_t> wait_any(const std::vector<StreamHandle*>& streams);

  Tokens encode(std::string_view text, bool parse_special, bool add_bos);
  std::string decode(const Tokens& ids, bool skip_special);
  std::string token_bytes(int32_t id);
  std::optional<int32_t> token_id(std::string_view text);
  // The ids of a chat by the model's template, opened for the answer, and those that end one. All three are JSON: a list of
  // messages, a list of tools or null, an object of the template's variables or null.
  std::pair<Tokens, Tokens> encode_chat(const std::string& messages, const std::string& tools, const std::string& kwargs);
  // A speculative configuration (JSON) for requests, which can name only drafters that were loaded.
  SpeculationOptions speculation(const std::string& config);

  // The engine for calls that do not wait. Raises where it is closed or another process's.
  Engine& engine();
  const Tokenizer& tokenizer();
  bool closed() const { return closed_; }
  // Cancels what runs, waits until nobody is inside and frees the engine. A second call does nothing.
  void close();

 private:
  friend class StreamHandle;
  struct Inside;
  void check_usable() const;  // with or without the interpreter's lock
  // No thread of the engine's is there after a fork, and locks may be held by nobody: nothing may be touched, not even freed.
  bool foreign() const;

  // Calls that keep the interpreter's lock are safe without another: closed_ is set under it, and nothing is freed before.
  std::unique_ptr<Engine> engine_;
  pid_t process_;
  std::atomic<bool> closed_{false}, gone_{false};  // gone: and nothing of the engine or of its streams is left
  std::shared_mutex inside_;     // shared by calls that use engine_; alone: close(). Taken without the interpreter's lock only
  std::atomic<int> outside_{0};  // calls that gave the interpreter's lock away and want it back
  std::mutex list_;
  std::list<StreamHandle*> streams_;  // that live
};

}
