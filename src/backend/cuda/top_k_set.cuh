// What the kernels of a selection (top_k.cu, top_k_stream.cuh) know of a set of scores. The host describes calls; sets are found
// from them on the device, since a list of ten thousand sets takes longer to copy than their selection.
#pragma once

#include <cstdint>

namespace hunch {

constexpr int kMostSteps = 6;  // 1 + 2 + 4 + 8 + 16 + 1

// The steps of a spread by doubling. Spreads that are not done in registers have none here.
struct Spread {
  int32_t num_steps, step[kMostSteps];
  float factor[kMostSteps];
  __host__ __device__ bool is_sixteen() const { return num_steps == 5 && step[3] == 8 && step[4] == 1; }
};

struct TopKCall {
  const float* scores;
  int32_t* index;
  int64_t score_stride, index_stride;
  int32_t first, n, count, sinks, recent_from;  // first: number of its first set
  Spread spread;
};

struct TopKSet {
  const float* scores;
  int32_t* index;
  int32_t n, count, sinks, recent_from, aligned;
  Spread spread;
};

struct TopKSets {
  const TopKCall* calls;
  const uint32_t* call_of;  // of each set
  int32_t num_sets, pad;

  __device__ __forceinline__ TopKSet operator[](int i) const {
    const TopKCall call = calls[call_of[i]];
    const float* scores = call.scores + (i - call.first) * call.score_stride;
    return {scores, call.index + (i - call.first) * call.index_stride, call.n, call.count, call.sinks, call.recent_from,
        reinterpret_cast<uintptr_t>(scores) % 16 == 0, call.spread};
  }
};

}  // namespace hunch
