// Sampling kernels of one instruction set: scans of a row of logits, Gumbel noise for 64 ids at a time from Philox4x32-10
// (definition: base/random.h; plain loop: backend/reference/sample.cpp). Included by rows_body.h.
#pragma once

namespace hunch::HUNCH_ISA {

inline constexpr int kNoiseIds = 64;  // 16 blocks of 4 ids: one block a lane
inline constexpr int kScanIds = 256;  // ids that share 16 group maxima

// Upper halves of the unsigned 32 x 32 bit products.
HUNCH_SIMD I32 multiply_high(I32 a, uint32_t b) {
#if HUNCH_LEVEL >= 2
  const __m512i factor = _mm512_set1_epi32(int(b));
  const __m512i even = _mm512_srli_epi64(_mm512_mul_epu32(a.v, factor), 32);
  const __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), factor);
  return {_mm512_mask_blend_epi32(0xaaaa, even, odd)};
#elif HUNCH_LEVEL == 1
  const __m256i factor = _mm256_set1_epi32(int(b));
  const auto half = [&](__m256i v) __attribute__((always_inline)) {
    const __m256i even = _mm256_srli_epi64(_mm256_mul_epu32(v, factor), 32);
    return _mm256_blend_epi32(even, _mm256_mul_epu32(_mm256_srli_epi64(v, 32), factor), 0xaa);
  };
  return {half(a.lo), half(a.hi)};
#else
  alignas(64) uint32_t lanes[kLanes];
  store(lanes, a);
  for (uint32_t& lane : lanes) lane = uint32_t(uint64_t(lane) * b >> 32);
  return load_i32(lanes);
#endif
}

// Random bits of ids [first_id, first_id + 64): out[j] has ids 16j.. in order.
HUNCH_SIMD void philox_64(const SampleRow& row, int64_t first_id, I32 (&out)[4]) {
  // Lane 4m + j of a register counts block 4j + m, so that transposing 4 x 4 words inside each quarter of it orders the ids.
  alignas(64) int32_t block[kLanes];
  for (int i = 0; i < kLanes; ++i) block[i] = 4 * (i % 4) + i / 4;
  I32 c0 = load_i32(block) + set1_i32(int32_t(first_id / 4)), c1 = set1_i32(int32_t(row.position));
  I32 c2 = set1_i32(int32_t(row.stream)), c3 = set1_i32(int32_t(row.sample));
  uint32_t k0 = uint32_t(row.seed), k1 = uint32_t(row.seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const I32 high0 = multiply_high(c0, 0xD2511F53u), low0 = c0 * set1_i32(int32_t(0xD2511F53u));
    const I32 high2 = multiply_high(c2, 0xCD9E8D57u), low2 = c2 * set1_i32(int32_t(0xCD9E8D57u));
    c0 = high2 ^ c1 ^ set1_i32(int32_t(k0)), c1 = low2;
    c2 = high0 ^ c3 ^ set1_i32(int32_t(k1)), c3 = low0;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
#if HUNCH_LEVEL >= 2
  const __m512i a = _mm512_unpacklo_epi32(c0.v, c1.v), b = _mm512_unpackhi_epi32(c0.v, c1.v);
  const __m512i c = _mm512_unpacklo_epi32(c2.v, c3.v), d = _mm512_unpackhi_epi32(c2.v, c3.v);
  out[0] = {_mm512_unpacklo_epi64(a, c)}, out[1] = {_mm512_unpackhi_epi64(a, c)};
  out[2] = {_mm512_unpacklo_epi64(b, d)}, out[3] = {_mm512_unpackhi_epi64(b, d)};
#else
  alignas(64) int32_t word[4][kLanes], ids[kNoiseIds];
  store(word[0], c0), store(word[1], c1), store(word[2], c2), store(word[3], c3);
  for (int i = 0; i < kLanes; ++i)
    for (int j = 0; j < 4; ++j) ids[4 * block[i] + j] = word[j][i];
  for (int j = 0; j < 4; ++j) out[j] = load_i32(ids + j * kLanes);
#endif
}

// -log(-log u), u = (x + 0.5) / 2^32. Both tails keep their relative precision: where u > 1/2, fp32 holds v = 1 - u instead, and
// -log(1 - v) = v (-log w) / (1 - w) with w = 1 - v as rounded (Kahan).
HUNCH_SIMD F32 gumbel(I32 x) {
  const Mask low = less(set1_i32(-1), x);  // below 2^31: u < 1/2
  const F32 one = set1(1.0f), half = set1(0.5f), unit = set1(0x1p-32f);
  const F32 tail = (to_f32(select(low, x, x ^ set1_i32(-1))) + half) * unit;  // u or v
  const F32 w = select(low, tail, one - tail);
  const F32 minus_log = zero() - log(w);
  const F32 corrected = select(less(w, one), minus_log * tail / (one - w), tail);
  return zero() - log(select(low, minus_log, corrected));
}

static void noise_of_64(const SampleRow& row, int64_t first_id, float* out) {
  I32 bits[4];
  philox_64(row, first_id, bits);
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) store(out + j * kLanes, gumbel(bits[j]));
}

HUNCH_SIMD F32 load_logits(const float* logits, int64_t i, int64_t vocab) {
  if (i + kLanes <= vocab) return load(logits + i);
  return load_first(logits + i, i < vocab ? int(vocab - i) : 0, set1(-kInf));
}

static LogitScan scan_logits(const float* logits, int64_t vocab, float* group_best) {
  const F32 inf = set1(kInf);
  F32 best = zero() - inf;
  Mask ordered = mask_of(0xffff), finite = mask_of(0);
  for (int64_t first = 0; first < vocab; first += kScanIds, group_best += kLanes) {
    F32 group = zero() - inf;
    for (int64_t i = first; i < first + kScanIds && i < vocab; i += kLanes) {
      const F32 x = load_logits(logits, i, vocab);
      ordered = both(ordered, equal(x, x));
      finite = either(finite, less(abs(x), inf));
      group = max(x, group);
    }
    store(group_best, group);
    best = max(group, best);
  }
  return {max_of(best), bits(ordered) != 0xffff, !none_of(finite)};
}

static int64_t collect_ids(const float* logits, int64_t vocab, float least, int32_t* ids) {
  const I32 lanes = lane_numbers();
  const F32 bound = set1(least);
  int64_t count = 0;
  for (int64_t i = 0; i < vocab; i += kLanes) {
    Mask kept = less_equal(bound, load_logits(logits, i, vocab));
    if (i + kLanes > vocab) kept = both(kept, first_lanes(int(vocab - i)));
    if (none_of(kept)) continue;
    count += compress_store(ids + count, kept, lanes + set1_i32(int32_t(i)));
  }
  return count;
}

// Of the ids i, i + 1, ...: which are possible, and their log ratios.
HUNCH_SIMD Mask possible(const SampleRow& row, F32 x, I32 ids) {
  const F32 cut = set1(row.cut_logit);
  return either(less(cut, x), both(equal(x, cut), less(ids, set1_i32(row.cut_id + 1))));
}
HUNCH_SIMD F32 log_ratio(const SampleRow& row, F32 x) {
  const F32 best = set1(row.best);
  return select(equal(x, best), zero(), (x - best) / set1(row.temperature));
}

// Draws the bits of 64 ids unless none can beat the score `reached` whatever they are; false also if their bits say that none
// does. Noise above g needs -log u < e^-g, hence 1 - u < e^-g: one comparison for two logarithms. The margin covers the rounding
// of scores that may win.
HUNCH_SIMD bool may_win(const SampleRow& row, int64_t first_id, float greatest, float reached, I32 (&bits)[4]) {
  constexpr float kMostNoise = 22.88f, kMargin = 0.01f;  // 33 log 2, from u = 1 - 2^-33
  if (!(greatest >= row.cut_logit)) return false;
  const float needed = reached - (greatest == row.best ? 0.0f : (greatest - row.best) / row.temperature) - kMargin;
  if (!(needed <= kMostNoise)) return false;  // NaN: infinitely far below the best id, with nothing reached yet
  philox_64(row, first_id, bits);
  if (needed <= 0) return true;
  const uint32_t most = uint32_t(__builtin_expf(-needed) * 0x1p32f * 0.999f) + 1;  // 1 - u in units of 2^-32
  Mask any = mask_of(0);
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) any = either(any, less_unsigned(bits[j] ^ set1_i32(-1), set1_i32(int32_t(most))));
  return !none_of(any);
}

static int32_t choose_token(const SampleRow& row) {
  I32 ids = lane_numbers(), best_id = set1_i32(-1);
  F32 best = set1(-kInf);
  float reached = -kInf;  // the best score so far
  for (int64_t first = 0; first < row.vocab; first += kNoiseIds, ids = ids + set1_i32(kNoiseIds)) {
    F32 x[4], greatest = set1(-kInf);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      x[j] = load_logits(row.logits, first + j * kLanes, row.vocab);
      greatest = max(x[j], greatest);
    }
    I32 bits[4];
    if (!may_win(row, first, max_of(greatest), reached, bits)) continue;
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const F32 score = log_ratio(row, x[j]) + gumbel(bits[j]);
      const I32 own = ids + set1_i32(j * kLanes);
      Mask better = both(possible(row, x[j], own), less(best, score));  // strict: the lower id stays
      better = both(better, less(own, set1_i32(int32_t(row.vocab))));
      best = select(better, score, best);
      best_id = select(better, own, best_id);
    }
    reached = max_of(best);
  }
  alignas(64) float scores[kLanes];
  alignas(64) int32_t lane[kLanes];
  store(scores, best), store(lane, best_id);
  int32_t token = -1;
  float greatest = -kInf;
  for (int i = 0; i < kLanes; ++i) {
    if (lane[i] < 0) continue;
    if (scores[i] > greatest || (scores[i] == greatest && lane[i] < token)) greatest = scores[i], token = lane[i];
  }
  return token;
}

static void write_scores(const SampleRow& row, float* out) {
  I32 ids = lane_numbers();
  const F32 never = set1(-kInf);
  for (int64_t first = 0; first < row.vocab; first += kNoiseIds, ids = ids + set1_i32(kNoiseIds)) {
    I32 bits[4];
    philox_64(row, first, bits);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const int64_t i = first + j * kLanes, left = row.vocab - i;
      if (left <= 0) break;
      const F32 x = load_logits(row.logits, i, row.vocab);
      const F32 score = log_ratio(row, x) + gumbel(bits[j]);
      store_first(out + i, select(possible(row, x, ids + set1_i32(j * kLanes)), score, never), int(left));
    }
  }
}

static double write_ratios(const SampleRow& row, float* ratios) {
  I32 ids = lane_numbers();
  double total = 0;
  for (int64_t first = 0; first < row.vocab; first += kScanIds) {
    F32 part = zero();
    for (int64_t i = first; i < first + kScanIds && i < row.vocab; i += kLanes) {
      const F32 x = load_logits(row.logits, i, row.vocab);
      const F32 ratio = select(possible(row, x, ids), exp(log_ratio(row, x)), zero());
      part = part + ratio;
      store_first(ratios + i, ratio, int(row.vocab - i));
      ids = ids + set1_i32(kLanes);
    }
    total += double(sum(part));
  }
  return total;
}

}
