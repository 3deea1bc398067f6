// Service: runs the requests of one engine. Whoever drives calls step_once(): its own thread once something was submitted, or the
// caller of generate() while nobody else does. All but the driving is thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "engine/channel.h"
#include "engine/controller.h"
#include "engine/step.h"

namespace hunch {

class Service {
 public:
  explicit Service(EngineParts&);
  ~Service();  // ends what still runs; every channel must have been released

  // Checks what can be checked at once and queues the request. The channel is the caller's until release().
  Result<Channel*> enqueue(const Request&, OnNews on_news = {});
  void release(Channel*);
  // Starts the service's own thread, if it does not run yet.
  void run_in_background() {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread([this] { background(); });
  }
  // Something changed that the driver should look at: a cancellation, a channel with room again.
  void wake();
  // One step if nobody else is driving at this moment. False: somebody is, or there is nothing to run.
  bool try_step() {
    const std::unique_lock lock(driving_, std::try_to_lock);
    return lock.owns_lock() && step_once();
  }

  EngineStats stats() const {
    const std::lock_guard lock(mutex_);
    return stats_;
  }
  Heartbeat heartbeat() const;

 private:
  struct Session;
  struct Order {
    Request request;
    RequestPlan plan;
    Channel* channel;
    double since_ms;
  };

  bool step_once(bool background = false);
  void decide();
  void begin(const StepPlan&);
  void admit_orders();
  void open_session(Order&&);
  void end_cancelled();
  void collect(Running&);
  void say_rest();
  void count_step(const StepPlan&);
  void trace_step(const StepPlan&, Clock::time_point start);
  void count(Session&);
  void finish(Session&, Status failure);
  void update_stats(bool ran);
  void background();

  EngineParts& parts_;
  Scheduler scheduler_;
  Step step_;
  int64_t lanes_ = 0;  // of the trace, given to requests
  Controller controller_;
  std::vector<Running*> running_;  // scratch of a step
  // What a step gave a request: tokens at [first, end), the first `guessed` of them its `drafter`'s.
  struct Given {
    Session* session;
    int64_t first, end;
    int guessed, drafter;
    int by(int64_t at) const { return at - first < guessed ? drafter : -1; }
  };
  std::vector<Given> unsaid_;  // end nothing: said beside the device's next work, so that consumers take no time of a step
  bool later_ = false;         // the engine has a thread of its own for that

  std::mutex driving_;  // held by whoever runs step_once()
  std::list<std::unique_ptr<Session>> sessions_;

  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable woken_;
  std::list<std::unique_ptr<Channel>> channels_;
  std::vector<Order> orders_;
  bool awake_ = false, closing_ = false;
  EngineStats stats_;
  std::thread thread_;

  std::atomic<uint64_t> steps_{0};
  std::atomic<bool> busy_{false};  // from an order or a wake to the moment when there is nothing to run
};

}
