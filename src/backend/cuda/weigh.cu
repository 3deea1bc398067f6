// The residual of every drafted token, reached or not: blocks race parts of a vocabulary, then a warp a token folds the parts.
// Both of a residual's races are run: over p - q, and over p where that vanishes. An id is looked at in fp64 only if fp32 says
// that it may win.
#include "backend/cuda/weigh.h"

#include "backend/cuda/noise.cuh"
#include "backend/cuda/ptx.h"

namespace hunch {
namespace {

constexpr int kParts = 8, kThreads = 512, kWarps = kThreads / 32;
constexpr unsigned kEveryLane = 0xffffffffu;

struct Runner {
  double time = INFINITY;
  int32_t id = INT32_MAX;  // none
  HUNCH_DEVICE void meet(double other_time, int32_t other_id) {
    if (other_time < time || (other_time == time && other_id < id)) time = other_time, id = other_id;
  }
  HUNCH_DEVICE void meet_lanes() {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) meet(__shfl_xor_sync(kEveryLane, time, d), __shfl_xor_sync(kEveryLane, id, d));
  }
};
struct Runners {
  Runner residual, target;
};

struct Weighed {
  const float *p, *q;
  const int32_t* token;
  float* weights;  // of p and of q
  int32_t* residual;
  NoiseSource noise;
  int32_t vocab;
};
struct WeighDevice {
  const Weighed* nodes;
  Runners* parts;  // [node][kParts]
};

HUNCH_DEVICE void run(Runner& best, float about, double weight, uint32_t bits, int32_t id) {
  if (!(weight > 0) || about > 1.001f * float(best.time) * float(weight)) return;
  best.meet(-log((double(bits) + 0.5) * 0x1p-32) / weight, id);
}

__global__ void __launch_bounds__(kThreads) race_kernel(const WeighDevice* args) {
  __shared__ Runners warps[kWarps];
  wait_for_previous();
  let_next_start();
  const Weighed a = args->nodes[blockIdx.x];
  Runners best;
  for (int id = 4 * int(blockIdx.y * kThreads + threadIdx.x); id < a.vocab; id += 4 * kParts * kThreads) {
    float p[4], q[4];
    bool any = false;
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      p[c] = id + c < a.vocab ? a.p[id + c] : 0, q[c] = id + c < a.vocab ? a.q[id + c] : 0;
      any |= p[c] > 0;
    }
    if (!any) continue;
    const uint4 noise = a.noise.bits_of_four(uint32_t(id) / 4);
    const uint32_t bits[4] = {noise.x, noise.y, noise.z, noise.w};
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (!(p[c] > 0)) continue;
      const float about = exponential_about(bits[c]);
      run(best.residual, about, double(p[c]) - double(q[c]), bits[c], id + c);
      run(best.target, about, double(p[c]), bits[c], id + c);
    }
  }
  best.residual.meet_lanes(), best.target.meet_lanes();
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  best = threadIdx.x < kWarps ? warps[threadIdx.x] : Runners{};
  best.residual.meet_lanes(), best.target.meet_lanes();
  if (threadIdx.x == 0) args->parts[blockIdx.x * kParts + blockIdx.y] = best;
}

__global__ void fold_races_kernel(const WeighDevice* args) {
  wait_for_previous();
  let_next_start();
  const Weighed a = args->nodes[blockIdx.x];
  Runners best = threadIdx.x < kParts ? args->parts[blockIdx.x * kParts + threadIdx.x] : Runners{};
  best.residual.meet_lanes(), best.target.meet_lanes();
  if (threadIdx.x != 0) return;
  const int32_t id = best.residual.id != INT32_MAX ? best.residual.id : best.target.id, token = *a.token;
  *a.residual = id != INT32_MAX ? id : -1;
  a.weights[0] = token < 0 ? 0 : a.p[token], a.weights[1] = token < 0 ? 0 : a.q[token];
}

}

void enqueue_weigh_drafts(Commands& commands, std::span<const WeighDraftsArgs> chains) {
  std::vector<Weighed> nodes;
  for (const WeighDraftsArgs& args : chains) {
    HUNCH_CHECK(args.p.stride[1] == 1 && args.q.stride[1] == 1 && args.weights.stride[1] == 1);
    for (int64_t i = 0; i < args.tokens.extent[0]; ++i)
      nodes.push_back({
          .p = &args.p(i, 0),
          .q = &args.q(i, 0),
          .token = &args.tokens(i),
          .weights = &args.weights(i, 0),
          .residual = &args.residuals(i),
          .noise = {{uint32_t(args.key.seed), uint32_t(args.key.seed >> 32)}, uint32_t(args.first_position + i),
              uint32_t(NoiseStream::Residual), args.key.sample},
          .vocab = int32_t(args.p.extent[1]),
      });
  }
  if (nodes.empty()) return;
  const WeighDevice args{commands.data(std::span<const Weighed>(nodes)),
      static_cast<Runners*>(commands.workspace(nodes.size() * kParts * sizeof(Runners)))};
  commands.launch(race_kernel, {.blocks = dim3(unsigned(nodes.size()), kParts), .threads = kThreads}, args);
  commands.launch(fold_races_kernel, {.blocks = dim3(unsigned(nodes.size())), .threads = 32}, args);
}

}
