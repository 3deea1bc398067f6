// Row-wise kernels of one instruction set: norm, gate, rope. A row's bits depend on it alone: sums run in one order that knows
// only its length.
#pragma once

namespace hunch::HUNCH_ISA {

static void norm_row(const float* x, const float* weight, double eps, int64_t n, float* out) {
  F32 part[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const F32 a = load(x + i + j * kLanes);
      part[j] = fma(a, a, part[j]);
    }
  }
  for (; i < n; i += kLanes) {
    const F32 a = load_row(x + i, int(n - i));
    part[0] = fma(a, a, part[0]);
  }
  const float total = sum((part[0] + part[1]) + (part[2] + part[3]));
  const F32 scale = set1(float(1 / __builtin_sqrt(double(total) / double(n) + eps)));
  for (i = 0; i < n; i += kLanes) {
    const int left = int(n - i);
    store_first(out + i, load_row(x + i, left) * scale * load_row(weight + i, left), left);
  }
}

HUNCH_SIMD F32 silu(F32 a) { return a / (set1(1.0f) + exp(zero() - a)); }

static void gate_row(const float* gate, const float* up, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += kLanes) {
    const int left = int(n - i);
    store_first(out + i, silu(load_row(gate + i, left)) * load_row(up + i, left), left);
  }
}

// A NaN stays one: min and max give their second operand then.
HUNCH_SIMD F32 clamped(F32 gate, F32 up, F32 limit, F32 alpha) {
  const F32 g = min(limit, gate), u = max(zero() - limit, min(limit, up));
  return (u + set1(1.0f)) * (g / (set1(1.0f) + exp(zero() - alpha * g)));
}

static void gate_clamped_row(const float* gate, const float* up, int64_t n, float limit, float alpha, float* out) {
  const F32 l = set1(limit), a = set1(alpha);
  for (int64_t i = 0; i < n; i += kLanes) {
    const int left = int(n - i);
    store_first(out + i, clamped(load_row(gate + i, left), load_row(up + i, left), l, a), left);
  }
}

// Products and sums are rounded one by one, as in the reference: both give the same bits.
static void rope_row(float* x, int64_t heads, int64_t head_stride, const float* cos_sin, int64_t half, bool neighbours) {
  constexpr int kMaxHalf = 256;
  alignas(64) float cos[kMaxHalf], sin[kMaxHalf];
  for (int64_t first = 0; first < half; first += kMaxHalf) {
    const int64_t n = half - first < kMaxHalf ? half - first : kMaxHalf;
    for (int64_t i = 0; i < n; ++i) cos[i] = cos_sin[2 * (first + i)], sin[i] = cos_sin[2 * (first + i) + 1];
    for (int64_t h = 0; h < heads; ++h) {
      float* head = x + h * head_stride;
      if (neighbours) {
        float* pair = head + 2 * first;
        for (int64_t i = 0; i < n; ++i) {
          const float a = pair[2 * i], b = pair[2 * i + 1];
          pair[2 * i] = a * cos[i] - b * sin[i];
          pair[2 * i + 1] = b * cos[i] + a * sin[i];
        }
        continue;
      }
      float *low = head + first, *high = head + first + half;
      int64_t i = 0;
      for (; i + kLanes <= n; i += kLanes) {
        const F32 a = load(low + i), b = load(high + i), c = load(cos + i), s = load(sin + i);
        store(low + i, a * c - b * s);
        store(high + i, b * c + a * s);
      }
      for (; i < n; ++i) {
        const float a = low[i], b = high[i];
        low[i] = a * cos[i] - b * sin[i];
        high[i] = b * cos[i] + a * sin[i];
      }
    }
  }
}

}

#include "backend/cpu/sample_body.h"

namespace hunch::HUNCH_ISA {

static constexpr RowsKernels rows_kernels() {
  return {.norm = norm_row,
      .gate = gate_row,
      .gate_clamped = gate_clamped_row,
      .rope = rope_row,
      .scan = scan_logits,
      .collect = collect_ids,
      .choose = choose_token,
      .ratios = write_ratios,
      .scores = write_scores,
      .noise = noise_of_64};
}

}
