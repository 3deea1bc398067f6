#include "sparse/block_choice.h"

#include <numeric>

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
  kept.resize(heads);
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
    count = std::clamp<int64_t>(count, 0, std::ssize(rest));
    std::nth_element(rest.begin(), rest.begin() + count, rest.end(), better);
    for (int64_t i = 0; i < count; ++i) kept[rest[i].head].push_back(rest[i].block);
    rest.clear();
  };
  for (int head = 0; head < heads; ++head) {
    auto& list = kept[head];
    list.clear();
    for (int64_t b = 0; b < blocks; ++b)
      if (b < first || b >= last) list.push_back(int32_t(b));
      else rest.push_back({scores(head, b), head, int32_t(b)});
    if (!joint) take(budget - forced);
  }
  if (joint) take(budget - forced * heads);
  for (auto& list : kept) std::ranges::sort(list);
}

void BlockMeans::open(Backend& backend, const KvGeometry& geometry, int block, int64_t blocks) {
  backend_ = &backend, block_ = block;
  done_.assign(geometry.layers, 0);
  const int64_t pages = (blocks + kPageLen - 1) / kPageLen;
  if (pages <= std::ssize(pages_)) return;
  store_.reset();  // before the larger one is taken
  KvGeometry means = geometry;
  means.dtype = bounds_dtype(geometry.dtype);
  store_ = backend.make_kv_store(means, pages);
  HUNCH_CHECK(store_ != nullptr);
  pages_.resize(pages);
  std::iota(pages_.begin(), pages_.end(), 0);
}

void BlockMeans::extend(int layer, const KvRef& kv, int64_t blocks) {
  int64_t& done = done_[layer];
  if (blocks <= done) return;
  backend_->page_bounds(
      {.layer = layer, .from = kv, .to = means(), .page_len = block_, .first_page = done, .last_page = blocks, .means = true});
  done = blocks;
}

void BlockMeans::score(int layer, View<const float, 2> q, bool max_of_group, int64_t blocks, View<float, 2> out) const {
  const int64_t heads = q.extent[0], kv_heads = store_->kv_heads, group = heads / kv_heads;
  View<const float, 3> rows(q.data, 1, heads, q.extent[1]);
  if (max_of_group) {  // a row for every query head of the groups
    rows.extent[0] = group, rows.extent[1] = kv_heads;
    rows.stride[0] = q.stride[0], rows.stride[1] = group * q.stride[0];
  }
  const std::vector<uint8_t> used(rows.extent[0], 1);
  backend_->score_keys({
      .layer = layer,
      .q = rows,
      .kv = means(),
      .scores = {.metric = ScoreMetric::Logit,
          .combine = ScoreCombine::Max,
          .row_used = View<const uint8_t, 1>(used.data(), used.size()),
          .prefix_len = blocks,
          .out = out},
  });
}

}
