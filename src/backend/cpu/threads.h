// A fixed set of threads, the calling one among them, that hand out the items of one parallel loop at a time. Made by CpuBackend;
// every kernel launcher calls run(). Results must not depend on who takes which item.
#pragma once

#include <atomic>
#include <thread>
#include <type_traits>
#include <vector>

#include "tensor/buffer.h"

namespace hunch {

// Cores that this process may use: its affinity mask, limited by the cgroup's cpu quota (rounded up). At least 1.
int usable_cores();

class Threads {
 public:
  explicit Threads(int count);  // count >= 1; count - 1 threads are started
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  int count() const { return count_; }

  // Calls fn(item, worker) once for every item in [0, num_items), in any order, on any worker in [0, count()); when it returns
  // all have, and what they wrote is visible. Never allocates. Not to be called from inside an item. `alone`: the caller is done
  // with all of them sooner than a fork and join.
  template <class F>
  void run(int64_t num_items, F&& fn, bool alone = false) {
    using Fn = std::remove_reference_t<F>;
    const Call call = [](void* self, int64_t item, int worker) { (*static_cast<Fn*>(self))(item, worker); };
    run_loop(num_items, const_cast<void*>(static_cast<const void*>(&fn)), call, alone);
  }

  // Private memory of each worker, aligned to 64, valid until the next reserve(); contents do not survive a run. reserve() grows
  // all workers' (never shrinks it), before run(), so that nothing allocates once sizes have been seen.
  void reserve(size_t bytes);
  std::byte* scratch(int worker) const { return static_cast<std::byte*>(scratch_[worker].data()); }

 private:
  using Call = void (*)(void* self, int64_t item, int worker);
  void run_loop(int64_t num_items, void* self, Call call, bool alone);
  bool take_items(uint64_t& seen, int worker);
  void work(int worker);

  int count_ = 1;
  std::vector<std::thread> threads_;
  std::vector<Buffer> scratch_;
  size_t scratch_bytes_ = 0;

  // The open loop. `state_` is (number of the loop) << 32 | next item: a claim is one compare-exchange, so that who slept through
  // a loop never takes an item of the next one with the last one's arguments.
  alignas(64) std::atomic<uint64_t> state_{0};
  std::atomic<int64_t> num_items_{0};
  std::atomic<void*> self_{nullptr};
  std::atomic<Call> call_{nullptr};
  alignas(64) std::atomic<int64_t> done_{0};
  alignas(64) std::atomic<uint32_t> wake_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
};

// Memory aligned to 64 bytes; from 2 MiB on mapped whole and offered to huge pages. Empty if it cannot be had. Zeroed by the
// system where mapped, undefined otherwise.
Buffer allocate_aligned(size_t bytes);

}
