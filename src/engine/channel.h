// Channel: from the engine's thread to the one consumer of a request. Bounded: a consumer that falls behind pauses its own
// request. Used by Service and TokenStream. A consumer without a thread is told of news by a callback.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>

#include "hunch/hunch.h"

namespace hunch {

class Channel {
 public:
  static constexpr size_t kCapacity = 256;  // events; the round that fills it may add its own few

  Channel() = default;
  explicit Channel(OnNews on_news) : on_news_(std::move(on_news)) {}

  void push(TokenEvent event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
  }
  // After the pushes of a step that was not the last: wakes the consumer, once.
  void tell() {
    changed_.notify_one();
    {
      const std::lock_guard lock(mutex_);
      if (!on_news_ || events_.empty() || std::exchange(told_, true)) return;
    }
    on_news_();  // only the engine's thread ever changes it
  }
  void end(Result<Generation> outcome) {
    OnNews last;
    {
      const std::lock_guard lock(mutex_);
      outcome_.emplace(std::move(outcome));
      ended_ = true;
      changed_.notify_all();
      if (!told_) last = std::move(on_news_);
    }
    if (last) last();  // the channel may be gone by now
  }
  bool full() const {
    const std::lock_guard lock(mutex_);
    return events_.size() >= kCapacity;
  }
  // Once this is true the engine's thread is out of the channel, which may then be destroyed.
  bool ended() const {
    const std::lock_guard lock(mutex_);
    return ended_;
  }

  // The next event, waiting for it until `deadline`; `drained` tells that the channel was full and no longer is.
  template <class Time>
  std::optional<TokenEvent> take_until(const Time& deadline, bool& drained) {
    std::unique_lock lock(mutex_);
    changed_.wait_until(lock, deadline, [&] { return !events_.empty() || ended_; });
    if (events_.empty()) {
      told_ = false;
      return {};
    }
    drained = events_.size() == kCapacity;
    TokenEvent event = std::move(events_.front());
    events_.pop_front();
    return event;
  }
  bool empty() const {
    const std::lock_guard lock(mutex_);
    return events_.empty();
  }
  // After the end, once.
  Result<Generation> take_outcome() {
    const std::lock_guard lock(mutex_);
    HUNCH_CHECK(outcome_.has_value());
    Result<Generation> out = std::move(*outcome_);
    outcome_.reset();
    return out;
  }

  std::atomic<bool> cancelled{false};

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<TokenEvent> events_;
  OnNews on_news_;
  bool told_ = false;  // and the consumer has not yet found the channel empty
  bool ended_ = false;
  std::optional<Result<Generation>> outcome_;
};

}
