// Idle threads spin for a while (the loops of a pass follow each other within microseconds), then sleep in the kernel; a waiting
// caller spins, then yields to other work on the machine.
#include "backend/cpu/threads.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <string>

#include "base/check.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hunch {
namespace {

constexpr int64_t kIdleSpinNs = 50'000;
constexpr int kPausesPerLook = 32;  // between two looks at the clock
constexpr int kCallerSpins = 4'000;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Cores granted by one cpu.max file ("max 100000" or "150000 100000"); 0 where there is no limit or no file.
double quota_of(const std::string& folder) {
  std::ifstream v2(folder + "/cpu.max");
  std::string quota;
  double period = 0;
  if (v2 >> quota >> period && quota != "max" && period > 0) return std::atof(quota.c_str()) / period;
  std::ifstream v1(folder + "/cpu.cfs_quota_us"), v1_period(folder + "/cpu.cfs_period_us");
  double us = 0;
  if (v1 >> us && v1_period >> period && us > 0 && period > 0) return us / period;
  return 0;
}

}

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : int(std::thread::hardware_concurrency());
  double quota = 0;
  const auto limit = [&](const std::string& folder) {
    if (const double q = quota_of(folder); q > 0) quota = quota > 0 ? std::min(quota, q) : q;
  };
  limit("/sys/fs/cgroup");
  limit("/sys/fs/cgroup/cpu");
  std::ifstream own("/proc/self/cgroup");
  for (std::string line; std::getline(own, line);) {
    if (line.rfind("0::/", 0) != 0) continue;
    for (std::string path = line.substr(3); path.size() > 1; path.resize(path.rfind('/'))) limit("/sys/fs/cgroup" + path);
  }
  if (quota > 0) cores = std::min(cores, int(std::ceil(quota)));
  return std::max(cores, 1);
}

Buffer allocate_aligned(size_t bytes) {
  constexpr size_t kHuge = size_t(2) << 20;
  bytes = std::max<size_t>((bytes + 63) / 64 * 64, 64);
  if (bytes < kHuge) return {std::aligned_alloc(64, bytes), bytes, [](void* data, size_t) { std::free(data); }};
  // Mapped with room to start at a huge page; what lies outside is given back.
  const size_t whole = (bytes + kHuge - 1) / kHuge * kHuge;
  void* data = mmap(nullptr, whole + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return {};
  const uintptr_t first = reinterpret_cast<uintptr_t>(data), begin = (first + kHuge - 1) / kHuge * kHuge;
  if (begin > first) munmap(data, begin - first);
  if (const size_t after = first + kHuge - begin; after > 0) munmap(reinterpret_cast<void*>(begin + whole), after);
  void* aligned = reinterpret_cast<void*>(begin);
  madvise(aligned, whole, MADV_HUGEPAGE);
  return {aligned, whole, [](void* p, size_t n) { munmap(p, n); }};
}

Threads::Threads(int count) : count_(count), scratch_(count) {
  HUNCH_CHECK(count >= 1);
  reserve(size_t(64) << 10);
  threads_.reserve(count - 1);
  for (int worker = 1; worker < count; ++worker) threads_.emplace_back([this, worker] { work(worker); });
}

Threads::~Threads() {
  stop_.store(true);
  wake_.fetch_add(1);
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Threads::reserve(size_t bytes) {
  if (bytes <= scratch_bytes_) return;
  for (Buffer& memory : scratch_) {
    memory = allocate_aligned(bytes);
    HUNCH_CHECK(memory);
  }
  scratch_bytes_ = bytes;
}

// Takes items until none are left; false if there was none. `seen` is the state last looked at. What was done is counted once, at
// the end: a second shared counter per item would cost small loops as much as their items.
bool Threads::take_items(uint64_t& seen, int worker) {
  int64_t taken = 0;
  for (;;) {
    uint64_t state = state_.load(std::memory_order_acquire);
    // Read before the claim: they change only after every item of this loop is counted as done, and then the claim fails.
    const int64_t num_items = num_items_.load(std::memory_order_relaxed);
    void* self = self_.load(std::memory_order_relaxed);
    const Call call = call_.load(std::memory_order_relaxed);
    const int64_t item = int64_t(state & 0xffffffffu);
    if (item >= num_items) {
      seen = state;
      if (taken > 0) done_.fetch_add(taken, std::memory_order_acq_rel);
      return taken > 0;
    }
    if (!state_.compare_exchange_weak(state, state + 1, std::memory_order_acq_rel)) continue;
    call(self, item, worker);
    ++taken;
  }
}

void Threads::work(int worker) {
  uint64_t seen = ~uint64_t(0);
  for (;;) {
    take_items(seen, worker);
    const int64_t deadline = now_ns() + kIdleSpinNs;
    bool fresh = false;
    for (int spins = 0; !fresh; ++spins) {
      fresh = state_.load(std::memory_order_acquire) != seen;
      if (stop_.load(std::memory_order_relaxed)) return;
      pause();
      if (spins % kPausesPerLook == kPausesPerLook - 1 && now_ns() > deadline) break;
    }
    if (fresh) continue;
    // A caller stores the state before it looks at sleepers_; we count ourselves before we look at the state: one of us sees the
    // other (both sequentially consistent).
    const uint32_t ticket = wake_.load();
    sleepers_.fetch_add(1);
    if (state_.load() == seen && !stop_.load()) wake_.wait(ticket);
    sleepers_.fetch_sub(1);
    if (stop_.load()) return;
  }
}

void Threads::run_loop(int64_t num_items, void* self, Call call, bool alone) {
  if (num_items <= 0) return;
  HUNCH_CHECK(num_items < (int64_t(1) << 31));
  if (alone || num_items == 1 || count_ == 1) {
    for (int64_t item = 0; item < num_items; ++item) call(self, item, 0);
    return;
  }
  // The old loop's state says "no items left" until the new one is published as a whole.
  done_.store(0, std::memory_order_relaxed);
  const uint64_t loop = (state_.load(std::memory_order_relaxed) >> 32) + 1;
  // Close the old loop for certain: next < new num_items must not look like an open item.
  state_.store((loop - 1) << 32 | 0xffffffffu, std::memory_order_release);
  num_items_.store(num_items, std::memory_order_relaxed);
  self_.store(self, std::memory_order_relaxed);
  call_.store(call, std::memory_order_relaxed);
  state_.store((loop & 0xffffffffu) << 32);
  if (sleepers_.load() > 0) {
    wake_.fetch_add(1);
    wake_.notify_all();
  }
  uint64_t seen = 0;
  take_items(seen, 0);
  for (int spins = 0; done_.load(std::memory_order_acquire) != num_items; ++spins) {
    if (spins < kCallerSpins) pause();
    else sched_yield();
  }
}

}
