// The k best of n scores, exactly and in order: dilate, turn scores into ordered integers, leave those that a sample says are too
// small, find the k-th greatest of the rest by histograms of 11, 11 and 10 bits, then write the indices of what lies above it
// (and the first of its equals) in one pass. Contract: ops/top_k.h.
#pragma once

namespace hunch::HUNCH_ISA {

inline constexpr int kFirstBits = 11, kBins = 1 << kFirstBits;

// Unsigned order of the keys = order of the scores; -0 is +0, NaN below everything.
HUNCH_SIMD I32 ordered_key(F32 score) {
  const I32 u = bits_of(score + zero());  // -0 + 0 = +0
  const I32 key = u ^ (shift_right_sign<31>(u) | set1_i32(int32_t(0x80000000u)));
  return select(equal(score, score), key, zero_i32());
}

// y(j) = max(y(j), factor y(j - step)), from the end so that y(j - step) is still the old one. y[-kLanes..-1] is -inf.
HUNCH_SIMD void dilate(float* y, int64_t n, int step, float factor) {
  const F32 f = set1(factor);
  for (int64_t j = (n - 1) / kLanes * kLanes; j >= 0; j -= kLanes) {
    const F32 old = load(y + j), moved = f * load(y + j - step);
    store(y + j, max(moved, old));  // old where either is NaN: a NaN never spreads
  }
}

// The bin that holds the `left`-th greatest; `left` becomes how many of that bin belong to the result.
HUNCH_SIMD int find_bin(const uint32_t* counts, int bins, int64_t& left) {
  int bin = bins - 1;
  while (int64_t(counts[bin]) < left) left -= counts[bin--];
  return bin;
}

// Keys of from[0, n) in [least, least + width), in order; `to` may be `from`. Returns how many.
HUNCH_SIMD int64_t keep_range(const uint32_t* from, int64_t n, uint32_t least, uint32_t width, uint32_t* to) {
  int64_t num = 0;
  const I32 first = set1_i32(int32_t(least)), limit = set1_i32(int32_t(width));
  for (int64_t j = 0; j < n; j += kLanes) {
    const I32 key = load_i32(from + j);
    Mask in = less_unsigned(key - first, limit);
    if (j + kLanes > n) in = both(in, first_lanes(int(n - j)));
    if (!none_of(in)) num += compress_store(to + num, in, key);
  }
  return num;
}

// A key that some more than `count` of n keys reach, as every eighth says; 0 where that would save nothing.
HUNCH_SIMD uint32_t likely_floor(const uint32_t* keys, int64_t n, int64_t count, uint32_t* counts) {
  constexpr int kEvery = 8;
  if (n < 1024 || count > n / 2) return 0;
  __builtin_memset(counts, 0, kBins * sizeof *counts);
  for (int64_t i = 0; i < n; i += kEvery) ++counts[keys[i] >> (32 - kFirstBits)];
  int64_t left = count / kEvery * 5 / 4 + 16;
  return uint32_t(find_bin(counts, kBins, left)) << (32 - kFirstBits);
}

static void select_top(const TopKItem& item) {
  const int64_t n = item.n, padded = (n + kLanes - 1) / kLanes * kLanes;
  float* y = reinterpret_cast<float*>(item.scratch) + item.reach;  // reach: room for the widest step, a multiple of 16
  uint32_t* keys = reinterpret_cast<uint32_t*>(y);                 // in place: a vector is read before it is overwritten
  uint32_t* candidates = keys + padded + kLanes;
  uint32_t* counts = candidates + padded + kLanes;  // [4][kBins]

  for (int64_t j = -item.reach; j < 0; j += kLanes) store(y + j, set1(-kInf));
  for (int64_t j = 0; j < padded; j += kLanes)
    store(y + j, j + kLanes <= n ? load(item.scores + j) : load_first(item.scores + j, int(n - j), set1(-kInf)));
  for (int reach = 0, i = 0; reach < item.spread; ++i) {
    const int step = reach + 1 < item.spread - reach ? reach + 1 : item.spread - reach;
    if (step < n) dilate(y, n, step, item.factors[i]);
    reach += step;
  }

  for (int64_t j = 0; j < n; j += kLanes) store(keys + j, ordered_key(load(y + j)));
  for (int64_t i = 0; i < item.sinks && i < n; ++i) keys[i] = 0xff800000u;  // +inf
  for (int64_t i = n > item.recent ? n - item.recent : 0; i < n; ++i) keys[i] = 0xff800000u;
  for (int64_t j = n; j < padded; ++j) keys[j] = 0;

  // How many start with each 11 bits: of the keys at the floor and above or, where the sample erred, of all. Four tables: equal
  // neighbours do not wait for each other's count.
  const uint32_t floor = likely_floor(keys, n, item.count, counts);
  int64_t num = floor ? keep_range(keys, n, floor, 0u - floor, candidates) : 0;
  const uint32_t* from = candidates;
  if (num < item.count) from = keys, num = n;
  __builtin_memset(counts, 0, 4 * kBins * sizeof *counts);
  for (int64_t i = 0; i < num; ++i) ++counts[(i & 3) * kBins + (from[i] >> (32 - kFirstBits))];
  for (int bin = 0; bin < kBins; bin += kLanes) {
    I32 total = load_i32(counts + bin);
    for (int table = 1; table < 4; ++table) total = total + load_i32(counts + table * kBins + bin);
    store(counts + bin, total);
  }
  int64_t left = item.count;
  const uint32_t top = uint32_t(find_bin(counts, kBins, left));

  // Only the keys of that bin decide the rest.
  num = keep_range(from, num, top << (32 - kFirstBits), 1u << (32 - kFirstBits), candidates);
  __builtin_memset(counts, 0, kBins * sizeof *counts);
  for (int64_t i = 0; i < num; ++i) ++counts[candidates[i] >> 10 & 2047];
  const uint32_t middle = uint32_t(find_bin(counts, 2048, left));
  __builtin_memset(counts, 0, 1024 * sizeof *counts);
  const uint32_t prefix = top << 11 | middle;
  for (int64_t i = 0; i < num; ++i)
    if (candidates[i] >> 10 == prefix) ++counts[candidates[i] & 1023];
  const uint32_t threshold = prefix << 10 | uint32_t(find_bin(counts, 1024, left));

  // Above the threshold: all. At it: the first `left`, since ties go to the lower index.
  const I32 cut = set1_i32(int32_t(threshold));
  const I32 lane = lane_numbers();
  int32_t* out = item.index;
  int32_t* const out_end = item.index + item.count;
  for (int64_t j = 0; j < n && out < out_end; j += kLanes) {
    const I32 key = load_i32(keys + j);
    uint32_t taken = bits(less_unsigned(cut, key)), ties = bits(equal(key, cut));
    if (j + kLanes > n) ties &= (1u << (n - j)) - 1;
    for (; ties && left > 0; ties &= ties - 1, --left) taken |= ties & (0u - ties);
    if (!taken) continue;
    const int found = __builtin_popcount(taken);
    if (out + kLanes <= out_end) {
      compress_store(out, mask_of(taken), lane + set1_i32(int32_t(j)));
    } else {  // near the end of the list a whole vector does not fit
      int32_t* p = out;
      for (uint32_t rest = taken; rest; rest &= rest - 1) *p++ = int32_t(j) + __builtin_ctz(rest);
    }
    out += found;
  }
}

static constexpr TopKKernels top_k_kernels() { return {.select = select_top}; }

}
