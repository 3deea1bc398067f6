#include "server/watchdog.h"

#include <chrono>

namespace hunch {

constexpr std::chrono::milliseconds kPeriod{250};

Watchdog::Watchdog(std::vector<Look> watched, double stuck_after, double dead_after, std::function<void()> on_alive,
    std::function<void(double)> on_dead)
    : watched_(std::move(watched)),
      timers_(watched_.size()),
      stuck_after_(stuck_after),
      dead_after_(dead_after),
      on_alive_(std::move(on_alive)),
      on_dead_(std::move(on_dead)),
      thread_([this] { work(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::work() {
  auto last = std::chrono::steady_clock::now();
  for (bool told = false;;) {
    {
      std::unique_lock lock(mutex_);
      if (changed_.wait_for(lock, kPeriod, [this] { return closing_; })) return;
    }
    const auto now = std::chrono::steady_clock::now();
    const double elapsed = std::chrono::duration<double>(now - last).count();
    last = now;
    double worst = 0;
    for (size_t i = 0; i < watched_.size(); ++i) {
      timers_[i].look(watched_[i](), elapsed);
      worst = std::max(worst, timers_[i].stuck_seconds());
    }
    stuck_seconds_ = worst;
    if (worst < stuck_after_ && on_alive_) on_alive_();
    if (dead_after_ > 0 && worst >= dead_after_ && on_dead_ && !std::exchange(told, true)) on_dead_(worst);
  }
}

}
