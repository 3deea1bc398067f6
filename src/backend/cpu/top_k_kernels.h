// Arguments of the selection kernel. Filled by top_k.cpp, read by top_k_body.h; contract in ops/top_k.h.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hunch {

struct TopKItem {
  const float* scores = nullptr;  // [n]
  int64_t n = 0, count = 0;
  int spread = 0, sinks = 0, recent = 0;
  const float* factors = nullptr;  // of each doubling step of the spread
  int64_t reach = 16;              // a multiple of 16, at least the widest step
  int32_t* index = nullptr;        // [count]
  std::byte* scratch = nullptr;    // top_k_scratch_bytes()
};

// Scores with room before them, which become keys; candidates; four histograms.
constexpr size_t top_k_scratch_bytes(int64_t n, int64_t reach) {
  return size_t(reach) * 4 + 2 * (size_t(n) + 48) * 4 + 4 * 2048 * 4 + 64;
}

struct TopKKernels {
  void (*select)(const TopKItem&) = nullptr;
};

}
