// What tests of several backends are given: matrices in every encoding, numbers, trees.
#pragma once

#include <cstring>
#include <random>

#include "backend/ops/attention.h"
#include "backend/ops/sample.h"
#include "base/half.h"
#include "base/test_results.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/quantise.h"

namespace hunch {
using Floats = std::vector<float>;
}
namespace hunch::test {

inline constexpr DType kEncodings[] = {DType::F32, DType::F16, DType::BF16, DType::Q8_0, DType::Q4_0, DType::Q4_K, DType::Q5_K,
    DType::Q6_K, DType::F8_E4M3, DType::MXFP4};

// Every filter, alone and with others.
inline constexpr SamplingParams kParams[] = {{0, 40, 0.9f, 0}, {1, 0, 1, 0}, {0.8f, 40, 0.95f, 0.05f}, {1, 3, 1, 0},
    {1, 600, 1, 0}, {1, 2000, 0.9f, 0}, {1, 0, 0.95f, 0}, {1.3f, 0, 0.5f, 0}, {1, 0, 1, 0.001f}, {1, 0, 1, 0.3f},
    {2, 0, 0.99f, 1e-4f}, {0.3f, 1000, 0.8f, 0}, {1, 1, 1, 0}, {5, 0, 0.999f, 0}, {1, 0, 0, 0}, {1, 1 << 20, 0.7f, 0},
    {0.01f, 0, 1, 0.9f}, {1, 1500, 1, 1}, {2e-5f, 0, 0.9f, 0.5f}};

inline Floats gaussian(int64_t n, uint32_t seed = 2, float spread = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  Floats out(n);
  for (float& x : out) x = normal(random);
  return out;
}

// Values, which are not copied, as a matrix of so many rows.
inline Tensor tensor_of(const Floats& values, int64_t rows) {
  Tensor out{.shape = {rows, std::ssize(values) / rows}, .data = reinterpret_cast<const std::byte*>(values.data())};
  out.bytes = values.size() * sizeof(float);
  return out;
}

// A random matrix in the file's encoding; its storage is kept beside it.
struct Matrix {  // bits: Q4_K too is made of random bits
  Matrix(DType dtype, int64_t out_dim, int64_t in_dim, uint32_t seed = 1, bool bits = false) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 1);
    const size_t row_bytes = dtype_bytes(dtype, in_dim);
    bytes.resize(row_bytes * size_t(out_dim));
    Floats row(in_dim);
    for (int64_t i = 0; i < out_dim; ++i) {
      std::byte* to = bytes.data() + size_t(i) * row_bytes;
      if (can_quantise(dtype) && !(bits && dtype == DType::Q4_K)) {
        for (float& x : row) x = normal(random);
        quantise_row(dtype, row.data(), to, in_dim);
        continue;
      }
      // K-quants: every bit pattern is a valid code, but the f16 scales must be finite and small.
      for (size_t j = 0; j < row_bytes; ++j) to[j] = std::byte(random());
      const size_t block_bytes = size_t(dtype_info(dtype).block_bytes);
      for (size_t block = 0; block < row_bytes; block += block_bytes) {
        const uint16_t d = f32_to_f16(normal(random) / 1000), d_min = f32_to_f16(normal(random) / 100);
        std::memcpy(to + block + (dtype == DType::Q6_K ? 208 : 0), &d, 2);
        if (dtype != DType::Q6_K) std::memcpy(to + block + 2, &d_min, 2);
      }
    }
    tensor.dtype = dtype, tensor.shape = {out_dim, in_dim}, tensor.data = bytes.data(), tensor.bytes = bytes.size();
    if (dtype == DType::F8_E4M3) scale_by(128, 128);
  }
  // FP8: scales of blocks of that size, different from each other.
  void scale_by(int64_t rows, int64_t columns) {
    std::mt19937 random(5);
    std::uniform_real_distribution<float> uniform(0.001f, 0.01f);
    const int64_t out = tensor.shape[0], in = tensor.shape[1];
    scales.resize((out + rows - 1) / rows * ((in + columns - 1) / columns));
    for (float& s : scales) s = uniform(random);
    tensor.scales = {scales.data(), rows, columns};
  }
  std::vector<std::byte> bytes;
  Floats scales;
  Tensor tensor;
};

// `part` stands in `whole` from element `first` on, bit for bit.
inline bool stands_at(const Floats& part, const Floats& whole, int64_t first) {
  return size_t(first) + part.size() <= whole.size() && same_bits(part.data(), whole.data() + first, part.size());
}

// Elements [first, first + count).
template <class T>
std::vector<T> part_of(const std::vector<T>& all, int64_t first, int64_t count) {
  return {all.begin() + first, all.begin() + first + count};
}

template <class T>
View<T, 2> strided(T* data, int64_t rows, int64_t n, int64_t stride) {
  View<T, 2> view(data, rows, n);
  view.stride[0] = stride;
  return view;
}

// A random tree: each row is the child of an earlier one, the one before with probability `chain`.
inline Ints random_tree(int rows, double chain, std::mt19937& random) {
  Ints parents{-1};
  for (int x = 1; x < rows; ++x)
    parents.push_back(std::uniform_real_distribution<>(0, 1)(random) < chain ? x - 1 : int32_t(random() % uint32_t(x)));
  return parents;
}

inline std::vector<int> path_to(const Ints& parents, int x) {
  std::vector<int> path;
  for (; x >= 0; x = parents[x]) path.push_back(x);
  return {path.rbegin(), path.rend()};
}

// A pass of one sequence through attention, and what comes of it.
struct AttendRequest {
  Ints last;
  int window = 0;
  int64_t first = 0;
  Floats q;  // [row][head][head_dim]
  ScoreMetric metric = ScoreMetric::None;
  ScoreCombine combine = ScoreCombine::Sum;
  std::vector<uint8_t> row_used;
  Floats lse;  // given, [row][head]
  int64_t prefix_len = 0;
  int block = 1;
  int sets = 0;
  Ints parents;  // of a tree
  int tree_first = 0;
  int64_t tree_entry = 0;
  Ints index;  // [index_sets][count]
  int index_sets = 0;
  int64_t tail_first = 0;
  Floats sinks;  // [head], of all requests of a pass those of the first; empty: none
};
struct AttendResult {
  Floats out, lse;             // [row][head][head_dim], [row][head]
  std::vector<Floats> scores;  // [set][prefix_len + kGuard]
};
inline bool same_bits(const AttendResult& a, const AttendResult& b) { return same_bits(a.out, b.out) && same_bits(a.lse, b.lse); }

}
