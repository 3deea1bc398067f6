// Selection of the best entries: contract in backend/ops/top_k.h. A block takes a set that its memory holds, a cluster of eight
// blocks any other. Each warp owns a run of rows of 128 entries: it reads and dilates them in registers, keeps the keys in shared
// memory while three histograms find the threshold (select.cuh), then writes its indices behind those of the warps before it.
#include "backend/cuda/top_k.h"

#include "backend/cuda/ptx.h"
#include "backend/cuda/select.cuh"
#include "backend/reference/reference_backend.h"

namespace hunch {
namespace {

constexpr int kRow = 128;                    // entries of one warp-wide load, four per lane
constexpr int kBatch = 8;                    // rows in flight per warp: 8 x 16 bytes per lane
constexpr int kHeldRows = 16;                // rows of keys that a warp keeps at most
constexpr int kManySets = 8, kFewSets = 24;  // warps of a block: three blocks of 64 KiB per multiprocessor, or one of 192 KiB
constexpr int kFusedSpread = 32;             // farther than the 32 entries before a batch nothing is read

constexpr int kMostSteps = 6;  // 1 + 2 + 4 + 8 + 16 + 1

// The steps of a spread by doubling. Spreads that are not done in registers have none here.
struct Spread {
  int32_t num_steps, step[kMostSteps];
  float factor[kMostSteps];
};

struct TopKCall {
  const float* scores;
  int32_t* index;
  int64_t score_stride, index_stride;
  int32_t first, n, count, sinks, recent_from, block;  // first: number of its first set
  Spread spread;
};

struct TopKSet {
  const float* scores;
  int32_t* index;
  int32_t n, count, sinks, recent_from, block, aligned;
  Spread spread;
};

// The i-th of a set's list is j: its block's entries.
HUNCH_DEVICE void put_choice(const TopKSet& set, uint32_t i, int32_t j) {
  int32_t* to = set.index + int64_t(i) * set.block;
  for (int e = 0; e < set.block; ++e) to[e] = j * set.block + e;
}

// The host describes calls; sets are found from them on the device, since a list of ten thousand sets takes longer to copy than
// their selection.
struct TopKSets {
  const TopKCall* calls;
  const uint32_t* call_of;  // of each set
  int32_t num_sets, pad;

  HUNCH_DEVICE TopKSet operator[](int i) const {
    const TopKCall call = calls[call_of[i]];
    const float* scores = call.scores + (i - call.first) * call.score_stride;
    return {scores, call.index + (i - call.first) * call.index_stride, call.n, call.count, call.sinks, call.recent_from,
        call.block, reinterpret_cast<uintptr_t>(scores) % 16 == 0, call.spread};
  }
};

struct TopKDevice {
  TopKSets sets;
  int32_t held, pad;  // rows of keys that a warp keeps, a multiple of four; below kHeldRows they hold every set
};

struct Shared {
  SelectShared select;
  TopKSet set;
  uint32_t warp_counts[32];
  uint32_t block_counts[kClusterBlocks];
  alignas(16) uint4 keys[1];  // [warps][held][32]
};

// One step of the dilation in registers: y[i][c] of lane l is entry 128 i + 4 l + c of the batch; y[0] holds the entries before
// it. The step is 4 * lanes + kRest entries. Rows go last to first, so that the row before still has its old values.
template <bool kNan, int kRest, bool kNear>
HUNCH_DEVICE void dilate(float (&y)[kBatch + 1][4], int lanes, float factor) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int i = kBatch; i >= 0; --i) {
    float moved[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int from = (c + 4 - kRest) & 3;
      if (kNear && c >= kRest) {
        moved[c] = y[i][from];
      } else {
        const int d = lanes + (c < kRest ? 1 : 0);  // lanes back; the first d lanes read the end of the row before
        const float given = lane >= 32 - d ? (i > 0 ? y[i > 0 ? i - 1 : 0][from] : -INFINITY) : y[i][from];
        moved[c] = __shfl_sync(kAllLanes, given, (lane - d) & 31);
      }
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const float x = factor * moved[c];
      // A NaN stays where it is and never spreads; fmaxf() would let a number take its place.
      if (kNan) y[i][c] = x > y[i][c] ? x : y[i][c];
      else y[i][c] = fmaxf(y[i][c], x);
    }
  }
}

template <bool kNan>
HUNCH_DEVICE void dilate_all(float (&y)[kBatch + 1][4], const TopKSet& set) {
  for (int s = 0; s < set.spread.num_steps; ++s) {
    const int lanes = set.spread.step[s] >> 2;
    const float factor = set.spread.factor[s];
    switch (set.spread.step[s] & 3) {
      case 0: dilate<kNan, 0, false>(y, lanes, factor); break;
      case 1:
        if (lanes == 0) dilate<kNan, 1, true>(y, 0, factor);
        else dilate<kNan, 1, false>(y, lanes, factor);
        break;
      case 2:
        if (lanes == 0) dilate<kNan, 2, true>(y, 0, factor);
        else dilate<kNan, 2, false>(y, lanes, factor);
        break;
      default:
        if (lanes == 0) dilate<kNan, 3, true>(y, 0, factor);
        else dilate<kNan, 3, false>(y, lanes, factor);
    }
  }
}

// Keys of rows [first, last) (at most kBatch), [row][lane] in shared memory; each lane writes what it alone reads later.
__device__ __noinline__ void load_batch(const TopKSet& set, int first, int last, uint4* keys) {
  const int lane = threadIdx.x & 31;
  float y[kBatch + 1][4];
#pragma unroll
  for (int i = 0; i <= kBatch; ++i) {
    const int row = first + i - 1;
    const int j = row * kRow + lane * 4;
    // Before the batch only the 32 entries that may spread into it are read.
    const bool wanted = i > 0 ? row < last : set.spread.num_steps > 0 && row >= 0 && lane >= 24;
    if (wanted && set.aligned && j + 4 <= set.n) {
      const float4 x = __ldg(reinterpret_cast<const float4*>(set.scores + j));
      y[i][0] = x.x, y[i][1] = x.y, y[i][2] = x.z, y[i][3] = x.w;
    } else {
#pragma unroll
      for (int c = 0; c < 4; ++c) y[i][c] = wanted && j + c < set.n ? __ldg(set.scores + j + c) : -INFINITY;
    }
  }
  bool odd = false;
#pragma unroll
  for (int i = 0; i <= kBatch; ++i)
#pragma unroll
    for (int c = 0; c < 4; ++c) odd = odd || y[i][c] != y[i][c];
  const bool nan = __any_sync(kAllLanes, odd);
  if (nan) dilate_all<true>(y, set);
  else dilate_all<false>(y, set);
#pragma unroll
  for (int i = 0; i < kBatch; ++i) {
    const int row = first + i, j = row * kRow + lane * 4;
    if (row >= last) break;
    uint32_t k[4];
#pragma unroll
    for (int c = 0; c < 4; ++c) k[c] = key_of_number(y[i + 1][c]);
    const bool edge = row * kRow < set.sinks || (row + 1) * kRow > set.recent_from;  // recent_from <= n
    if (nan || edge) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        if (y[i + 1][c] != y[i + 1][c]) k[c] = kNanKey;
        if (j + c < set.sinks || j + c >= set.recent_from) k[c] = kInfKey;
        if (j + c >= set.n) k[c] = kAbsentKey;
      }
    }
    keys[i * 32 + lane] = make_uint4(k[0], k[1], k[2], k[3]);
  }
}

// The rows of one warp. Rows past those held are read again by every pass, into the last batch of the warp's memory.
struct WarpRows {
  const TopKSet& set;
  uint4* keys;
  int first, last, held;

  template <class Op>
  HUNCH_DEVICE void each_row(bool load_all, const Op& op) const {
    const int lane = threadIdx.x & 31;
    for (int b = first; b < last; b += kBatch) {
      const bool kept = b - first < held;
      uint4* slot = keys + (kept ? b - first : held) * 32;
      const int end = min(b + kBatch, last);
      if (load_all || !kept) load_batch(set, b, end, slot);
#pragma unroll 1
      for (int r = b; r < end; r += 4) {  // four loads in flight; rows past the end hold anything
        uint4 k[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) k[i] = load_four(slot + (r - b + i) * 32 + lane);
        __syncwarp();  // `op` may overwrite these keys, other lanes' among them
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (r + i < end) op(k[i], uint32_t((r + i) * kRow + lane * 4));
      }
    }
  }
  template <class Op>
  HUNCH_DEVICE void each(const Op& op) const {
    each_row(false, [&](uint4 k, uint32_t j) { op(k.x, j), op(k.y, j + 1), op(k.z, j + 2), op(k.w, j + 3); });
  }
};

// One set, by all blocks of a cluster, with s.set and clear bins visible to all of them.
template <int kBlocks>
HUNCH_DEVICE void choose_set(Shared& s, int held) {
  const auto cluster = blocks_together<kBlocks>();
  const int rank = int(cluster.block_rank()), warp = threadIdx.x >> 5, lane = threadIdx.x & 31, warps = blockDim.x >> 5;
  const TopKSet& set = s.set;

  const int rows = (set.n + kRow - 1) / kRow, share = (rows + kBlocks * warps - 1) / (kBlocks * warps);
  const int first = min((rank * warps + warp) * share, rows), last = min(first + share, rows);
  const WarpRows mine{set, s.keys + warp * held * 32, first, last, share <= held ? held : held - kBatch};

  mine.each_row(true, [&](uint4 k, uint32_t) {
    count_high(s.select, k.x), count_high(s.select, k.y), count_high(s.select, k.z), count_high(s.select, k.w);
  });
  const Threshold kept = select_best<kBlocks>(s.select, uint32_t(set.count), [&](const auto& op) { mine.each(op); });

  // Each warp's count, so that it knows where its indices begin; held rows become their indices on the way, over the keys that
  // they were chosen by (an index never lands past its key).
  const uint32_t before = (1u << lane) - 1;
  const auto write_kept = [&](uint4 k, uint32_t j, uint32_t at, const auto& put) {
    const auto keep = kept.keeps_four(k, j);
    const uint32_t own = uint32_t(keep.x) + uint32_t(keep.y) + uint32_t(keep.z) + uint32_t(keep.w);
    const uint32_t ones = __ballot_sync(kAllLanes, own & 1), twos = __ballot_sync(kAllLanes, own & 2),
                   fours = __ballot_sync(kAllLanes, own & 4);
    if ((ones | twos | fours) == 0) return at;
    uint32_t to = at + __popc(ones & before) + 2 * __popc(twos & before) + 4 * __popc(fours & before);
    if (keep.x) put(to++, int32_t(j));
    if (keep.y) put(to++, int32_t(j) + 1);
    if (keep.z) put(to++, int32_t(j) + 2);
    if (keep.w) put(to++, int32_t(j) + 3);
    return at + __popc(ones) + 2 * __popc(twos) + 4 * __popc(fours);
  };
  const bool all_held = share <= held;
  int32_t* list = reinterpret_cast<int32_t*>(mine.keys);
  uint32_t count = 0;
  if (all_held) {
    mine.each_row(false,
        [&](uint4 k, uint32_t j) { count = write_kept(k, j, count, [&](uint32_t to, int32_t index) { list[to] = index; }); });
  } else {
    mine.each_row(false, [&](uint4 k, uint32_t j) {
      const auto keep = kept.keeps_four(k, j);
      count += uint32_t(keep.x) + uint32_t(keep.y) + uint32_t(keep.z) + uint32_t(keep.w);
    });
    count = __reduce_add_sync(kAllLanes, count);
  }
  if (lane == 0) s.warp_counts[warp] = count;
  __syncthreads();
  if (warp == 0) {
    const uint32_t total = __reduce_add_sync(kAllLanes, lane < warps ? s.warp_counts[lane] : 0u);
    if (lane < kBlocks) *cluster.map_shared_rank(&s.block_counts[rank], lane) = total;
  }
  cluster.sync();
  uint32_t at = __reduce_add_sync(
      kAllLanes, (lane < rank ? s.block_counts[lane % kClusterBlocks] : 0u) + (lane < warp ? s.warp_counts[lane] : 0u));
  if (all_held) {
    const uint32_t block = uint32_t(set.block);
    int32_t* to = set.index + at * block;
    for (uint32_t i = lane; i < count * block; i += 32) to[i] = list[i / block] * set.block + int32_t(i % block);
  } else {
    mine.each_row(false,
        [&](uint4 k, uint32_t j) { at = write_kept(k, j, at, [&](uint32_t to, int32_t index) { put_choice(set, to, index); }); });
  }
}

template <int kBlocks>
HUNCH_DEVICE void choose_mine(const TopKDevice* args) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const TopKDevice a = *args;
  clear_bins(s.select);
  wait_for_previous();
  let_next_start();
  if (threadIdx.x == 0) s.set = a.sets[int(blockIdx.x) / kBlocks];
  blocks_together<kBlocks>().sync();  // all have begun: others may write into their memory
  choose_set<kBlocks>(s, a.held);
}
__global__ void HUNCH_CLUSTER(kClusterBlocks) __launch_bounds__(kFewSets * 32, 1) top_k_kernel(const TopKDevice* args) {
  if (HUNCH_HOPPER) choose_mine<kClusterBlocks>(args);
}
__global__ void __launch_bounds__(kFewSets * 32, 1) top_k_alone_kernel(const TopKDevice* args) { choose_mine<1>(args); }

// Spreads too far for the registers: one step over all sets, from one array into another.
struct DilateSet {
  const float* from;
  float* to;
  int32_t n, step;
  float factor;
};
struct DilateDevice {
  const DilateSet* sets;
};
__global__ void __launch_bounds__(256) dilate_kernel(const DilateDevice* args) {
  wait_for_previous();
  let_next_start();
  const DilateSet set = args->sets[blockIdx.x];
  for (int j = int(blockIdx.y * blockDim.x + threadIdx.x); j < set.n; j += int(gridDim.y * blockDim.x)) {
    const float old = set.from[j], x = j >= set.step ? set.factor * set.from[j - set.step] : -INFINITY;
    set.to[j] = x > old ? x : old;
  }
}

// The steps of the doubling scheme.
std::vector<int> steps_of(int spread) {
  std::vector<int> steps;
  for (int reach = 0; reach < spread;) {
    steps.push_back(std::min(reach + 1, spread - reach));
    reach += steps.back();
  }
  return steps;
}

// Sets whose spread is too far for the registers are dilated into scratch first, a launch per step of each such spread.
void spread_far(Commands& commands, std::vector<TopKCall>& calls, std::span<const TopKArgs> asked) {
  const auto padded = [](const TopKCall& call) { return (size_t(call.n) + 3) / 4 * 4; };
  size_t total = 0;
  std::vector<int> far;  // the spreads there are
  for (size_t i = 0; i < calls.size(); ++i) {
    if (asked[i].spread <= kFusedSpread) continue;
    total += padded(calls[i]) * size_t(asked[i].scores.extent[0]);
    if (std::ranges::find(far, asked[i].spread) == far.end()) far.push_back(asked[i].spread);
  }
  if (far.empty()) return;
  float* scratch = static_cast<float*>(commands.workspace(2 * total * sizeof(float)));
  for (const int spread : far) {
    std::vector<DilateSet> moves;
    size_t used = 0;
    int round = 0;
    for (const int step : steps_of(spread)) {
      float* to = scratch + (round++ % 2 ? total : 0);
      moves.clear();
      for (size_t i = 0; i < calls.size(); ++i) {
        if (asked[i].spread != spread) continue;
        TopKCall& call = calls[i];
        float* first = to;
        for (int64_t row = 0; row < asked[i].scores.extent[0]; ++row, to += padded(call))
          moves.push_back({call.scores + row * call.score_stride, to, call.n, step, ReferenceBackend::dilation_factor(step)});
        call.scores = first, call.score_stride = int64_t(padded(call));
      }
      used = size_t(to - scratch) - (round % 2 ? 0 : total);
      commands.launch(dilate_kernel, {.blocks = dim3(unsigned(moves.size()), 64), .threads = 256},
          DilateDevice{commands.data(std::span<const DilateSet>(moves))});
    }
    scratch += used;
  }
}

Grid grid_of(int blocks, int warps, int held) {
  return {.blocks = dim3(unsigned(blocks)),
      .threads = unsigned(warps) * 32,
      .shared_bytes = sizeof(Shared) + size_t(warps) * held * 32 * sizeof(uint4)};
}

// A block a set, where blocks hold them all and are enough to be worth it; else a cluster a set.
void launch(Commands& commands, const std::vector<TopKCall>& calls, const TopKSets& sets) {
  int most = 0;
  for (const TopKCall& call : calls) most = std::max(most, call.n);
  const int rows = (most + kRow - 1) / kRow;
  const int warps = rows <= kManySets * kHeldRows ? kManySets : kFewSets, share = (rows + warps - 1) / warps;
  if (share <= kHeldRows && sets.num_sets * kRow * 4 >= most) {
    const int held = share <= 4 ? 4 : share <= 8 ? 8 : kHeldRows;
    commands.launch(top_k_alone_kernel, grid_of(sets.num_sets, warps, held), TopKDevice{sets, held, 0});
  } else {
    const bool few = sets.num_sets * kClusterBlocks <= device_facts().num_sms;
    commands.launch(top_k_kernel, grid_of(sets.num_sets * kClusterBlocks, few ? kFewSets : kManySets, kHeldRows),
        TopKDevice{sets, kHeldRows, 0});
  }
  commands.wrote_cache();
}

}

void enqueue_top_k(Commands& commands, std::span<const TopKArgs> asked) {
  std::vector<TopKCall> calls;
  std::vector<uint32_t> call_of;
  for (const TopKArgs& args : asked) {
    HUNCH_CHECK(args.count >= 1 && args.count <= args.n && args.n < kMostEntries);
    HUNCH_CHECK(args.scores.stride[1] == 1 && args.index.stride[1] == 1 && args.index.extent[0] >= args.scores.extent[0]);
    HUNCH_CHECK(args.block >= 1 && args.n * args.block < (int64_t(1) << 31));
    TopKCall call{};
    call.scores = args.scores.data, call.score_stride = args.scores.stride[0];
    call.index = args.index.data, call.index_stride = args.index.stride[0];
    call.first = int32_t(call_of.size());
    call.n = int32_t(args.n), call.count = int32_t(args.count), call.block = args.block;
    call.sinks = args.sinks, call.recent_from = int32_t(std::max<int64_t>(args.n - args.recent, 0));
    if (args.spread <= kFusedSpread)
      for (const int step : steps_of(args.spread)) {
        call.spread.step[call.spread.num_steps] = step;
        call.spread.factor[call.spread.num_steps++] = ReferenceBackend::dilation_factor(step);
      }
    call_of.insert(call_of.end(), size_t(args.scores.extent[0]), uint32_t(calls.size()));
    calls.push_back(call);
  }
  if (call_of.empty()) return;
  spread_far(commands, calls, asked);
  launch(commands, calls,
      {commands.data(std::span<const TopKCall>(calls)), commands.data(std::span<const uint32_t>(call_of)),
          int32_t(call_of.size()), 0});
}

}
