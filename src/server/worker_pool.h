// WorkerPool: threads for what costs CPU before a request is admitted (JSON, templates, tokens) and for whole answers: the loop's
// thread never computes. The queue is bounded by whoever fills it.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace hunch {

class WorkerPool {
 public:
  explicit WorkerPool(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }
  ~WorkerPool() { stop(); }
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // False: `most` are waiting already.
  bool submit(std::function<void()> task, size_t most) {
    {
      const std::lock_guard lock(mutex_);
      if (queue_.size() >= most || stopping_) return false;
      queue_.push_back(std::move(task));
    }
    changed_.notify_one();
    return true;
  }
  size_t waiting() const {
    const std::lock_guard lock(mutex_);
    return queue_.size();
  }
  // Lets what runs end and drops the rest.
  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
      queue_.clear();
    }
    changed_.notify_all();
    for (auto& thread : threads_)
      if (thread.joinable()) thread.join();
  }

 private:
  void work() {
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
        if (stopping_) return;
        task = std::move(queue_.front());
        queue_.pop_front();
      }
      task();
    }
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}
