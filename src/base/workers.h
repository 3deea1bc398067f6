// A few threads that share the items of a loop and sleep between loops. For work beside the backend's own (a device's host has
// cores to spare); kernels have backend/cpu/threads.h.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace hunch {

class Workers {
 public:
  // The caller of run() is one of `count`; no more than there are cores.
  explicit Workers(int count) {
    const int cores = int(std::thread::hardware_concurrency());
    for (int i = 1; i < std::min(count, std::max(1, cores)); ++i) threads_.emplace_back([this] { work(); });
  }
  ~Workers() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    begun_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Calls item(i) once for every i in [0, count), in any order on any thread, and returns when all have returned. Items write
  // what no other reads. Not to be called from two threads at a time. Who is woken comes some 20 microseconds later: a thread
  // beside the caller is for `each` items.
  void run(int64_t count, std::function<void(int64_t)> item, int64_t each = 1) {
    begin(count, std::move(item), (count - 1) / each);
    finish();
  }
  // The same in two: in between the caller does something else, and so many threads are `woken`; without any nothing happens.
  void start(int64_t count, std::function<void(int64_t)> item, int64_t woken) { begin(count, std::move(item), woken); }
  void finish() {
    take();
    for (int look = 0; look < kLooks && done_ != count_; ++look) std::this_thread::yield();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_ == count_; });  // threads that are still waking up find nothing to do
  }

 private:
  static constexpr int kLooks = 40;  // some 20 microseconds, before the caller falls asleep

  void begin(int64_t count, std::function<void(int64_t)> item, int64_t woken) {
    finish();
    if (count <= 0) return;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return inside_ == 0; });
      item_ = std::move(item), count_ = count, next_ = 0, done_ = 0, ++loop_;
    }
    for (int64_t i = 0; i < std::min(woken, std::ssize(threads_)); ++i) begun_.notify_one();
  }
  void take() {
    int64_t done = 0;
    for (int64_t i; (i = next_.fetch_add(1)) < count_; ++done) item_(i);
    if (done == 0) return;
    const std::lock_guard lock(mutex_);
    if ((done_ += done) == count_) changed_.notify_all();
  }
  void work() {
    std::unique_lock lock(mutex_);
    for (uint64_t seen = 0;;) {
      begun_.wait(lock, [&] { return stop_ || loop_ != seen; });
      if (stop_) return;
      seen = loop_, ++inside_;
      lock.unlock();
      take();
      lock.lock();
      if (--inside_ == 0) changed_.notify_all();
    }
  }

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable begun_, changed_;
  std::function<void(int64_t)> item_;  // of the loop
  int64_t count_ = 0;
  std::atomic<int64_t> next_{0}, done_{0};
  int inside_ = 0;  // threads that may look at the loop
  uint64_t loop_ = 0;
  bool stop_ = false;
};

}
