// Watchdog: a thread that looks whether the engines get anywhere, so that /health can tell the truth, and ends the process where
// one does not come back: a supervisor starts it anew, and nobody waits forever on a server that says 200.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "hunch/hunch.h"

namespace hunch {

// How long something busy has shown no sign of life, by looks at it. Time in which the looker did not run (a stopped process, a
// suspended machine) does not count.
class StuckTimer {
 public:
  static constexpr double kMostPerLook = 1;

  void look(const Heartbeat& now, double seconds_since_last_look) {
    if (now.busy && now.beats == last_) stuck_ += std::min(seconds_since_last_look, kMostPerLook);
    else stuck_ = 0;
    last_ = now.beats;
  }
  double stuck_seconds() const { return stuck_; }

 private:
  uint64_t last_ = 0;
  double stuck_ = 0;
};

class Watchdog {
 public:
  using Look = std::function<Heartbeat()>;
  // `on_alive`: after every look at which nobody is stuck for `stuck_after`. `on_dead`: once, `dead_after` > 0 seconds after the
  // last sign of life of one of them; it is expected to end the process. Both come from the watchdog's thread.
  Watchdog(std::vector<Look> watched, double stuck_after, double dead_after, std::function<void()> on_alive,
      std::function<void(double seconds)> on_dead);
  ~Watchdog();

  double stuck_seconds() const { return stuck_seconds_; }  // of the worst; any thread

 private:
  void work();

  std::vector<Look> watched_;
  std::vector<StuckTimer> timers_;
  double stuck_after_, dead_after_;
  std::function<void()> on_alive_;
  std::function<void(double)> on_dead_;
  std::atomic<double> stuck_seconds_{0};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool closing_ = false;
  std::thread thread_;
};

}
