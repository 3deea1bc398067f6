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
  // what no other reads. Not to be called from two threads at a time.
  void run(int64_t count, const std::function<void(int64_t)>& item) {
    {
      const std::lock_guard lock(mutex_);
      item_ = &item, count_ = count, next_ = 0, busy_ = int(threads_.size()), ++loop_;
    }
    begun_.notify_all();
    take();
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return busy_ == 0; });
  }

 private:
  void take() {
    for (int64_t i; (i = next_.fetch_add(1)) < count_;) (*item_)(i);
  }
  void work() {
    std::unique_lock lock(mutex_);
    for (uint64_t seen = 0;;) {
      begun_.wait(lock, [&] { return stop_ || loop_ != seen; });
      if (stop_) return;
      seen = loop_;
      lock.unlock();
      take();
      lock.lock();
      if (--busy_ == 0) ended_.notify_one();
    }
  }

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable begun_, ended_;
  const std::function<void(int64_t)>* item_ = nullptr;  // of the loop
  int64_t count_ = 0;
  std::atomic<int64_t> next_{0};
  int busy_ = 0;  // threads that have not ended it
  uint64_t loop_ = 0;
  bool stop_ = false;
};

}  // namespace hunch
