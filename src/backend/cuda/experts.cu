// See experts.h. A call is, for every kExpertRows rows: pairs (row, expert) sorted by expert, and rows rounded to bf16; gate and
// up of every pair, gated and rounded as well; down; and the shares of each row, added in the order of its ids. A pair's values
// lie at row * k + slot, wherever sorting has put the pair: so no bit depends on the order of pairs within an expert.
#include "backend/cuda/experts.h"

#include <cstring>

#include "backend/cuda/expert_groups.cuh"
#include "backend/cuda/select.cuh"

namespace hunch {
namespace {

constexpr unsigned kAll = 0xffffffffu;
constexpr int kSortThreads = 1024, kCombineThreads = 256;
constexpr int kFewPairs = 8, kManyPairs = 32;  // of a block
constexpr int64_t kGroupedRows = 2048;         // at a time, of a prompt;
constexpr int64_t kGroupedFrom = 16;           // where an expert has so many pairs, on average
constexpr int kWantedBlocks = 2048;            // of a product; with more units than this a block takes several

struct RouteDevice {
  const float* logits;
  int32_t* ids;
  float* shares;
  int64_t logits_stride, ids_stride, shares_stride;
  int experts, per_row;
  bool of_chosen, normalise;
};

// A warp a row; lane l has experts l, l + 32, ..., kEach of them at most. NaN ranks lowest, of equals the lower id first.
template <int kEach>
__global__ void __launch_bounds__(32) route_kernel(const RouteDevice* args) {
  static_assert(kMostExperts <= 32 * 32);
  __shared__ float chosen[kMostExperts];
  let_next_start();
  const RouteDevice a = *args;
  wait_for_previous();
  const int lane = int(threadIdx.x), n = a.experts;
  const float* logits = a.logits + blockIdx.x * a.logits_stride;
  float p[kEach], greatest = -INFINITY, sum = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) p[i] = lane + 32 * i < n ? logits[lane + 32 * i] : -INFINITY;
#pragma unroll
  for (int i = 0; i < kEach; ++i) greatest = fmaxf(greatest, p[i]);
  for (int d = 16; d > 0; d /= 2) greatest = fmaxf(greatest, __shfl_xor_sync(kAll, greatest, d));
  if (!a.of_chosen) {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (lane + 32 * i < n) sum += p[i] = expf(p[i] - greatest);
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(kAll, sum, d);
#pragma unroll
    for (int i = 0; i < kEach; ++i) p[i] /= sum;
  }

  uint32_t keys[kEach], taken = 0;  // taken, or nothing there: below NaN
#pragma unroll
  for (int i = 0; i < kEach; ++i) keys[i] = lane + 32 * i < n ? key_of(p[i]) : kAbsentKey;
  for (int slot = 0; slot < a.per_row; ++slot) {
    uint32_t best = 0;
    int mine = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (keys[i] > best) best = keys[i], mine = i;
    const uint32_t of_all = __reduce_max_sync(kAll, best);
    const uint32_t id = __reduce_min_sync(kAll, best == of_all ? uint32_t(lane + 32 * mine) : 0xffffffffu);
    if (id % 32 == uint32_t(lane)) {
      taken |= 1u << (id / 32);
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        if (uint32_t(i) == id / 32) keys[i] = kAbsentKey;
    }
  }

  int before = 0;  // chosen with a lower id
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const uint32_t row = __ballot_sync(kAll, taken >> i & 1);
    if (taken >> i & 1) {
      const int place = before + __popc(row & ((1u << lane) - 1));
      a.ids[blockIdx.x * a.ids_stride + place] = lane + 32 * i;
      chosen[place] = a.of_chosen ? expf(p[i] - greatest) : p[i];
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

struct SortDevice {
  const float* x;  // [rows], to be packed
  uint4* packed;   // [rows][units]
  int64_t x_stride;
  int hidden, units;
  const int32_t* ids;
  UsedExpert* used;  // [most_used], ascending; then such with no pairs
  int32_t* pairs;    // [rows * per_row]
  ExpertsRead *total, *seen;
  uint64_t expert_bytes;
  int64_t ids_stride;
  int rows, per_row, experts, most_used, most_pairs;  // most_pairs: of an entry of `used`
};
// The first block: a counting sort. The others round rows to bf16.
__global__ void __launch_bounds__(kSortThreads) sort_kernel(const SortDevice* args) {
  __shared__ int count[kMostExperts], next[kMostExperts];
  let_next_start();
  const SortDevice a = *args;
  wait_for_previous();
  const int t = int(threadIdx.x), pairs = a.rows * a.per_row;
  if (blockIdx.x > 0) {
    const int at = int(blockIdx.x - 1) * kSortThreads + t, row = at / a.units;
    if (row >= a.rows) return;
    const float* const x = a.x + row * a.x_stride;
    a.packed[at] = fragment_of(at % a.units, [&](int k) { return k < a.hidden ? x[k] : 0.0f; });
    return;
  }
  const auto id_of = [&](int pair) { return a.ids[pair / a.per_row * a.ids_stride + pair % a.per_row]; };
  for (int e = t; e < a.experts; e += kSortThreads) count[e] = 0;
  __syncthreads();
  for (int pair = t; pair < pairs; pair += kSortThreads)
    if (const int e = id_of(pair); e >= 0) atomicAdd(&count[e], 1);
  __syncthreads();
  if (t < 32) {
    int first = 0, entries = 0, used = 0, blocks = 0;
    for (int base = 0; base < a.experts; base += 32) {
      const int e = base + t, own = e < a.experts ? count[e] : 0, own_entries = (own + a.most_pairs - 1) / a.most_pairs;
      const int own_blocks = (own + 7) / 8;
      int end = own, end_entry = own_entries, end_block = own_blocks;
      for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(kAll, end, d), other_entry = __shfl_up_sync(kAll, end_entry, d);
        const int other_block = __shfl_up_sync(kAll, end_block, d);
        if (t >= d) end += other, end_entry += other_entry, end_block += other_block;
      }
      if (e < a.experts) next[e] = first + end - own;
      for (int i = 0, at = 0; i < own_entries; ++i, at += a.most_pairs)
        a.used[entries + end_entry - own_entries + i] = {
            e, first + end - own + at, min(own - at, a.most_pairs), blocks + end_block - own_blocks + at / 8};
      first += __shfl_sync(kAll, end, 31), entries += __shfl_sync(kAll, end_entry, 31),
          blocks += __shfl_sync(kAll, end_block, 31);
      used += __popc(__ballot_sync(kAll, own > 0));
    }
    for (int i = entries + t; i < a.most_used; i += 32) a.used[i] = {0, 0, 0, 0};
    if (t == 0) {  // calls run one after the other
      const ExpertsRead total{a.total->experts + uint64_t(used), a.total->bytes + uint64_t(used) * a.expert_bytes};
      *a.total = total, *a.seen = total;
    }
  }
  __syncthreads();
  for (int pair = t; pair < pairs; pair += kSortThreads)
    if (const int e = id_of(pair); e >= 0) a.pairs[atomicAdd(&next[e], 1)] = pair;
}

struct CombineDevice {
  const float *shares, *y;  // y [pairs][hidden]; undefined where the id is below 0
  const int32_t* ids;
  float* out;
  int64_t shares_stride, ids_stride, out_stride;
  int hidden, per_row;
};
__global__ void __launch_bounds__(kCombineThreads) combine_kernel(const CombineDevice* args) {
  let_next_start();
  const CombineDevice a = *args;
  const int j = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (j >= a.hidden) return;
  const int64_t r = blockIdx.y;
  float sum = __ldcg(a.out + r * a.out_stride + j);  // older than the list of experts
  wait_for_previous();
  for (int slot = 0; slot < a.per_row; ++slot)
    if (a.ids[r * a.ids_stride + slot] >= 0)
      sum = __fmaf_rn(a.shares[r * a.shares_stride + slot], a.y[(r * a.per_row + slot) * a.hidden + j], sum);
  a.out[r * a.out_stride + j] = sum;
}

struct Form {
  void (*kernels[2][2])(const ExpertProducts*);  // [gated][many rows]
  size_t ring_bytes;
  void (*groups[2])(const ExpertProducts*);  // [gated]
  size_t group_bytes;
};
template <DType kType, int kPairs, bool kGated, int kSides>
constexpr auto kKernel = expert_products_kernel<kType, kPairs / 8, kGated, kSides>;
template <DType kType, int kSides>
constexpr Form kForm{{{kKernel<kType, kFewPairs, false, kSides>, kKernel<kType, kManyPairs, false, kSides>},
                         {kKernel<kType, kFewPairs, true, kSides>, kKernel<kType, kManyPairs, true, kSides>}},
    kRingBytes<kType, kSides>, {expert_groups_kernel<kType, false>, expert_groups_kernel<kType, true>},
    GroupStages<kType>::kShared};
Form form_of(DType type, bool two_sides) {
  switch (type) {
    case DType::Q8_0: return two_sides ? kForm<DType::Q8_0, 2> : kForm<DType::Q8_0, 1>;
    case DType::Q4_0: return two_sides ? kForm<DType::Q4_0, 2> : kForm<DType::Q4_0, 1>;
    case DType::Q4_K: return kForm<DType::Q4_K, 1>;
    case DType::Q5_K: return kForm<DType::Q5_K, 1>;
    case DType::Q6_K: return kForm<DType::Q6_K, 1>;
    case DType::F8_E4M3: return two_sides ? kForm<DType::F8_E4M3, 2> : kForm<DType::F8_E4M3, 1>;
    case DType::MXFP4: return two_sides ? kForm<DType::MXFP4, 2> : kForm<DType::MXFP4, 1>;
    default: return kForm<DType::BF16, 1>;
  }
}

bool alike(const CudaWeight& a, const CudaWeight& b) {
  return a.form == b.form && a.records_per_input == b.records_per_input && a.splits == b.splits && a.in_dim == b.in_dim &&
      a.out_dim == b.out_dim;
}

int divide_up(int64_t a, int64_t b) { return int((a + b - 1) / b); }

// The workspace of a call: rows in bf16, gated pairs in bf16, gate of each pair, down of each pair, used experts, pairs. Of
// groups rows stand once for each pair, in blocks of 8 of which a copy may read past the last.
struct Room {
  Room(const ExpertTables::Table& t, int64_t pairs, int64_t rows, int64_t experts, int64_t most, bool grouped) : pairs(pairs) {
    const int64_t hidden = t.down->out_dim, width = t.up->out_dim;
    now_used = std::min(pairs, experts), entries = now_used + (most == kFewPairs ? 0 : (pairs - now_used) / most);
    const int64_t blocks = pairs / 8 + now_used + kGroupPairs / 8;
    x_units = grouped ? blocks : fragment_units(hidden), gated_units = grouped ? blocks : fragment_units(width);
    x = grouped ? parts_of(*t.gate) * blocks * 64 : rows * x_units;
    gated = grouped ? parts_of(*t.down) * blocks * 64 : pairs * gated_units;
    const auto aligned = [](int64_t floats) { return (floats + 63) / 64 * 64; };
    inner = alike(*t.gate, *t.up) ? 0 : aligned(pairs * width), outer = aligned(pairs * hidden);
  }
  static int64_t parts_of(const CudaWeight& w) {
    return w.num_records / w.records_per_input * (record_shape(w.form).inputs / 64);
  }
  size_t bytes() const { return size_t(x + gated + entries) * 16 + size_t(inner + outer + pairs) * 4; }

  int64_t pairs, now_used, entries;  // entries of `used`, at most so many
  int64_t x_units, gated_units, x, gated, inner, outer;
};

}

void enqueue_route(Commands& commands, const RouteArgs& args) {
  const int64_t rows = args.logits.extent[0], n = args.logits.extent[1], k = args.ids.extent[1];
  HUNCH_CHECK(k >= 1 && k <= n && n <= kMostExperts && args.shares.extent[1] == k);
  HUNCH_CHECK(args.routing != Routing::Sigmoid && !args.bias && args.groups == 1 && args.scale == 1);
  HUNCH_CHECK(args.logits.stride[1] == 1 && args.ids.stride[1] == 1 && args.shares.stride[1] == 1);
  if (rows == 0) return;
  commands.launch(n <= 128 ? route_kernel<4> : route_kernel<32>, {.blocks = dim3(unsigned(rows)), .threads = 32},
      RouteDevice{args.logits.data, args.ids.data, args.shares.data, args.logits.stride[0], args.ids.stride[0],
          args.shares.stride[0], int(n), int(k), args.routing == Routing::SoftmaxOfChosen, args.normalise});
}

const ExpertTables::Table& ExpertTables::of(std::span<const Expert> experts) {
  Table& table = tables_[experts.data()];
  if (table.freed == weights_freed() && table.experts.size() == experts.size() &&
      std::memcmp(table.experts.data(), experts.data(), experts.size_bytes()) == 0)
    return table;
  table = {.experts = {experts.begin(), experts.end()}, .freed = weights_freed()};
  const auto gather = [&](const Weight* Expert::*part, const float* Expert::*bias) {
    const auto& first = static_cast<const CudaWeight&>(*(experts[0].*part));
    for (const Expert& expert : experts) {
      const auto& weight = static_cast<const CudaWeight&>(*(expert.*part));
      HUNCH_CHECK(alike(weight, first) && !(expert.*bias) == !experts[0].gate_bias);
      table.tiles.push_back(weight.tiles);
      if (expert.*bias) table.biases.push_back(expert.*bias);
    }
    return &first;
  };
  table.gate = gather(&Expert::gate, &Expert::gate_bias);
  table.up = gather(&Expert::up, &Expert::up_bias);
  table.down = gather(&Expert::down, &Expert::down_bias);
  return table;
}

void enqueue_experts(Commands& commands, ExpertTables& tables, const ExpertsArgs& args, ExpertsRead* total, ExpertsRead* seen) {
  const int64_t hidden = args.x.extent[1], k = args.ids.extent[1], experts = std::ssize(args.experts);
  const int64_t all_rows = args.x.extent[0], width = args.gate.extent[1];
  HUNCH_CHECK(experts >= 1 && experts <= kMostExperts && args.out.extent[1] == hidden && args.shares.extent[1] == k);
  HUNCH_CHECK(args.x.stride[1] == 1 && args.ids.stride[1] == 1 && args.shares.stride[1] == 1 && args.out.stride[1] == 1);
  if (all_rows == 0) return;
  const ExpertTables::Table& table = tables.of(args.experts);
  const CudaWeight &gate = *table.gate, &up = *table.up, &down = *table.down;
  HUNCH_CHECK(gate.in_dim == hidden && gate.out_dim == width && up.in_dim == hidden);
  HUNCH_CHECK(up.out_dim == width && down.in_dim == width && down.out_dim == hidden);
  const std::byte* const* const tiles = commands.data(std::span(table.tiles));
  const float* const* const biases = table.biases.empty() ? nullptr : commands.data(std::span(table.biases));

  const bool together = alike(gate, up);
  const int64_t sms = device_facts().num_sms;
  for (int64_t first = 0, rows; first < all_rows; first += rows) {
    const int64_t left = all_rows - first, in_group = std::min(left, kGroupedRows);
    const bool grouped = is_hopper() && together && left * k >= kGroupedFrom * experts &&
        commands.affords(Room(table, in_group * k, in_group, experts, kGroupPairs, true).bytes());
    rows = grouped ? in_group : std::min<int64_t>(left, kExpertRows);
    const bool few = rows <= kFewPairs;
    const Room room(table, rows * k, rows, experts, grouped ? kGroupPairs : few ? kFewPairs : kManyPairs, grouped);
    const int64_t entries = room.entries, now_used = room.now_used;
    const int x_units = int(room.x_units), gated_units = int(room.gated_units);
    auto* x = static_cast<uint4*>(commands.workspace(room.bytes()));
    uint4* gated = x + room.x;
    auto* gates = reinterpret_cast<float*>(gated + room.gated);
    float* y = gates + room.inner;
    auto* used = reinterpret_cast<UsedExpert*>(y + room.outer);
    auto* pairs = reinterpret_cast<int32_t*>(used + entries);
    const int64_t packing = grouped ? 0 : divide_up(rows * x_units, kSortThreads);
    commands.launch(sort_kernel, {.blocks = dim3(unsigned(1 + packing)), .threads = kSortThreads},
        SortDevice{.x = &args.x(first, 0),
            .packed = x,
            .x_stride = args.x.stride[0],
            .hidden = int(hidden),
            .units = x_units,
            .ids = &args.ids(first, 0),
            .used = used,
            .pairs = pairs,
            .total = total,
            .seen = seen,
            .expert_bytes = gate.bytes + up.bytes + down.bytes,
            .ids_stride = args.ids.stride[0],
            .rows = int(rows),
            .per_row = int(k),
            .experts = int(experts),
            .most_used = int(entries),
            .most_pairs = grouped ? kGroupPairs
                : few             ? kFewPairs
                                  : kManyPairs});
    if (grouped)
      commands.launch(pack_pairs_kernel, {.blocks = dim3(unsigned(entries), 8), .threads = 256},
          PackPairs{&args.x(first, 0), reinterpret_cast<std::byte*>(x), used, pairs, args.x.stride[0], int(hidden),
              int(Room::parts_of(gate)), x_units, int(k)});
    const auto multiply = [&](const CudaWeight& weight, int64_t matrix, int64_t matrices, const uint4* in, int in_units,
                              int64_t pairs_of_row, float* out, uint4* gated, bool listed) {
      const int64_t units = grouped ? weight.num_tiles : weight.num_tiles * weight.splits;
      // Short records of codes two sides at a time; else gate and up side by side where blocks are few, or in turn: smaller
      // blocks wait less for each other.
      const int64_t blocks = units * now_used;
      const bool short_codes = weight.form != DType::BF16 && record_shape(weight.form).inputs == 64;
      const bool two_sides = short_codes && (matrices == 2 || (units % 2 == 0 && blocks >= 8 * sms));
      const int64_t groups_of_warps = blocks < 4 * sms && !two_sides ? matrices : 1;
      int64_t per_block = std::clamp<int64_t>(blocks * groups_of_warps / kWantedBlocks, 1, 8);
      if (two_sides && matrices == 1) per_block += per_block % 2;
      const Form form = form_of(weight.form, two_sides);
      Grid grid{.blocks = dim3(unsigned(divide_up(units, per_block)), unsigned(entries)),
          .threads = 128 * unsigned(groups_of_warps),
          .shared_bytes = size_t(groups_of_warps) * form.ring_bytes};
      if (grouped) grid = {dim3(unsigned(divide_up(units * matrices, 2)), unsigned(entries)), kGroupThreads, form.group_bytes};
      commands.launch(grouped ? form.groups[gated != nullptr] : form.kernels[gated != nullptr][!few], grid,
          ExpertProducts{.tiles = tiles + matrix * experts,
              .biases = biases ? biases + matrix * experts : nullptr,
              .used = used,
              .pairs = pairs,
              .x = in,
              .out = out,
              .gated = reinterpret_cast<uint32_t*>(gated),
              .clamp = args.clamp,
              .x_units = in_units,
              .gated_units = gated_units,
              .pairs_of_row = int(pairs_of_row),
              .matrices = int(matrices),
              .experts = int(experts),
              .out_dim = int(weight.out_dim),
              .num_records = weight.num_records,
              .records_per_input = weight.records_per_input,
              .splits = weight.splits,
              .units = int(units),
              .per_block = int(per_block),
              .unit = unit_of(weight.form),
              .listed = listed});
    };
    if (!together) multiply(gate, 0, 1, x, x_units, k, gates, nullptr, false);
    multiply(up, together ? 0 : 1, together ? 2 : 1, x, x_units, k, gates, gated, !together);
    multiply(down, 2, 1, gated, gated_units, 1, y, nullptr, true);
    commands.launch(combine_kernel,
        {.blocks = dim3(unsigned(divide_up(hidden, kCombineThreads)), unsigned(rows)), .threads = kCombineThreads},
        CombineDevice{&args.shares(first, 0), y, &args.ids(first, 0), &args.out(first, 0), args.shares.stride[0],
            args.ids.stride[0], args.out.stride[0], int(hidden), int(k)});
  }
}

}
