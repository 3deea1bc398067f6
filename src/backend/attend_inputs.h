// What tests of attention on several backends share: shapes of caches, requests of rows, and what comes of them.
#pragma once

#include <algorithm>
#include <cmath>

#include "backend/test_inputs.h"

namespace hunch::test {

struct KvShape {
  DType dtype = DType::BF16;
  int kv_heads = 2, group = 2, head_dim = 64, layers = 1;
  int heads() const { return kv_heads * group; }
  int64_t width() const { return int64_t(heads()) * head_dim; }  // of a row of queries
  std::string name() const {
    return std::string(dtype_info(dtype).name) + " kv_heads " + std::to_string(kv_heads) + " group " + std::to_string(group) +
        " dim " + std::to_string(head_dim);
  }
};

inline Floats random_floats(size_t n, uint32_t seed, float scale = 1) { return gaussian(int64_t(n), seed, scale); }

// Queries that are exact in bf16, so that the products of every KV type are those of the reference.
inline Floats random_queries(const KvShape& shape, int64_t rows, uint32_t seed) {
  Floats q = random_floats(rows * shape.width(), seed, 1.5f);
  for (float& x : q) x = bf16_to_f32(f32_to_bf16(x));
  return q;
}

// Rows at entries first, first + 1, ...
inline AttendRequest chunk(const KvShape& shape, int64_t first, int64_t rows, uint32_t seed = 9, int window = 0) {
  AttendRequest request;
  for (int64_t r = 0; r < rows; ++r) request.last.push_back(int32_t(first + r));
  request.window = window;
  request.q = random_queries(shape, rows, seed);
  return request;
}
// The rows [first, first + count) of a request as a request of their own.
inline AttendRequest rows_of(const AttendRequest& request, int64_t first, int64_t count, const KvShape& shape) {
  AttendRequest part;
  part.window = request.window, part.first = request.first, part.sinks = request.sinks;
  part.parents = request.parents, part.tree_first = request.tree_first + int(first), part.tree_entry = request.tree_entry;
  part.index = request.index, part.index_sets = request.index_sets, part.tail_first = request.tail_first;
  part.last = part_of(request.last, first, count);
  part.q = part_of(request.q, first * shape.width(), count * shape.width());
  return part;
}

// The rows of a tree, and those of one of its paths as a chain behind the same prefix.
inline AttendRequest tree_request(const KvShape& shape, const Ints& parents, int64_t first_entry, int window) {
  AttendRequest request;
  request.window = window;
  request.parents = parents, request.tree_entry = first_entry;
  for (size_t x = 0; x < parents.size(); ++x)
    request.last.push_back(int32_t(first_entry) + int32_t(path_to(parents, int(x)).size()) - 1);
  request.q = random_queries(shape, std::ssize(parents), 21);
  return request;
}
inline AttendRequest chain_of(const AttendRequest& tree, const std::vector<int>& path, const KvShape& shape) {
  AttendRequest chain;
  chain.window = tree.window;
  for (size_t d = 0; d < path.size(); ++d) {
    chain.last.push_back(int32_t(tree.tree_entry) + int32_t(d));
    append(chain.q, part_of(tree.q, path[d] * shape.width(), shape.width()));
  }
  return chain;
}

inline constexpr int64_t kGuard = 5;  // scores past the prefix that must stay
inline constexpr float kUntouched = 1234.5f;

// The last rows of a cache, two of three of which leave scores.
inline AttendRequest scored(
    const KvShape& shape, int64_t len, int64_t rows, ScoreMetric metric, ScoreCombine combine, bool shared, int64_t prefix_len) {
  AttendRequest request = chunk(shape, len - rows, rows, 11);
  request.metric = metric, request.combine = combine, request.prefix_len = prefix_len;
  request.sets = shared ? 1 : shape.kv_heads;
  for (int64_t r = 0; r < rows; ++r) request.row_used.push_back(uint8_t(r % 3 != 1));
  // Log-sum-exps as a draft leaves them: near the truth, and now and then far below or above it.
  request.lse = random_floats(size_t(rows * shape.heads()), 12, 0.5f);
  for (float& x : request.lse) x += 8;
  request.lse[0] = -60, request.lse[1 % request.lse.size()] = 40;
  return request;
}
inline void expect_scores(
    const AttendResult& got, const AttendResult& right, int64_t prefix_len, float tolerance, const std::string& what) {
  ASSERT_EQ(got.scores.size(), right.scores.size());
  for (size_t set = 0; set < got.scores.size(); ++set)
    for (size_t e = 0; e < got.scores[set].size(); ++e) {
      if (int64_t(e) >= prefix_len) {
        ASSERT_EQ(got.scores[set][e], kUntouched) << what << ": written past the prefix at " << e;
      } else {
        const float x = right.scores[set][e];
        ASSERT_NEAR(got.scores[set][e], x, tolerance * std::max(1.0f, std::fabs(x))) << what << " set " << set << " entry " << e;
      }
    }
}

// What the same request leaves of blocks: the greatest of their entries, bit for bit where one kernel makes both.
inline void expect_greatest(
    const AttendResult& of_blocks, const AttendResult& each, int64_t prefix_len, const std::string& what, float tolerance = 0) {
  ASSERT_EQ(of_blocks.scores.size(), each.scores.size());
  for (size_t set = 0; set < each.scores.size(); ++set)
    for (size_t b = 0; b < of_blocks.scores[set].size(); ++b) {
      const auto first = each.scores[set].begin() + b * kScoreBlock;
      const float right = int64_t(b) < prefix_len / kScoreBlock ? *std::max_element(first, first + kScoreBlock) : kUntouched;
      ASSERT_NEAR(of_blocks.scores[set][b], right, tolerance) << what << " set " << set << " block " << b;
    }
}

// Greatest difference; NaN anywhere, or another number of elements, counts as infinite.
inline float distance(const Floats& a, const Floats& b) {
  if (a.size() != b.size()) return INFINITY;
  float most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const float d = std::fabs(a[i] - b[i]);
    most = std::isnan(d) ? INFINITY : std::max(most, d);
  }
  return most;
}

}
