// See thin.h. The host's definitions, in its order of additions.
#include "backend/cuda/thin.h"

#include "backend/cuda/experts.h"
#include "backend/cuda/gate.cuh"
#include "backend/cuda/ptx.h"

namespace hunch {
namespace {

constexpr int kThreads = 256, kMostPerRow = 64;

__device__ void add(int64_t* to, int n) {  // to: the host's memory
  if (n != 0) atomicAdd_system(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(n));
}

struct ChannelsDevice {
  float* gate;
  int64_t *below, *skipped, stride;
  int rows, width;
  float threshold;
  bool by_row;
};
// A thread a channel.
__global__ void __launch_bounds__(kThreads) channels_kernel(const ChannelsDevice* args) {
  __shared__ int total, whole;
  const ChannelsDevice a = *args;
  if (threadIdx.x == 0) total = whole = 0;
  wait_for_previous();
  let_next_start();
  __syncthreads();
  const int channel = int(blockIdx.x) * kThreads + int(threadIdx.x);
  if (channel < a.width) {
    float* const at = a.gate + channel;
    int below = 0;
    for (int r = 0; r < a.rows; ++r) {
      const bool small = fabsf(silu(at[r * a.stride])) < a.threshold;
      below += small;
      if (small && a.by_row) at[r * a.stride] = 0;
    }
    for (int r = 0; below == a.rows && r < a.rows; ++r) at[r * a.stride] = 0;
    atomicAdd(&total, below), atomicAdd(&whole, int(below == a.rows));
  }
  __syncthreads();
  if (threadIdx.x == 0) add(a.below, total), add(a.skipped, whole);
}

struct ExpertsDevice {
  int32_t* ids;
  float* shares;
  const float* betas;
  int64_t *skipped, ids_stride, shares_stride;
  int rows, per_row, most;
  float mass;
  ExpertSkip mode;
  bool renorm;
};
// One block: a thread a row, which sorts its few weights by itself.
__global__ void __launch_bounds__(kThreads) experts_kernel(const ExpertsDevice* args) {
  __shared__ int users[kMostExperts], total;  // rows of each expert
  const ExpertsDevice a = *args;
  for (int e = int(threadIdx.x); e < kMostExperts; e += kThreads) users[e] = 0;
  if (threadIdx.x == 0) total = 0;
  wait_for_previous();
  let_next_start();
  __syncthreads();
  if (a.mode == ExpertSkip::UnionAware)
    for (int pair = int(threadIdx.x); pair < a.rows * a.per_row; pair += kThreads)
      atomicAdd(&users[a.ids[pair / a.per_row * a.ids_stride + pair % a.per_row]], 1);
  __syncthreads();
  for (int r = int(threadIdx.x); r < a.rows; r += kThreads) {
    int32_t* const ids = a.ids + r * a.ids_stride;
    float* const shares = a.shares + r * a.shares_stride;
    int least[kMostPerRow];  // slots by weight, of equal ones the first
    float all = 0;
    for (int slot = 0; slot < a.per_row; ++slot) {
      int place = slot;
      for (; place > 0 && shares[slot] < shares[least[place - 1]]; --place) least[place] = least[place - 1];
      least[place] = slot;
      all += shares[slot];
    }
    int count = 0;
    float sum = 0;
    if (a.mode == ExpertSkip::Literal || a.mode == ExpertSkip::Graded) {
      for (int j = 0; j + 1 < a.per_row; ++j) {
        sum += shares[least[j]];
        const int m = a.per_row - 1 - j;
        if (m <= a.most && (m == a.most || a.mode == ExpertSkip::Graded) && sum / all < a.betas[m - 1]) count = max(count, m);
      }
    } else {
      for (int j = 0; j < a.per_row && count < a.most; ++j) {
        const int slot = least[j];
        if (a.mode == ExpertSkip::UnionAware && users[ids[slot]] > 1) continue;
        sum += shares[slot];
        if (!(sum <= a.mass * all)) break;
        least[count++] = slot;
      }
    }
    for (int i = 0; i < count; ++i) ids[least[i]] = -1, shares[least[i]] = 0;
    atomicAdd(&total, count);
    if (count == 0 || !a.renorm) continue;
    float stays = 0;
    for (int slot = 0; slot < a.per_row; ++slot) stays += shares[slot];
    for (int slot = 0; slot < a.per_row && stays > 0; ++slot) shares[slot] *= all / stays;
  }
  __syncthreads();
  if (threadIdx.x == 0) add(a.skipped, total);
}

}

void enqueue_thin_channels(Commands& commands, const ThinChannelsArgs& args) {
  const int64_t rows = args.gate.extent[0], width = args.gate.extent[1];
  if (rows == 0) return;
  HUNCH_CHECK(args.gate.stride[1] == 1);
  commands.launch(channels_kernel, {.blocks = dim3(unsigned((width + kThreads - 1) / kThreads)), .threads = kThreads},
      ChannelsDevice{
          args.gate.data, args.below, args.skipped, args.gate.stride[0], int(rows), int(width), args.threshold, args.by_row});
}

void enqueue_thin_experts(Commands& commands, const ThinExpertsArgs& args) {
  const int64_t rows = args.ids.extent[0], k = args.ids.extent[1];
  const int most = int(std::min<int64_t>(args.most, k - 1));
  if (rows == 0 || most <= 0) return;
  HUNCH_CHECK(k <= kMostPerRow && args.ids.stride[1] == 1 && args.shares.stride[1] == 1);
  commands.launch(experts_kernel, {.blocks = dim3(1), .threads = kThreads},
      ExpertsDevice{args.ids.data, args.shares.data, args.betas, args.skipped, args.ids.stride[0], args.shares.stride[0],
          int(rows), int(k), most, args.mass, args.mode, args.renorm});
}

}
