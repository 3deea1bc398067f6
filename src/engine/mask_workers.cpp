#include "engine/mask_workers.h"

#include <algorithm>

#include "engine/grammar_mask.h"

namespace hunch {

MaskWorkers::MaskWorkers(int threads) : busy_(threads) {
  for (size_t i = 0; i < busy_.size(); ++i) threads_.emplace_back([this, i] { work(i); });
}

MaskWorkers::~MaskWorkers() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  more_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void MaskWorkers::soon(GrammarMask& mask) {
  {
    const std::lock_guard lock(mutex_);
    if (std::ranges::find(waiting_, &mask) == waiting_.end()) waiting_.push_back(&mask);
  }
  more_.notify_one();
}

void MaskWorkers::forget(GrammarMask& mask) {
  std::unique_lock lock(mutex_);
  std::erase(waiting_, &mask);
  done_.wait(lock, [&] { return std::ranges::find(busy_, &mask) == busy_.end(); });
}

void MaskWorkers::work(size_t thread) {
  std::unique_lock lock(mutex_);
  for (;;) {
    more_.wait(lock, [&] { return ending_ || !waiting_.empty(); });
    if (ending_) return;
    GrammarMask* const mask = busy_[thread] = waiting_.front();
    waiting_.pop_front();
    lock.unlock();
    while (mask->fill_one()) {}
    lock.lock();
    busy_[thread] = nullptr;
    done_.notify_all();
  }
}

}
