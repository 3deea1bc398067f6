#include "sparse/sparse_check.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace hunch {
namespace {

float silu(float x) { return x / (1.0f + std::exp(-x)); }

size_t bin_of(float size) {
  if (!(size > 0)) return 0;
  return size_t(std::clamp(8 * (std::log2(size) + 24), 0.0f, float(CheckRecord::kBins - 1)));
}

int64_t shared(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  int64_t both = 0;
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    both += a[i] == b[j];
    if (a[i] <= b[j]) ++i;
    else ++j;
  }
  return both;
}

}  // namespace

SparseCheck::SparseCheck(Setup setup) : setup_(std::move(setup)), options_(setup_.options) {
  HUNCH_CHECK(!setup_.backend->asynchronous());
  head_first_.resize(size_t(setup_.geometry.kv_heads));
  chosen_.resize(setup_.window.size());
}

void SparseCheck::open(const Sequence& sequence) {
  chosen_at_ = -1;
  if (!options_.attention) return;
  const BlockBudget& b = *options_.attention;
  const KvGeometry& g = setup_.geometry;
  if (sequence.max_len <= b.dense_len && !options_.record) return;
  means_.open(g.layers, g.kv_heads, g.head_dim, b.block, sequence.max_len);
  most_blocks_ = (sequence.max_len + b.block - 1) / b.block;
  scores_.resize(size_t(g.kv_heads * most_blocks_));
  if (options_.record) return;
  const int64_t chosen = b.joint ? most_blocks_
                                 : std::min(most_blocks_, std::max<int64_t>(budget_blocks(b, sequence.max_len, 1),
                                                                            b.sinks + recent_blocks(b, setup_.max_rows)));
  most_entries_ = chosen * b.block;
  index_.resize(size_t(g.kv_heads * most_entries_));
  const int64_t pages = (most_entries_ + b.block + setup_.max_rows + kPageLen - 1) / kPageLen;
  if (pages <= int64_t(pages_.size())) return;
  store_.reset();  // before the larger one is taken
  store_ = setup_.backend->make_kv_store(g, pages);
  HUNCH_CHECK(store_ != nullptr);
  pages_.resize(size_t(pages));
  std::iota(pages_.begin(), pages_.end(), 0);
}

void SparseCheck::choose(int layer, View<const float, 2> q, int64_t len, int rows) {
  const BlockBudget& b = *options_.attention;
  const int heads = setup_.geometry.kv_heads;
  const int64_t blocks = (len + b.block - 1) / b.block;
  const View<float, 2> scores(scores_.data(), heads, blocks);
  means_.score(layer, q, b.max_of_group, scores);
  choose_blocks(scores, blocks, budget_blocks(b, len, b.joint ? heads : 1), b.sinks, recent_blocks(b, rows), b.joint, kept_);
}

// The lists of kept_ as entries, each at the end of its line. The block that is not full is no part of them: it lies in the tail.
void SparseCheck::list_entries(int64_t full_blocks) {
  const int block = options_.attention->block, heads = setup_.geometry.kv_heads;
  const auto full = [&](const std::vector<int32_t>& list) {
    return int64_t(std::lower_bound(list.begin(), list.end(), int32_t(full_blocks)) - list.begin());
  };
  width_ = 0;
  for (const auto& list : kept_) width_ = std::max(width_, full(list) * block);
  HUNCH_CHECK(width_ <= most_entries_);
  for (int head = 0; head < heads; ++head) {
    const auto& list = kept_[size_t(head)];
    const int64_t count = full(list);
    int32_t* to = index_.data() + head * width_;
    head_first_[size_t(head)] = width_ - count * block;
    to = std::fill_n(to, head_first_[size_t(head)], 0);
    for (int64_t i = 0; i < count; ++i)
      for (int e = 0; e < block; ++e) *to++ = list[size_t(i)] * block + e;
  }
}

// Makes chosen_[layer], and the copy of what it names.
void SparseCheck::choose_set(int layer, View<const float, 3> q, const KvRef& own, int64_t len) {
  const BlockBudget& b = *options_.attention;
  Chosen& set = chosen_[size_t(layer)];
  set.all = true;
  const int64_t blocks = (len + b.block - 1) / b.block, full = len / b.block;
  const int heads = setup_.geometry.kv_heads, rows = int(q.extent[0]);
  if (len <= b.dense_len) return;
  if (options_.record) {
    means_.extend(layer, own, len);
    return watch_blocks(layer, q, len);
  }
  if (budget_blocks(b, len, 1) >= blocks) return;
  if (chooses(layer) || chosen_at_ != len) {  // drafts may leave out the layer that was to choose
    means_.extend(layer, own, len);
    choose(layer, q[0], len, options_.drafts ? 1 : rows);
    int64_t kept = 0;
    for (const auto& list : kept_) kept += int64_t(list.size());
    all_ = kept == blocks * heads, chosen_at_ = len;
    if (!all_) list_entries(full);
  }
  if (all_) return;
  set = {.all = false, .width = width_, .tail_first = full * b.block, .head_first = head_first_};
  setup_.backend->gather_kv({.layer = layer,
                             .from = own,
                             .to = {store_.get(), View<const int32_t, 1>(pages_.data(), pages_.size())},
                             .index = View<const int32_t, 2>(index_.data(), heads, width_),
                             .tail_first = set.tail_first,
                             .tail_last = len});
}

SparseCheck::Reading SparseCheck::select(int layer, View<const float, 3> q, const KvRef& own, int64_t committed, int round_row) {
  if (!options_.attention || setup_.window[size_t(layer)] > 0) return {};
  HUNCH_CHECK(round_row == 0 || options_.drafts);
  if (round_row == 0) choose_set(layer, q, own, committed);
  const Chosen& set = chosen_[size_t(layer)];
  if (set.all) return {};
  const KvRef compact{store_.get(), View<const int32_t, 1>(pages_.data(), pages_.size())};
  Reading out{.selection = {.grain = Selection::Grain::Token, .kv = compact, .prefix = set.width, .tail_first = set.tail_first}};
  const bool ragged = std::any_of(set.head_first.begin(), set.head_first.end(), [](int64_t first) { return first > 0; });
  if (ragged) out.head_first = set.head_first;
  counts_.entries += committed * setup_.geometry.kv_heads;
  for (const int64_t first : set.head_first) counts_.entries_read += set.width - first + committed - set.tail_first;
  left_out_ = true;
  return out;
}

void SparseCheck::thin_channels(int layer, View<float, 2> gate) {
  const int64_t rows = gate.extent[0], width = gate.extent[1];
  if (CheckRecord* record = options_.record) {
    auto& bins = record->channels[size_t(layer)];
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < width; ++i) ++bins[bin_of(std::fabs(silu(gate(r, i))))];
    return;
  }
  const float threshold = options_.thresholds[size_t(layer)];
  if (threshold <= 0) return;
  int64_t skipped = 0;
  for (int64_t i = 0; i < width; ++i) {
    int64_t below = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const bool small = std::fabs(silu(gate(r, i))) < threshold;
      below += small;
      if (small && options_.drafts) gate(r, i) = 0;
    }
    counts_.channel_rows_below += below;
    skipped += below == rows;
    for (int64_t r = 0; below == rows && r < rows; ++r) gate(r, i) = 0;
  }
  counts_.channels += width, counts_.channels_skipped += skipped, counts_.channel_rows += rows * width;
  left_out_ |= skipped > 0;
}

void SparseCheck::thin_experts(int layer, View<int32_t, 2> ids, View<float, 2> shares) {
  if (CheckRecord* record = options_.record) {
    auto& seen = record->ratios[size_t(layer)];
    for (int64_t r = 0; r < ids.extent[0]; ++r) {
      const auto ratios = tail_ratios(shares[r]);
      seen.resize(ratios.size());
      for (size_t m = 0; m < ratios.size(); ++m) seen[m].push_back(ratios[m]);
    }
    return;
  }
  const int64_t skipped = skip_experts(*options_.experts, layer, ids, shares);
  counts_.experts += ids.size(), counts_.experts_skipped += skipped;
  left_out_ |= skipped > 0;
}

bool SparseCheck::end_pass(int rows) {
  if (CheckRecord* record = options_.record; record && !record->sets.empty()) {
    std::vector<std::vector<int32_t>> flat(size_t(record->layers));  // head after head, told apart by a stride
    for (int layer = 0; layer < record->layers; ++layer)
      for (size_t head = 0; head < record->sets[size_t(layer)].size(); ++head)
        for (const int32_t block : record->sets[size_t(layer)][head])
          flat[size_t(layer)].push_back(int32_t(head) * int32_t(most_blocks_) + block);
    if (!flat.back().empty() || !flat.front().empty()) {
      ++record->steps;
      for (int a = 0; a < record->layers; ++a)
        for (int b = 0; b < record->layers; ++b) {
          const int64_t both = shared(flat[size_t(a)], flat[size_t(b)]);
          const int64_t either = int64_t(flat[size_t(a)].size() + flat[size_t(b)].size()) - both;
          record->jaccard[size_t(a * record->layers + b)] += either > 0 ? double(both) / double(either) : 0;
        }
    }
    for (auto& layer : record->sets) layer.clear();
  }
  if (!std::exchange(left_out_, false)) return false;
  ++counts_.passes, counts_.rows += rows;
  return true;
}

// Sets that each row's own query would choose; how much of a row's set that of a later row shares (the paper's figure 2).
void SparseCheck::watch_blocks(int layer, View<const float, 3> q, int64_t len) {
  CheckRecord& record = *options_.record;
  const int rows = int(q.extent[0]);
  std::vector<std::vector<std::vector<int32_t>>> sets;
  for (int row = 0; row < rows; ++row) {
    choose(layer, q[row], len, rows);
    sets.push_back(kept_);
  }
  record.sets.resize(size_t(record.layers));
  record.sets[size_t(layer)] = sets[0];
  for (int a = 0; a < rows; ++a)
    for (int b = a + 1; b < rows && b - a < int(record.overlap.size()); ++b)
      for (size_t head = 0; head < sets[size_t(a)].size(); ++head) {
        const auto& set = sets[size_t(a)][head];
        if (set.empty()) continue;
        record.overlap[size_t(b - a)] += double(shared(set, sets[size_t(b)][head])) / double(set.size());
        record.overlap_pairs[size_t(b - a)] += 1;
      }
}

std::vector<int> SparseCheck::reuse_layers() const {
  std::vector<int> out;
  if (options_.attention)
    for (size_t layer = 0; layer < options_.anchors.size(); ++layer)
      if (!options_.anchors[layer] && setup_.window[layer] == 0) out.push_back(int(layer));
  return out;
}

size_t SparseCheck::bytes() const { return means_.bytes() + (store_ ? store_->bytes : 0); }

}  // namespace hunch
