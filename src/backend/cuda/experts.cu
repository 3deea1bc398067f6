// See experts.h. A call is, for every kExpertRows rows: pairs (row, expert) sorted by expert; gate and up of every pair, whose
// row is read where it lies; the gate; down; and the shares of each row, added in the order of its ids. A pair's values lie at
// row * k + slot, wherever sorting has put the pair: so no bit depends on the order of pairs within an expert.
#include "backend/cuda/experts.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "backend/cuda/plain_products.cuh"
#include "backend/cuda/rows.h"

namespace hunch {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kSortThreads = 1024, kCombineThreads = 256;
constexpr int kGroups = 4, kBlockPairs = 8 * kGroups;  // pairs that a block multiplies with the weights it reads: N tiles of 8
constexpr int kNobody = 0x7fffffff;

struct RouteDevice {
  const float* logits;
  int32_t* ids;
  float* shares;
  int64_t logits_stride, ids_stride, shares_stride;
  int experts, per_row;
  bool of_chosen, normalise;
};

// NaN ranks lowest.
__device__ bool better(float a, float b) { return isnan(b) ? !isnan(a) : a > b; }

// A warp a row; lane l has experts l, l + 32, ... and a bit for each that is chosen.
__global__ void __launch_bounds__(32) route_kernel(const RouteDevice* args) {
  static_assert(kMostExperts <= 32 * 32);
  __shared__ float p[kMostExperts], chosen[kMostExperts];
  let_next_start();
  const RouteDevice a = *args;
  wait_for_previous();
  const int lane = int(threadIdx.x), n = a.experts;
  const float* logits = a.logits + blockIdx.x * a.logits_stride;
  float greatest = -INFINITY, sum = 0;
  for (int e = lane; e < n; e += 32) greatest = fmaxf(greatest, logits[e]);
  for (int d = 16; d > 0; d /= 2) greatest = fmaxf(greatest, __shfl_xor_sync(kAll, greatest, d));
  if (a.of_chosen) {
    for (int e = lane; e < n; e += 32) p[e] = logits[e];
  } else {
    for (int e = lane; e < n; e += 32) sum += p[e] = expf(logits[e] - greatest);
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(kAll, sum, d);
    for (int e = lane; e < n; e += 32) p[e] /= sum;  // a lane reads back its own only
  }

  uint32_t taken = 0;
  for (int slot = 0; slot < a.per_row; ++slot) {
    int best = kNobody;
    float value = NAN;
    for (int e = lane, i = 0; e < n; e += 32, ++i)
      if (!(taken >> i & 1) && (best == kNobody || better(p[e], value))) best = e, value = p[e];
    for (int d = 16; d > 0; d /= 2) {
      const int other = __shfl_xor_sync(kAll, best, d);
      const float others = __shfl_xor_sync(kAll, value, d);
      if (better(others, value) || (!better(value, others) && other < best)) best = other, value = others;
    }
    if (best % 32 == lane) taken |= 1u << (best / 32);
  }

  int before = 0;  // chosen with a lower id
  for (int e = lane, i = 0; i * 32 < n; e += 32, ++i) {
    const uint32_t row = __ballot_sync(kAll, taken >> i & 1);
    if (taken >> i & 1) {
      const int place = before + __popc(row & ((1u << lane) - 1));
      a.ids[blockIdx.x * a.ids_stride + place] = e;
      chosen[place] = a.of_chosen ? expf(p[e] - greatest) : p[e];
    }
    before += __popc(row);
  }
  __syncwarp();
  float total = 1;
  if (a.normalise || a.of_chosen) {
    total = 0;
    for (int i = 0; i < a.per_row; ++i) total += chosen[i];
  }
  for (int i = lane; i < a.per_row; i += 32) a.shares[blockIdx.x * a.shares_stride + i] = chosen[i] / total;
}

struct __align__(16) UsedExpert {
  int expert, first, count, pad;  // `count` pairs from `first` on
};
struct SortDevice {
  const int32_t* ids;
  UsedExpert* used;  // [most_used], ascending; then such with no pairs
  int32_t* pairs;    // [rows * per_row]
  ExpertsRead *total, *seen;
  uint64_t expert_bytes;
  int64_t ids_stride;
  int rows, per_row, experts, most_used;
};
// One block: a counting sort.
__global__ void __launch_bounds__(kSortThreads) sort_kernel(const SortDevice* args) {
  __shared__ int count[kMostExperts], next[kMostExperts];
  let_next_start();
  const SortDevice a = *args;
  wait_for_previous();
  const int t = int(threadIdx.x), pairs = a.rows * a.per_row;
  const auto id_of = [&](int pair) { return a.ids[pair / a.per_row * a.ids_stride + pair % a.per_row]; };
  for (int e = t; e < a.experts; e += kSortThreads) count[e] = 0;
  __syncthreads();
  for (int pair = t; pair < pairs; pair += kSortThreads) atomicAdd(&count[id_of(pair)], 1);
  __syncthreads();
  if (t < 32) {
    int first = 0, used = 0;
    for (int base = 0; base < a.experts; base += 32) {
      const int e = base + t, own = e < a.experts ? count[e] : 0;
      int end = own;
      for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(kAll, end, d);
        if (t >= d) end += other;
      }
      const uint32_t some = __ballot_sync(kAll, own > 0);
      if (e < a.experts) next[e] = first + end - own;
      if (own > 0) a.used[used + __popc(some & ((1u << t) - 1))] = {e, first + end - own, own, 0};
      first += __shfl_sync(kAll, end, 31);
      used += __popc(some);
    }
    for (int i = used + t; i < a.most_used; i += 32) a.used[i] = {0, 0, 0, 0};
    if (t == 0) {  // calls run one after the other
      const ExpertsRead total{a.total->experts + uint64_t(used), a.total->bytes + uint64_t(used) * a.expert_bytes};
      *a.total = total, *a.seen = total;
    }
  }
  __syncthreads();
  for (int pair = t; pair < pairs; pair += kSortThreads) a.pairs[atomicAdd(&next[id_of(pair)], 1)] = pair;
}

struct ExpertProducts {
  const std::byte* const* tiles;  // [matrices][experts]
  const float* const* biases;     // likewise; null: none
  const UsedExpert* used;
  const int32_t* pairs;
  const float* x;
  float* out;                    // [matrices][pairs][out_dim]
  int64_t x_stride, out_matrix;  // from one matrix's pairs to the next's
  int pairs_of_row;              // pairs that share a row of x
  int experts, in_dim, out_dim, num_tiles, num_records, records_per_input, splits;
  float unit;
};
// Grid: (tiles of all matrices, used experts, pairs of an expert / kBlockPairs). The sums of plain_rows_kernel, bit for bit.
template <DType kType>
__global__ void __launch_bounds__(128) expert_products_kernel(const ExpertProducts* args) {
  constexpr RecordShape kShape = record_shape(kType);
  constexpr int kPieces = kShape.bytes / 16, kHeld = (kPieces + 127) / 128;
  __shared__ __align__(128) std::byte record[kShape.bytes];
  __shared__ int pair_of[kBlockPairs];
  let_next_start();
  const ExpertProducts a = *args;
  wait_for_previous();
  const int t = int(threadIdx.x), lane = t % 32;
  const int4 used = __ldcg(reinterpret_cast<const int4*>(a.used) + blockIdx.y);  // UsedExpert
  const int begin = int(blockIdx.z) * kBlockPairs, num_pairs = min(kBlockPairs, used.z - begin);
  if (num_pairs <= 0) return;
  if (t < num_pairs) pair_of[t] = __ldcg(a.pairs + used.y + begin + t);
  const int matrix = int(blockIdx.x) / a.num_tiles, tile = int(blockIdx.x) % a.num_tiles;
  const std::byte* records = a.tiles[matrix * a.experts + used.x] + int64_t(tile) * a.num_records * kShape.bytes;

  // The next record is on its way while one is multiplied.
  uint4 held[kHeld];
  const auto fetch = [&](int at) {
    const uint4* from = reinterpret_cast<const uint4*>(records + int64_t(at) * kShape.bytes);
#pragma unroll
    for (int h = 0; h < kHeld; ++h)
      if (h * 128 + t < kPieces) held[h] = __ldg(from + h * 128 + t);
  };
  fetch(0);
  __syncthreads();
  const float* x[kGroups];
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    const int i = g * 8 + lane / 4;
    x[g] = i < num_pairs ? a.x + pair_of[i] / a.pairs_of_row * a.x_stride : nullptr;
  }
  // Inputs k and k + 1 of a pair's row; zeros past the end.
  const auto inputs_at = [&](const float* row, int k) {
    return bf16x2_of(row && k < a.in_dim ? __ldcg(row + k) : 0.0f, row && k + 1 < a.in_dim ? __ldcg(row + k + 1) : 0.0f);
  };

  float total[kGroups][4] = {};
  for (int split = 0; split < a.splits; ++split) {
    float sums[kGroups][4] = {};
    const int end = a.num_records * (split + 1) / a.splits;
    for (int at = a.num_records * split / a.splits; at < end; ++at) {
      __syncthreads();
#pragma unroll
      for (int h = 0; h < kHeld; ++h)
        if (h * 128 + t < kPieces) reinterpret_cast<uint4*>(record)[h * 128 + t] = held[h];
      __syncthreads();
      if (at + 1 < a.num_records) fetch(at + 1);
      const int first = at / a.records_per_input * kShape.inputs;
      for (int part = 0; part < kShape.inputs / 64; ++part) {
        uint32_t operand[4][4];
        if constexpr (kType == DType::BF16) {
          const int feature = t / 32 * 16 + lane / 4;
#pragma unroll
          for (int step = 0; step < 4; ++step)
#pragma unroll
            for (int i = 0; i < 4; ++i)
              operand[step][i] = *reinterpret_cast<const uint32_t*>(
                  record + swizzled(feature + i % 2 * 8, step * 16 + i / 2 * 8 + lane % 4 * 2));
        } else {
          decode_part<kType, 0, 4>(load_part<kType>(shared_address(record), part, t), operand);
        }
        const int k = first + part * 64 + lane % 4 * 2;
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          if (g * 8 >= num_pairs) break;
#pragma unroll
          for (int step = 0; step < 4; ++step)
            mma_sync(sums[g], operand[step], inputs_at(x[g], k + step * 16), inputs_at(x[g], k + step * 16 + 8));
        }
      }
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g)
#pragma unroll
      for (int i = 0; i < 4; ++i) total[g][i] = split == 0 ? sums[g][i] : total[g][i] + sums[g][i];
  }
  // Read again: sums leave no registers for what is needed at the end only.
  const float* const bias_of =
      args->biases ? args->biases[matrix * args->experts + __ldcg(&args->used[blockIdx.y].expert)] : nullptr;
  float bias[2] = {};
#pragma unroll
  for (int below = 0; below < 2; ++below)
    if (const int feature = tile * 64 + t / 32 * 16 + lane / 4 + 8 * below; bias_of && feature < a.out_dim)
      bias[below] = bias_of[feature];
#pragma unroll
  for (int g = 0; g < kGroups; ++g)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = g * 8 + lane % 4 * 2 + i % 2, feature = tile * 64 + t / 32 * 16 + lane / 4 + 8 * (i / 2);
      if (at < num_pairs && feature < a.out_dim)
        a.out[matrix * a.out_matrix + int64_t(pair_of[at]) * a.out_dim + feature] = total[g][i] * a.unit + bias[i / 2];
    }
}

struct CombineDevice {
  const float *shares, *y;  // y [pairs][hidden]
  float* out;
  int64_t shares_stride, out_stride;
  int hidden, per_row;
};
__global__ void __launch_bounds__(kCombineThreads) combine_kernel(const CombineDevice* args) {
  let_next_start();
  const CombineDevice a = *args;
  wait_for_previous();
  const int j = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (j >= a.hidden) return;
  const int64_t r = blockIdx.y;
  float sum = a.out[r * a.out_stride + j];
  for (int slot = 0; slot < a.per_row; ++slot)
    sum = __fmaf_rn(a.shares[r * a.shares_stride + slot], a.y[(r * a.per_row + slot) * a.hidden + j], sum);
  a.out[r * a.out_stride + j] = sum;
}

using Kernel = void (*)(const ExpertProducts*);
Kernel kernel_of(DType form) {
  switch (form) {
    case DType::Q8_0: return expert_products_kernel<DType::Q8_0>;
    case DType::Q4_0: return expert_products_kernel<DType::Q4_0>;
    case DType::Q4_K: return expert_products_kernel<DType::Q4_K>;
    case DType::Q5_K: return expert_products_kernel<DType::Q5_K>;
    case DType::Q6_K: return expert_products_kernel<DType::Q6_K>;
    case DType::F8_E4M3: return expert_products_kernel<DType::F8_E4M3>;
    case DType::MXFP4: return expert_products_kernel<DType::MXFP4>;
    default: return expert_products_kernel<DType::BF16>;
  }
}

bool alike(const CudaWeight& a, const CudaWeight& b) {
  return a.form == b.form && a.records_per_input == b.records_per_input && a.splits == b.splits && a.in_dim == b.in_dim &&
         a.out_dim == b.out_dim;
}

// One of the three matrices of all experts.
struct Matrices {
  Matrices(std::span<const Expert> experts, const Weight* Expert::*part, const float* Expert::*bias)
      : first(static_cast<const CudaWeight&>(*(experts[0].*part))) {
    for (const Expert& expert : experts) {
      const auto& weight = static_cast<const CudaWeight&>(*(expert.*part));
      HUNCH_CHECK(alike(weight, first) && !(expert.*bias) == !(experts[0].gate_bias));
      tiles.push_back(weight.tiles), biases.push_back(expert.*bias);
    }
  }
  const CudaWeight& first;
  std::vector<const std::byte*> tiles;
  std::vector<const float*> biases;
};

int divide_up(int64_t a, int64_t b) { return int((a + b - 1) / b); }

}  // namespace

void enqueue_route(Commands& commands, const RouteArgs& args) {
  const int64_t rows = args.logits.extent[0], n = args.logits.extent[1], k = args.ids.extent[1];
  HUNCH_CHECK(k >= 1 && k <= n && n <= kMostExperts && args.shares.extent[1] == k);
  HUNCH_CHECK(args.routing != Routing::Sigmoid && !args.bias && args.groups == 1 && args.scale == 1);
  HUNCH_CHECK(args.logits.stride[1] == 1 && args.ids.stride[1] == 1 && args.shares.stride[1] == 1);
  if (rows == 0) return;
  commands.launch(route_kernel, {.blocks = dim3(unsigned(rows)), .threads = 32},
                  RouteDevice{args.logits.data, args.ids.data, args.shares.data, args.logits.stride[0], args.ids.stride[0],
                              args.shares.stride[0], int(n), int(k), args.routing == Routing::SoftmaxOfChosen, args.normalise});
}

void enqueue_experts(Commands& commands, const ExpertsArgs& args, ExpertsRead* total, ExpertsRead* seen) {
  const int64_t hidden = args.x.extent[1], k = args.ids.extent[1], experts = int64_t(args.experts.size());
  const int64_t all_rows = args.x.extent[0], width = args.gate.extent[1], most_rows = std::min<int64_t>(all_rows, kExpertRows);
  HUNCH_CHECK(experts >= 1 && experts <= kMostExperts && args.out.extent[1] == hidden && args.shares.extent[1] == k);
  HUNCH_CHECK(args.x.stride[1] == 1 && args.ids.stride[1] == 1 && args.shares.stride[1] == 1 && args.out.stride[1] == 1);
  if (all_rows == 0) return;
  const Matrices gate(args.experts, &Expert::gate, &Expert::gate_bias), up(args.experts, &Expert::up, &Expert::up_bias),
      down(args.experts, &Expert::down, &Expert::down_bias);
  HUNCH_CHECK(gate.first.in_dim == hidden && gate.first.out_dim == width && up.first.in_dim == hidden);
  HUNCH_CHECK(up.first.out_dim == width && down.first.in_dim == width && down.first.out_dim == hidden);
  const auto upload = [&](auto all, const auto& second, const auto& third) {  // [3][experts]
    all.insert(all.end(), second.begin(), second.end()), all.insert(all.end(), third.begin(), third.end());
    return commands.data(std::span(std::as_const(all)));
  };
  const std::byte* const* const tiles = upload(gate.tiles, up.tiles, down.tiles);
  const float* const* const biases = args.experts[0].gate_bias ? upload(gate.biases, up.biases, down.biases) : nullptr;

  // Workspace: gate and up of each pair, down of each pair, used experts, pairs.
  const int64_t most_pairs = most_rows * k, most_used = std::min(most_pairs, experts);
  const auto aligned = [](int64_t floats) { return (floats + 63) / 64 * 64; };
  const int64_t inner = aligned(most_pairs * width), outer = aligned(most_pairs * hidden), listed = aligned(most_used * 4);
  auto* both = static_cast<float*>(commands.workspace(size_t(2 * inner + outer + listed + most_pairs) * sizeof(float)));
  float* y = both + 2 * inner;
  auto* used = reinterpret_cast<UsedExpert*>(y + outer);
  auto* pairs = reinterpret_cast<int32_t*>(y + outer + listed);

  for (int64_t first = 0; first < all_rows; first += most_rows) {
    const int64_t rows = std::min(most_rows, all_rows - first), num_pairs = rows * k, now_used = std::min(num_pairs, experts);
    commands.launch(sort_kernel, {.threads = kSortThreads},
                    SortDevice{.ids = &args.ids(first, 0),
                               .used = used,
                               .pairs = pairs,
                               .total = total,
                               .seen = seen,
                               .expert_bytes = gate.first.bytes + up.first.bytes + down.first.bytes,
                               .ids_stride = args.ids.stride[0],
                               .rows = int(rows),
                               .per_row = int(k),
                               .experts = int(experts),
                               .most_used = int(now_used)});
    const auto multiply = [&](const CudaWeight& weight, int64_t matrix, int64_t matrices, const float* x, int64_t x_stride,
                              int64_t pairs_of_row, float* out) {
      const Grid grid{
          .blocks = dim3(unsigned(weight.num_tiles * matrices), unsigned(now_used), unsigned(divide_up(rows, kBlockPairs))),
          .threads = 128};
      commands.launch(kernel_of(weight.form), grid,
                      ExpertProducts{.tiles = tiles + matrix * experts,
                                     .biases = biases ? biases + matrix * experts : nullptr,
                                     .used = used,
                                     .pairs = pairs,
                                     .x = x,
                                     .out = out,
                                     .x_stride = x_stride,
                                     .out_matrix = inner,
                                     .pairs_of_row = int(pairs_of_row),
                                     .experts = int(experts),
                                     .in_dim = int(weight.in_dim),
                                     .out_dim = int(weight.out_dim),
                                     .num_tiles = weight.num_tiles,
                                     .num_records = weight.num_records,
                                     .records_per_input = weight.records_per_input,
                                     .splits = weight.splits,
                                     .unit = unit_of(weight.form)});
    };
    const float* x = &args.x(first, 0);
    const bool together = alike(gate.first, up.first);
    multiply(gate.first, 0, together ? 2 : 1, x, args.x.stride[0], k, both);
    if (!together) multiply(up.first, 1, 1, x, args.x.stride[0], k, both + inner);
    const View<float, 2> gated(both, num_pairs, width);
    enqueue_gate(commands,
                 {.gate = gated, .up = View<float, 2>(both + inner, num_pairs, width), .out = gated, .clamp = args.clamp});
    multiply(down.first, 2, 1, both, width, 1, y);
    commands.launch(combine_kernel,
                    {.blocks = dim3(unsigned(divide_up(hidden, kCombineThreads)), unsigned(rows)), .threads = kCombineThreads},
                    CombineDevice{&args.shares(first, 0), y, &args.out(first, 0), args.shares.stride[0], args.out.stride[0],
                                  int(hidden), int(k)});
  }
}

}  // namespace hunch
