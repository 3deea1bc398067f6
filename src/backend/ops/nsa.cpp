// See nsa.h.
#include "backend/ops/nsa.h"

#include <cmath>
#include <functional>

#include "base/check.h"

namespace hunch {
namespace {

// (x, y) turned by the angle of {cos, sin}, forwards or back.
void turn(float* x, const float* cos_sin, int dim, bool back) {
  const int half = dim / 2;
  for (int i = 0; i < half; ++i) {
    const float c = cos_sin[2 * i], s = back ? -cos_sin[2 * i + 1] : cos_sin[2 * i + 1];
    const float a = x[i], b = x[i + half];
    x[i] = a * c - b * s, x[i + half] = b * c + a * s;
  }
}

// A score that `count` of the n scores reach at least: the best of 32 classes of them, the count-th of these. -inf if not worth
// it.
float reached_by(const float* scores, int64_t n, int64_t count) {
  constexpr int64_t kClasses = 32;
  if (count < 1 || count > kClasses || n < 4 * kClasses) return -INFINITY;
  float best[kClasses];
  std::copy_n(scores, kClasses, best);
  for (int64_t j = kClasses; j + kClasses <= n; j += kClasses)
    for (int64_t i = 0; i < kClasses; ++i) best[i] = scores[j + i] > best[i] ? scores[j + i] : best[i];
  std::nth_element(best, best + count - 1, best + kClasses, std::greater<>());
  return best[count - 1];
}

}

void Compressor::use(const NsaLayer& nsa, int head_dim) {
  const size_t dim = size_t(head_dim), half = dim / 2;
  nsa_ = nsa, dim_ = head_dim;
  if (turns_.size() == size_t(nsa.shape->cmp_len) * dim && std::equal(inv_freq_.begin(), inv_freq_.end(), nsa.inv_freq)) return;
  inv_freq_.assign(nsa.inv_freq, nsa.inv_freq + half);
  turns_.resize(size_t(nsa.shape->cmp_len) * dim), start_.resize(dim), k_.resize(dim), v_.resize(dim);
  key_.resize(dim), value_.resize(dim);
  for (int m = 0; m < nsa.shape->cmp_len; ++m)
    for (size_t i = 0; i < half; ++i) {
      const double angle = double(m) * double(nsa.inv_freq[i]);
      turns_[size_t(m) * dim + 2 * i] = float(std::cos(angle)), turns_[size_t(m) * dim + 2 * i + 1] = float(std::sin(angle));
    }
}

void Compressor::weighted(int kv_head, int64_t m, const float* k, const float* v) {
  const int64_t at = kv_head * nsa_.shape->cmp_len + m;
  for (size_t d = 0; d < size_t(dim_); ++d) {
    key_[d] += double(nsa_.key[at] * k[d]);
    value_[d] += double(nsa_.value[at] * v[d]);
  }
}

void Compressor::linear(int kv_head, int64_t m, const float* k, const float* v) {
  const int64_t first = (int64_t(kv_head) * nsa_.shape->cmp_len + m) * dim_;
  for (int64_t c = 0; c < dim_; ++c) {
    const float *to_key = nsa_.key + (first + c) * dim_, *to_value = nsa_.value + (first + c) * dim_;
    for (size_t d = 0; d < size_t(dim_); ++d) {
      key_[d] += double(k[c] * to_key[d]);
      value_[d] += double(v[c] * to_value[d]);
    }
  }
}

// Rotations add up: the row is rotated as its first token, number `index` strides, so that a weighted sum needs each key turned
// back by its distance m from that token only. A linear map needs the keys as they were before any rotation.
void Compressor::row(KvStore& store, int layer, int kv_head, View<const int32_t, 1> pages, std::span<const int64_t> entries,
    int64_t index, float* k, float* v) {
  const NsaShape& s = *nsa_.shape;
  HUNCH_CHECK(int(entries.size()) == s.cmp_len && store.head_dim == dim_);
  const bool linear_map = s.kind == NsaShape::Kind::Linear, rotates = !s.rope_before;
  for (int i = 0; i < dim_ / 2; ++i) {  // as RopeAnglesArgs has it
    const float angle = float(index * s.cmp_stride) * nsa_.inv_freq[i];
    start_[2 * i] = std::cos(angle), start_[2 * i + 1] = std::sin(angle);
  }
  std::ranges::fill(key_, 0.0), std::ranges::fill(value_, 0.0);
  for (int64_t m = 0; m < s.cmp_len; ++m) {
    store.read(layer, kv_head, pages, entries[m], k_.data(), v_.data());
    if (rotates) turn(k_.data(), turns_.data() + m * dim_, dim_, true);
    if (!linear_map) {
      weighted(kv_head, m, k_.data(), v_.data());
      continue;
    }
    if (rotates) {
      turn(k_.data(), start_.data(), dim_, true);
      for (float& x : k_) x /= nsa_.magnitude;
    }
    linear(kv_head, m, k_.data(), v_.data());
  }
  const bool turned = rotates && !linear_map;  // the sum of a weighted row has its rotation already
  for (size_t d = 0; d < size_t(dim_); ++d) k[d] = turned ? 0 : float(key_[d]), v[d] = float(value_[d]);
  if (nsa_.key_offset)
    for (int d = 0; d < dim_; ++d) k[d] += nsa_.key_offset[int64_t(kv_head) * dim_ + d];
  if (!rotates) return;
  turn(k, start_.data(), dim_, false);
  for (int d = 0; d < dim_; ++d) k[d] = k[d] * nsa_.magnitude + (turned ? float(key_[d]) : 0);
}

// Row i is cmp_len / cmp_stride strides long and block j sel_block / cmp_stride: with r j as the block's first stride, row r j +
// k has as many strides in it as its own [k, k + c) has in [0, r).
void score_blocks(const NsaShape& s, const float* p, int64_t rows, int64_t num_blocks, float* scores) {
  const int64_t r = s.sel_block / s.cmp_stride, c = s.cmp_len / s.cmp_stride, taps = r + c - 1;
  // Row r j + 1 - c + k has so many strides in block j.
  const auto shared = [&](int64_t k) { return float(std::min(k + 1, r) - std::max<int64_t>(k + 1 - c, 0)); };
  const auto near_end = [&](int64_t j) {
    float sum = 0;
    for (int64_t k = 0, i = r * j + 1 - c; k < taps; ++k, ++i)
      if (i >= 0 && i < rows) sum += shared(k) * p[i];
    return sum;
  };
  constexpr int64_t kTaps = 5;  // of the usual shapes: sums of as many products, without a loop
  float weights[kTaps];
  if (taps == kTaps)
    for (int64_t k = 0; k < kTaps; ++k) weights[k] = shared(k);
  for (int64_t j = 0; j < num_blocks; ++j) {
    const int64_t first = r * j + 1 - c;
    if (taps != kTaps || first < 0 || first + taps > rows) {
      scores[j] = near_end(j);
      continue;
    }
    const float* at = p + first;
    scores[j] = weights[0] * at[0] + weights[1] * at[1] + weights[2] * at[2] + weights[3] * at[3] + weights[4] * at[4];
  }
}

void choose_blocks(const NsaShape& s, int64_t position, const float* scores, int32_t* chosen) {
  const int64_t own = position / s.sel_block, wanted = std::min<int64_t>(s.sel_count, own + 1);
  const int64_t begin = std::min<int64_t>(s.init_blocks, own + 1), end = std::max(own + 1 - s.local_blocks, begin);
  int64_t count = 0;
  for (int64_t j = 0; j <= own && count < wanted; ++j)
    if (j < begin || j >= end) chosen[count++] = int32_t(j);
    else j = end - 1;
  // The rest by score, the best first; among equals whoever came first, the lower block, stays in front.
  const int64_t first = count;
  const float least = reached_by(scores + begin, end - begin, wanted - first);
  for (int64_t j = begin; j < end && first < wanted; ++j) {
    if (scores[j] < least || (count == wanted && !(scores[j] > scores[chosen[count - 1]]))) continue;
    int64_t at = count < wanted ? count++ : count - 1;
    for (; at > first && scores[j] > scores[chosen[at - 1]]; --at) chosen[at] = chosen[at - 1];
    chosen[at] = int32_t(j);
  }
  std::sort(chosen, chosen + count);
  std::fill(chosen + count, chosen + s.sel_count, -1);
}

}
