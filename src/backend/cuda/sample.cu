// From logits to a token: contract in backend/ops/sample.h. A cluster of eight blocks holds one row in shared memory. Filters
// become one threshold (a key, and an index among equal keys): min_p by search over the keys; top-k by a bound that the warps'
// greatest keys give. Where at most 1,024 ids are left, as nearly always, one block sorts them and cuts the list at top_k and
// top_p; else both are found by radix selection, over masses in fixed point. Scores of long rows are computed in fp32 first; only
// those that could be first or second are computed again in fp64.
#include "backend/cuda/sample.h"

#include "backend/cuda/noise.cuh"
#include "backend/cuda/ptx.h"
#include "backend/cuda/rank.h"
#include "backend/cuda/row_slice.cuh"
#include "backend/reference/reference_backend.h"

namespace hunch {
namespace {

struct SampleDevice {
  const SampleRow* rows;
  int count;
};

// The two best by (score descending, id ascending); absent: -inf.
struct Two {
  double score[2] = {-INFINITY, -INFINITY};
  int32_t id[2] = {INT32_MAX, INT32_MAX};
  HUNCH_DEVICE bool before(double x, int32_t i, int at) const { return x > score[at] || (x == score[at] && i < id[at]); }
  HUNCH_DEVICE void add(double x, int32_t i) {
    if (x == -INFINITY) return;
    if (before(x, i, 0)) score[1] = score[0], id[1] = id[0], score[0] = x, id[0] = i;
    else if (before(x, i, 1)) score[1] = x, id[1] = i;
  }
};

// Masses in fixed point: 44 bits after the point, so that sums of 2^18 are exact and have no order; three parts of 15 bits, as
// shared memory adds 32-bit integers only.
constexpr int kPointBits = 44, kPartBits = 15, kSliceBins = kBins / kClusterBlocks;
struct MassShared {
  uint32_t parts[3][kBins];  // best first; zero between selections
  uint64_t warp_sums[kSliceBins / 32], slice_sums[kClusterBlocks];
  struct {
    uint64_t remaining, inside;
    uint32_t bin;
  } found;
};
struct ListShared {
  uint64_t list[kMostListed], own[kMostListed];
  double prefix[kMostListed];
  uint32_t count;
};
struct Shared {
  RowShared row;
  SampleRow args;
  Two warp_two[kRowWarps], block_two[kClusterBlocks];
  float warp_best[kRowWarps][2], block_best[kClusterBlocks][2];
  union {
    MassShared mass;
    ListShared few;
  };
  alignas(16) uint32_t keys[4];  // [slice_len]
};

// What a row's scores are made of.
struct Law {
  double best, temperature, least;
  uint32_t best_key;
  HUNCH_DEVICE double log_ratio(uint32_t key) const { return key == best_key ? 0 : (double(value_of(key)) - best) / temperature; }
  HUNCH_DEVICE bool passes(uint32_t key) const {
    const double x = log_ratio(key);
    return x >= least && !isinf(x);
  }
};

// The lowest key that min_p lets pass: `passes` is monotone, so a bracket around the analytic place is searched 32 ways at a
// time.
HUNCH_DEVICE uint32_t lowest_passing(const Law& law) {
  if (law.best_key >= kInfKey) return law.best_key;
  if (isinf(law.least)) return kLeastFiniteKey;
  const int lane = threadIdx.x & 31;
  const double place = law.best + law.least * law.temperature;
  const double error = 1e-12 * (fabs(law.best) + fabs(law.least * law.temperature));
  uint32_t low = kLeastFiniteKey - 1, high = law.best_key;  // low fails (or is no number), high passes
  const uint32_t below = max(key_of_number(__double2float_rd(place - error)), kLeastFiniteKey) - 1,
                 above = min(key_of_number(__double2float_ru(place + error)), law.best_key);
  const uint32_t tries = __ballot_sync(kAllLanes, law.passes(lane == 0 ? max(below, kLeastFiniteKey) : above));
  if (below > low && !(tries & 1)) low = below;
  if (tries & 2) high = above;
  while (high - low > 1) {
    const uint32_t step = (high - low + 31) / 32, offset = uint32_t(lane + 1) * step;
    const uint32_t key = offset < high - low ? low + offset : high;
    const int first = __ffs(int(__ballot_sync(kAllLanes, key == high || law.passes(key)))) - 1;
    const uint32_t new_high = __shfl_sync(kAllLanes, key, first), new_low = __shfl_sync(kAllLanes, key, max(first - 1, 0));
    high = new_high;
    if (first > 0) low = new_low;
  }
  return high;
}

// A score as an integer of the same order; 0: absent.
HUNCH_DEVICE uint64_t key_of_score(double x) {
  const uint64_t bits = uint64_t(__double_as_longlong(x + 0.0));  // -0 + 0 is +0
  return x == -INFINITY ? 0 : bits ^ (bits >> 63 ? ~0ull : 1ull << 63);
}
HUNCH_DEVICE double score_of_key(uint64_t key) {
  return key == 0 ? -INFINITY : __longlong_as_double(int64_t(key ^ (key >> 63 ? 1ull << 63 : ~0ull)));
}
HUNCH_DEVICE Two warp_two(const Two& x) {
  uint64_t mine[2] = {key_of_score(x.score[0]), key_of_score(x.score[1])};
  int32_t id[2] = {x.id[0], x.id[1]};
  Two out;
#pragma unroll
  for (int k = 0; k < 2; ++k) {  // the best of all lanes' bests, whose lane then has its second
    const uint32_t high = __reduce_max_sync(kAllLanes, uint32_t(mine[0] >> 32));
    const bool same = uint32_t(mine[0] >> 32) == high;
    const uint32_t low = __reduce_max_sync(kAllLanes, same ? uint32_t(mine[0]) : 0u);
    const bool best = same && uint32_t(mine[0]) == low;
    const int32_t first = __reduce_min_sync(kAllLanes, best ? id[0] : INT32_MAX);
    out.score[k] = score_of_key(uint64_t(high) << 32 | low), out.id[k] = first;
    if (best && id[0] == first) mine[0] = mine[1], id[0] = id[1];
  }
  return out;
}
HUNCH_DEVICE Two block_two(Shared& s, const Two& x) {  // in thread 0
  Two all = warp_two(x);
  if (threadIdx.x % 32 == 0) s.warp_two[threadIdx.x / 32] = all;
  __syncthreads();
  if (threadIdx.x < 32) all = warp_two(threadIdx.x < kRowWarps ? s.warp_two[threadIdx.x] : Two{});
  return all;
}

HUNCH_DEVICE void write_choice(const SampleRow& row, const Two& two) {  // one thread
  const bool any = two.id[0] != INT32_MAX, second = two.id[1] != INT32_MAX;
  *row.token = any ? two.id[0] : -1;
  if (row.second) *row.second = second ? two.id[1] : -1;
  if (row.lead) *row.lead = second ? float(two.score[0] - two.score[1]) : INFINITY;
}
// `best`: the greatest key; 0 in refused rows.
HUNCH_DEVICE void note_cut(const SampleRow& row, const Threshold& kept, uint32_t best) {  // one thread
  if (row.cut) *row.cut = {kept.key, kept.id, best, best != 0};
}
// The choice among all blocks' candidates, by block 0.
HUNCH_DEVICE void choose(Shared& s, const SampleRow& row, const Two& mine) {
  const auto cluster = cluster_of_blocks();
  const Two two = block_two(s, mine);
  if (threadIdx.x == 0) *cluster.map_shared_rank(&s.block_two[cluster.block_rank()], 0) = two;
  cluster.sync();
  if (cluster.block_rank() != 0 || threadIdx.x >= 32) return;
  const Two all = warp_two(threadIdx.x < kClusterBlocks ? s.block_two[threadIdx.x] : Two{});
  if (threadIdx.x == 0) write_choice(row, all);
}

// This block's part of the row of probabilities.
template <class Prob>
HUNCH_DEVICE void write_probs(const SampleRow& row, const RowSlice& slice, const Prob& prob) {
  const bool aligned = reinterpret_cast<uintptr_t>(row.probs) % 16 == 0;
  slice.each_four([&](uint4 k, uint32_t id) {
    const float p[4] = {prob(k.x, id), prob(k.y, id + 1), prob(k.z, id + 2), prob(k.w, id + 3)};
    if (aligned && int(id) + 4 <= row.vocab) {
      *reinterpret_cast<float4*>(row.probs + id) = {p[0], p[1], p[2], p[3]};
    } else {
      for (int c = 0; c < 4; ++c)
        if (int(id) + c < row.vocab) row.probs[id + c] = p[c];
    }
  });
}

// As find_bin (select.cuh), over masses: the bin in which the sum reaches `target` >= 1.
struct FoundMass {
  uint32_t bin;
  uint64_t remaining, inside;
};
__device__ __noinline__ FoundMass find_mass(MassShared& s, uint64_t target) {
  const auto cluster = cluster_of_blocks();
  const unsigned rank = cluster.block_rank();
  const int t = threadIdx.x, lane = t & 31, warp = t >> 5;
  cluster.sync();
  uint64_t value = 0, upto = 0;
  if (t < kSliceBins) {
    for (int part = 0; part < 3; ++part) {
      uint64_t sum = 0;
      for (int b = 0; b < kClusterBlocks; ++b) sum += *cluster.map_shared_rank(&s.parts[part][rank * kSliceBins + t], b);
      value += sum << part * kPartBits;
    }
    upto = value;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const uint64_t y = __shfl_up_sync(kAllLanes, upto, d);
      if (lane >= d) upto += y;
    }
    if (lane == 31) s.warp_sums[warp] = upto;
  }
  __syncthreads();
  if (t < kSliceBins) {
    for (int w = 0; w < warp; ++w) upto += s.warp_sums[w];
    if (t == kSliceBins - 1) tell_all(&s.slice_sums[rank], upto);
  }
  cluster.sync();
  for (int i = t; i < 3 * kBins; i += kRowThreads) s.parts[i / kBins][i % kBins] = 0;
  for (unsigned b = 0; b < rank; ++b) upto += s.slice_sums[b];
  if (t < kSliceBins && upto - value < target && target <= upto)
    for (int b = 0; b < kClusterBlocks; ++b) {
      auto* found = cluster.map_shared_rank(&s.found, b);
      found->bin = rank * kSliceBins + t, found->remaining = target - (upto - value), found->inside = value;
    }
  cluster.sync();
  return {s.found.bin, s.found.remaining, s.found.inside};
}

HUNCH_DEVICE uint64_t mass_of(const Law& law, uint32_t key) {
  return __double2ull_rn(exp(law.log_ratio(key)) * double(uint64_t(1) << kPointBits));
}

// Top-p over any number of ids: the threshold at which the mass of `kept` reaches top_p of the whole.
__device__ __noinline__ Threshold select_mass(Shared& s, const RowSlice& slice, const Law& law, Threshold kept, double top_p) {
  MassShared& m = s.mass;
  for (int i = threadIdx.x; i < 3 * kBins; i += kRowThreads) m.parts[i / kBins][i % kBins] = 0;
  __syncthreads();
  const auto count = [&](uint32_t bin, uint64_t mass) {
    constexpr uint32_t kPart = (1u << kPartBits) - 1;
#pragma unroll
    for (int part = 0; part < 3; ++part)
      if (const uint32_t x = uint32_t(mass >> part * kPartBits) & kPart) atomicAdd(&m.parts[part][bin], x);
  };
  uint64_t own = 0;
  slice.each([&](uint32_t k, uint32_t id) {
    if (!kept.keeps(k, id)) return;
    const uint64_t mass = mass_of(law, k);
    own += mass;
    count(2047u - (k >> 21), mass);
  });
  const uint64_t total = cluster_sum(s.row, own);
  const double reach = ceil(top_p * double(total));
  FoundMass f = find_mass(m, reach < 1 ? 1 : min(uint64_t(reach), total));
  const uint32_t high = 2047u - f.bin;
  slice.each([&](uint32_t k, uint32_t id) {
    if (k >> 21 == high && kept.keeps(k, id)) count(2047u - (k >> 10 & 2047u), mass_of(law, k));
  });
  f = find_mass(m, f.remaining);
  const uint32_t middle = high << 11 | (2047u - f.bin);
  slice.each([&](uint32_t k, uint32_t id) {
    if (k >> 10 == middle && kept.keeps(k, id)) count(1023u - (k & 1023u), mass_of(law, k));
  });
  f = find_mass(m, f.remaining);
  const uint32_t key = middle << 10 | (1023u - f.bin);
  const uint64_t each = max(mass_of(law, key), uint64_t(1)), wanted = (f.remaining + each - 1) / each, equals = f.inside / each;
  if (wanted >= equals) return {key, key == kept.key ? kept.id : kEveryId};
  return select_ids(s.row.select, key, uint32_t(wanted), [&](const auto& op) { slice.each(op); });
}

// The best of the list by their scores, in few.prefix, and their shares: one warp.
HUNCH_DEVICE void rank_few(ListShared& few, const SampleRow& row, int count, double greatest) {
  const int lane = int(threadIdx.x);
  double total = 0;
  for (int i = lane; i < count; i += 32) total += part_of(few.prefix[i], greatest);
#pragma unroll
  for (int d = 16; d > 0; d /= 2) total += __shfl_xor_sync(kAllLanes, total, d);
  for (int j = 0; j < row.ranks; ++j) {
    Best own;
    for (int i = lane; i < count; i += 32) own.add(few.prefix[i], id_listed(few.list[i]));
    const Best all = warp_best(own);
    const bool some = all.id != INT32_MAX;
    for (int i = lane; i < count; i += 32)
      if (some && id_listed(few.list[i]) == all.id) few.prefix[i] = -INFINITY;
    if (lane != 0) continue;
    if (row.ranked) row.ranked[j] = some ? all.id : -1;
    if (row.shares) row.shares[j] = some ? float(part_of(all.score, greatest) / total) : 0;
  }
}

// Few survivors: block 0 sorts them and does the rest as the definition says.
__device__ __noinline__ void finish_few(
    Shared& s, const SampleRow& row, const RowSlice& slice, const Law& law, const Threshold& kept) {
  const auto cluster = cluster_of_blocks();
  const int t = threadIdx.x, lane = t & 31, warp = t >> 5;
  ListShared& few = s.few;
  list_kept(s.row, few.list, few.own, slice, kept, [](uint32_t, uint32_t) { return true; });
  if (row.probs) write_probs(row, slice, [](uint32_t, uint32_t) { return 0.0f; });
  cluster.sync();  // block 0 overwrites some of the zeros
  if (cluster.block_rank() != 0) return;
  const int listed = int(s.row.num_listed), n = row.top_k > 0 ? min(listed, row.top_k) : listed;
  if (t == 0) few.count = uint32_t(n);
  sort_list(few.list, listed);

  // Inclusive sums of ratios: two per thread, then lanes, then warps.
  for (int i = t; i < n; i += kRowThreads) few.prefix[i] = exp(law.log_ratio(key_listed(few.list[i])));
  __syncthreads();
  double ratio[2], upto = 0;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    ratio[k] = 2 * t + k < n ? few.prefix[2 * t + k] : 0;
    upto += ratio[k];
  }
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const double y = __shfl_up_sync(kAllLanes, upto, d);
    if (lane >= d) upto += y;
  }
  if (lane == 31) s.row.warp_sums[warp] = upto;
  __syncthreads();
  double base = 0;
  for (int w = 0; w < warp; ++w) base += s.row.warp_sums[w];
  upto += base;
  few.prefix[2 * t] = upto - ratio[1], few.prefix[2 * t + 1] = upto;
  __syncthreads();
  if (row.filter_p) {
    const double reach = row.top_p * few.prefix[n - 1];
#pragma unroll
    for (int k = 0; k < 2; ++k)
      if (2 * t + k < n && few.prefix[2 * t + k] >= reach) atomicMin(&few.count, uint32_t(2 * t + k + 1));
    __syncthreads();
  }
  const int count = int(few.count);
  const double total = few.prefix[count - 1];
  if (t == 0) {
    const uint64_t last = few.list[count - 1];
    note_cut(row, {key_listed(last), uint32_t(id_listed(last))}, law.best_key);
  }

  if (row.ranks > 0) __syncthreads();  // scores lie where sums were
  Two two;
  for (int i = t; i < count; i += kRowThreads) {
    const uint64_t entry = few.list[i];
    const int32_t id = id_listed(entry);
    const double score = law.log_ratio(key_listed(entry)) + gumbel(row.noise.bits(uint32_t(id)));
    two.add(score, id);
    if (row.ranks > 0) few.prefix[i] = score;
  }
  if (row.probs)
#pragma unroll
    for (int k = 0; k < 2; ++k)
      if (2 * t + k < count) row.probs[id_listed(few.list[2 * t + k])] = float(ratio[k] / total);
  two = block_two(s, two);
  if (t == 0) write_choice(row, two);
  if (t < 32 && row.ranks > 0) rank_few(few, row, count, two.score[0]);
}

// Any number of survivors: every block scores its part.
__device__ __noinline__ void finish_many(
    Shared& s, const SampleRow& row, const RowSlice& slice, const Law& law, const Threshold& kept) {
  const auto cluster = cluster_of_blocks();
  const unsigned rank = cluster.block_rank();
  const int t = threadIdx.x, lane = t & 31, warp = t >> 5;
  const float best = float(law.best), scale = float(1 / law.temperature);
  const double log2_scale = 1.4426950408889634 / law.temperature;
  // Own first and second in fp32.
  float first = -INFINITY, second = -INFINITY;
  uint32_t first_key = 0, second_key = 0;
  int32_t first_id = 0, second_id = 0;
  double sum = 0;
  const auto score = [&](uint32_t k, uint32_t id, uint32_t bits) {
    if (!kept.keeps(k, id)) return;
    const float x = (k == law.best_key ? 0 : fmaxf((value_of(k) - best) * scale, -1e37f)) + gumbel_about(bits);
    if (x > second) {
      if (x > first) {
        second = first, second_key = first_key, second_id = first_id;
        first = x, first_key = k, first_id = int32_t(id);
      } else {
        second = x, second_key = k, second_id = int32_t(id);
      }
    }
    if (row.probs) sum += double(k == law.best_key ? 1.0f : exp2_of((double(value_of(k)) - law.best) * log2_scale));
  };
  slice.each_four([&](uint4 k, uint32_t id) {
    if (max(max(k.x, k.y), max(k.z, k.w)) < kept.key) return;
    const uint4 bits = row.noise.bits_of_four(id / 4);
    score(k.x, id, bits.x), score(k.y, id + 1, bits.y), score(k.z, id + 2, bits.z), score(k.w, id + 3, bits.w);
  });

  // The second best of the row in fp32: whoever is clearly below it cannot be first or second.
  float a = first, b = second;
  const auto merge = [&](float x, float y) {
    b = fmaxf(fminf(a, x), fmaxf(b, y));
    a = fmaxf(a, x);
  };
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    const float x = __shfl_xor_sync(kAllLanes, a, d), y = __shfl_xor_sync(kAllLanes, b, d);
    merge(x, y);
  }
  if (lane == 0) s.warp_best[warp][0] = a, s.warp_best[warp][1] = b;
  if (row.probs) sum = block_sum(s.row, sum);
  else __syncthreads();
  if (t == 0) {
    for (int w = 1; w < kRowWarps; ++w) merge(s.warp_best[w][0], s.warp_best[w][1]);
    tell_all(&s.block_best[rank][0], a), tell_all(&s.block_best[rank][1], b);
    if (row.probs) tell_all(&s.row.block_sums[rank], sum);
  }
  cluster.sync();
  a = b = -INFINITY;
  for (int c = 0; c < kClusterBlocks; ++c) merge(s.block_best[c][0], s.block_best[c][1]);
  const float bar = b - (1e-3f + 1e-6f * fabsf(b));  // NaN without a second: everything is looked at

  Two two;
  const auto exact = [&](float x, uint32_t k, int32_t id) {
    if (x > -INFINITY && !(x < bar)) two.add(law.log_ratio(k) + gumbel(row.noise.bits(uint32_t(id))), id);
  };
  exact(first, first_key, first_id), exact(second, second_key, second_id);
  choose(s, row, two);

  if (!row.probs) return;
  double total = 0;
  for (int c = 0; c < kClusterBlocks; ++c) total += s.row.block_sums[c];
  const double inverse = 1 / total;
  write_probs(row, slice, [&](uint32_t k, uint32_t id) {
    if (!kept.keeps(k, id)) return 0.0f;
    return float(double(k == law.best_key ? 1.0f : exp2_of((double(value_of(k)) - law.best) * log2_scale)) * inverse);
  });
}

__global__ void HUNCH_CLUSTER(kClusterBlocks) __launch_bounds__(kRowThreads, 1) sample_kernel(const SampleDevice* args) {
  if (!HUNCH_HOPPER || int(blockIdx.x) >= args->count * kClusterBlocks) return;
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& s = *reinterpret_cast<Shared*>(memory);
  const auto cluster = cluster_of_blocks();
  const int rank = int(cluster.block_rank());
  clear_bins(s.row.select);
  if (threadIdx.x == 0) s.args = args->rows[blockIdx.x / kClusterBlocks], s.row.num_listed = s.row.num_own = 0;
  cluster.sync();
  wait_for_previous();
  let_next_start();
  const SampleRow& row = s.args;
  const int len = slice_len(row.vocab);
  const RowSlice slice{s.keys, rank * len, len};

  const bool top_k = !row.greedy && row.top_k > 0 && row.top_k < row.vocab;
  const RowStats stats = load_row(s.row, slice, row.logits, row.vocab);
  if (!stats.valid()) {
    if (row.probs) write_probs(row, slice, [](uint32_t, uint32_t) { return 0.0f; });
    if (rank == 0 && threadIdx.x == 0) write_choice(row, Two{}), note_cut(row, {0, 0}, 0);
    if (rank == 0 && threadIdx.x < 32) rank_few(s.few, row, 0, 0);
    return;
  }
  if (row.greedy) {
    uint32_t first = 0, second = 0, first_id = 0, second_id = 0;  // ids come in ascending order
    slice.each([&](uint32_t k, uint32_t id) {
      if (k > first) second = first, second_id = first_id, first = k, first_id = id;
      else if (k > second) second = k, second_id = id;
    });
    if (rank == 0 && threadIdx.x == 0) note_cut(row, {kLeastFiniteKey, kEveryId}, stats.best);
    Two two;
    if (first >= kLeastFiniteKey) two.add(double(value_of(first)), int32_t(first_id));
    if (second >= kLeastFiniteKey) two.add(double(value_of(second)), int32_t(second_id));
    if (row.probs) write_probs(row, slice, [](uint32_t, uint32_t) { return 0.0f; });
    choose(s, row, two);
    if (row.probs && rank == 0 && threadIdx.x == 0) row.probs[*row.token] = 1;
    return;
  }

  const Law law{double(value_of(stats.best)), row.temperature, row.least, stats.best};
  Threshold kept{lowest_passing(law), kEveryId};
  const auto each = [&](const auto& op) { slice.each(op); };
  uint32_t most = 0xffffffffu;  // how many are kept at most
  // Nearly always few enough to be sorted are left by min_p, or reach what at least top_k ids do.
  if (top_k) kept.key = max(kept.key, reached_by(s.row, uint32_t(row.top_k)));
  if (row.filter_p || top_k) {
    uint32_t count = 0;
    slice.each([&](uint32_t k, uint32_t id) { count += kept.keeps(k, id) ? 1 : 0; });
    most = cluster_count(s.row, count);
  }
  if (top_k && most > kMostListed) {
    slice.each([&](uint32_t k, uint32_t) { count_high(s.row.select, k); });
    const Threshold best = select_best(s.row.select, uint32_t(row.top_k), each);
    if (best.key >= kept.key) kept = best;
    most = uint32_t(row.top_k);
  }
  if (most <= kMostListed) {
    finish_few(s, row, slice, law, kept);
    return;
  }
  if (row.filter_p) kept = select_mass(s, slice, law, kept, row.top_p);
  if (rank == 0 && threadIdx.x == 0) note_cut(row, kept, law.best_key);
  finish_many(s, row, slice, law, kept);
}

}

void enqueue_sample(Commands& commands, std::span<const SampleArgs> calls) {
  std::vector<SampleRow> rows, ranks;
  int64_t most_vocab = 0, most_ranked_vocab = 0, most_k = 0;
  size_t num_ranks = 0;
  for (const SampleArgs& args : calls) {
    HUNCH_CHECK(ranks_allowed(args));
    if (num_ranked(args) == 0) continue;
    num_ranks += size_t(args.logits.extent[0]), most_k = std::max(most_k, num_ranked(args));
    most_ranked_vocab = std::max(most_ranked_vocab, args.logits.extent[1]);
  }
  RankCut* cuts = nullptr;
  if (num_ranks > 0)
    cuts = static_cast<RankCut*>(commands.workspace(num_ranks * sizeof(RankCut) + rank_bytes(num_ranks, most_k)));
  for (const SampleArgs& args : calls) {
    const int64_t vocab = args.logits.extent[1];
    HUNCH_CHECK(args.state == nullptr && vocab > 0 && vocab <= kMostVocab && args.logits.stride[1] == 1);
    HUNCH_CHECK(!args.probs.data || args.probs.stride[1] == 1);
    HUNCH_CHECK((!args.ranked.data || args.ranked.stride[1] == 1) && (!args.shares.data || args.shares.stride[1] == 1));
    most_vocab = std::max(most_vocab, vocab);
    const SamplingParams& p = args.params;
    for (int64_t r = 0; r < args.logits.extent[0]; ++r) {
      const auto of_row = [&](const auto& all) { return all.data ? all.data + r * all.stride[0] : nullptr; };
      SampleRow row{};
      row.logits = of_row(args.logits), row.probs = of_row(args.probs), row.token = of_row(args.tokens);
      row.second = of_row(args.seconds), row.lead = of_row(args.leads);
      row.ranked = of_row(args.ranked), row.shares = of_row(args.shares);
      row.temperature = double(p.temperature);
      row.least = p.min_p > 0 ? std::min(0.0, std::log(double(p.min_p))) : -INFINITY;
      row.top_p = double(p.top_p);
      row.noise = {{uint32_t(args.key.seed), uint32_t(args.key.seed >> 32)}, uint32_t(args.positions(r)), uint32_t(args.stream),
          args.key.sample};
      row.vocab = int32_t(vocab), row.top_k = p.top_k;
      row.greedy = p.temperature < kGreedyTemperature, row.filter_p = p.top_p < 1;
      row.ranks = int32_t(num_ranked(args));
      // Few survive a top_k that filters. Of greedy rows as a rule nothing but their ranks is wanted.
      const bool few = !row.greedy && row.top_k > 0 && row.top_k < std::min(row.vocab, kMostListed);
      const bool ranks_only = row.greedy && row.ranks > 0 && !row.probs && !wants_second(args);
      if (row.ranks > 0 && !few) {
        if (!ranks_only) row.cut = cuts + ranks.size();
        ranks.push_back(row);
        row.ranks = 0;
      }
      if (!ranks_only) rows.push_back(row);
    }
  }
  if (!rows.empty())
    commands.launch(sample_kernel,
        {.blocks = dim3(unsigned(grid_rows(std::ssize(rows))) * kClusterBlocks),
            .threads = kRowThreads,
            .shared_bytes = sizeof(Shared) + size_t(slice_len(most_vocab)) * sizeof(uint32_t)},
        SampleDevice{commands.data(std::span(std::as_const(rows))), int(rows.size())});
  if (!ranks.empty()) enqueue_ranks(commands, ranks, most_ranked_vocab, most_k, cuts + num_ranks);
}

}
