// Generating: one request for text, from body to answer: read and checked by a worker, run by the engine, streamed or answered on
// the loop's thread. No thread ever waits for it. Made by Server, which keeps it until it is done.
#pragma once

#include "base/clock.h"
#include "server/http.h"
#include "server/log.h"
#include "server/loop.h"
#include "server/metrics.h"
#include "server/options.h"
#include "server/worker_pool.h"

namespace hunch {

class Generating : public std::enable_shared_from_this<Generating> {
 public:
  struct World {  // outlives all requests
    Loop& loop;
    WorkerPool& workers;
    Metrics& metrics;
    Log& log;
    const ServerOptions& options;
    const ServedModels& models;
    std::atomic<int64_t>& pending_bytes;  // of bodies that wait for a worker
    std::function<void(std::string_view reason, int status)> refused;
    std::function<void(Generating&)> done;  // nothing of it runs any more
  };

  Generating(World& world, std::shared_ptr<Exchange> exchange, Endpoint endpoint, std::string request_id);

  // False: too many wait to be read; nothing was started.
  bool start();
  void tick(Clock::time_point now);  // a few times a second
  // Ends it from outside: a stream gets the error as its last event.
  void stop(const ApiError& error, std::string_view reason);

 private:
  void read();      // on a worker
  void admitted();  // back on the loop
  void pump();
  void answered();  // a worker has made the answer
  bool take(size_t choice, std::string& text);
  void choice_ended(size_t choice, std::string& text);
  void flush(std::string& text);
  void fail(const ApiError& error, std::string_view reason);
  void gone(std::string_view why);
  void cancel();
  bool drain();
  bool all_ended() const { return ended_ == streams_.size(); }

  struct Choice {
    std::unique_ptr<TokenStream> stream;
    bool ended = false;
    int64_t tokens = 0;
    Clock::time_point last;
    double first_token_seconds = -1;
  };

  World& world_;
  std::shared_ptr<Exchange> exchange_;
  const Endpoint endpoint_;
  const std::string request_id_;
  std::string body_;
  int64_t body_bytes_ = 0;
  const Clock::time_point since_ = Clock::now();
  Clock::time_point last_sent_ = since_;

  // The worker's until admitted_.
  std::unique_ptr<Call> call_;
  std::optional<ApiError> error_;
  std::vector<Choice> streams_;

  std::atomic<bool> cancelled_{false}, news_posted_{false};
  bool admitted_ = false, over_ = false, streaming_ = false, pumping_ = false, answering_ = false, concluded_ = false;
  size_t ended_ = 0, model_index_ = 0;
  std::vector<Generation> generations_;
  std::string answer_;  // the worker's while answering_
};

}
