#include "sparse/block_choice.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace hunch {

int64_t budget_blocks(const BlockBudget& b, int64_t len, int heads) {
  const int64_t all = (len + b.block - 1) / b.block * heads;
  if (len <= b.dense_len) return all;
  // The ratio counts as the decimal it was written as (kept_entries does the same).
  const double entries = double(len - b.dense_len) * b.ratio + double(b.dense_len);
  return std::min(all, int64_t(std::ceil(entries * heads / b.block - 1e-9)));
}

int recent_blocks(const BlockBudget& b, int rows) {
  return b.recent > 0 ? b.recent : std::max(2, (rows + b.block - 1) / b.block + 1);
}

void choose_blocks(View<const float, 2> scores, int64_t blocks, int64_t budget, int sinks, int recent, bool joint,
                   std::vector<std::vector<int32_t>>& kept) {
  const int heads = int(scores.extent[0]);
  const int64_t first = std::min<int64_t>(sinks, blocks), last = std::max(first, blocks - recent);
  const int64_t forced = first + blocks - last;
  kept.resize(size_t(heads));
  struct Candidate {
    float score;
    int32_t head, block;
  };
  std::vector<Candidate> rest;
  const auto better = [](const Candidate& a, const Candidate& b) {
    const bool no_a = std::isnan(a.score), no_b = std::isnan(b.score);
    if (no_a != no_b) return no_b;
    if (!no_a && a.score != b.score) return a.score > b.score;
    return a.block != b.block ? a.block < b.block : a.head < b.head;
  };
  const auto take = [&](int64_t count) {
    count = std::clamp<int64_t>(count, 0, int64_t(rest.size()));
    std::nth_element(rest.begin(), rest.begin() + count, rest.end(), better);
    for (int64_t i = 0; i < count; ++i) kept[size_t(rest[size_t(i)].head)].push_back(rest[size_t(i)].block);
    rest.clear();
  };
  for (int head = 0; head < heads; ++head) {
    auto& list = kept[size_t(head)];
    list.clear();
    for (int64_t b = 0; b < blocks; ++b)
      if (b < first || b >= last) list.push_back(int32_t(b));
      else rest.push_back({scores(head, b), head, int32_t(b)});
    if (!joint) take(budget - forced);
  }
  if (joint) take(budget - forced * heads);
  for (auto& list : kept) std::sort(list.begin(), list.end());
}

void BlockMeans::open(int layers, int kv_heads, int head_dim, int block, int64_t max_len) {
  kv_heads_ = kv_heads, head_dim_ = head_dim, block_ = block, max_blocks_ = (max_len + block - 1) / block;
  sums_.resize(size_t(layers) * size_t(kv_heads) * size_t(max_blocks_) * size_t(head_dim));
  done_.assign(size_t(layers), 0);
  k_.resize(size_t(head_dim)), v_.resize(size_t(head_dim));
}

void BlockMeans::extend(int layer, const KvRef& kv, int64_t committed) {
  int64_t& done = done_[size_t(layer)];
  HUNCH_CHECK(committed <= max_blocks_ * block_);
  for (int64_t e = done; e < committed; ++e)
    for (int head = 0; head < kv_heads_; ++head) {
      float* to = sum(layer, head, e / block_);
      if (e % block_ == 0) std::fill_n(to, head_dim_, 0.0f);
      kv.store->read(layer, head, kv.pages, e, k_.data(), v_.data());
      for (int d = 0; d < head_dim_; ++d) to[d] += k_[size_t(d)];
    }
  done = std::max(done, committed);
}

void BlockMeans::score(int layer, View<const float, 2> q, bool max_of_group, View<float, 2> out) const {
  const int64_t len = done_[size_t(layer)], group = q.extent[0] / kv_heads_;
  const auto dot = [&](const float* a, const float* b) {
    float sums[8] = {};  // independent, so that they run side by side
    int d = 0;
    for (; d + 8 <= head_dim_; d += 8)
      for (int i = 0; i < 8; ++i) sums[i] += a[d + i] * b[d + i];
    for (; d < head_dim_; ++d) sums[0] += a[d] * b[d];
    return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
  };
  std::vector<float> query(static_cast<size_t>(head_dim_));
  for (int head = 0; head < kv_heads_; ++head) {
    std::fill(query.begin(), query.end(), 0.0f);
    for (int64_t g = 0; g < group; ++g)
      for (int d = 0; d < head_dim_; ++d) query[size_t(d)] += q(head * group + g, d);
    for (int64_t b = 0; b * block_ < len; ++b) {
      const float* keys = const_cast<BlockMeans*>(this)->sum(layer, head, b);
      float score = dot(query.data(), keys);
      if (max_of_group) {
        score = dot(&q(head * group, 0), keys);
        for (int64_t g = 1; g < group; ++g) score = std::max(score, dot(&q(head * group + g, 0), keys));
      }
      out(head, b) = score / float(std::min<int64_t>(block_, len - b * block_));
    }
  }
}

}  // namespace hunch
