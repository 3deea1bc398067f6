#include "sparse/sparse_check.h"

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

}

SparseCheck::SparseCheck(Setup setup)
    : setup_(std::move(setup)), options_(setup_.options), in_place_(setup_.backend->selects_in_place()) {
  const bool joint = options_.attention && options_.attention->joint;
  HUNCH_CHECK(!setup_.backend->asynchronous() || (in_place_ && !options_.record && !joint));
  skipped_ = setup_.backend->allocate(3 * sizeof(int64_t), Memory::Shared);
  for (int64_t i = 0; i < 3; ++i) skipped()(i) = 0;
  if (options_.experts)
    for (const auto& betas : options_.experts->betas)
      betas_.push_back(betas.empty() ? Buffer() : setup_.backend->constant(betas));
  last_.head_first.resize(setup_.geometry.kv_heads);
  chosen_.resize(setup_.window.size(), last_);
}

void SparseCheck::open(const Sequence& sequence) {
  chosen_at_ = -1, all_read_ = true;
  if (!options_.attention) return;
  const BlockBudget& b = *options_.attention;
  const KvGeometry& g = setup_.geometry;
  if (sequence.max_len <= b.dense_len && !options_.record) return;
  Backend& backend = *setup_.backend;
  const int64_t blocks = sequence.max_len / b.block + 1;
  const int64_t least = std::max<int64_t>(budget_blocks(b, sequence.max_len, 1), b.sinks + recent_blocks(b, setup_.max_rows));
  const int64_t entries = (b.joint ? blocks : std::min(blocks, least)) * b.block;
  const size_t scores = size_t(g.kv_heads * blocks) * sizeof(float);
  const size_t lists = size_t((in_place_ ? g.layers : 1) * g.kv_heads * entries) * sizeof(int32_t);
  const int64_t pages = in_place_ ? 0 : (entries + b.block + setup_.max_rows + kPageLen - 1) / kPageLen;
  // Other requests' memory is not this one's to run out of.
  if (scores + lists + size_t(pages + blocks / kPageLen + 1) * backend.kv_page_bytes(g) > backend.memory_bytes()) return;
  all_read_ = false;
  means_.open(backend, g, b.block, blocks);
  if (blocks > most_blocks_) scores_ = {}, scores_ = backend.allocate(scores);
  most_blocks_ = std::max(most_blocks_, blocks);
  if (options_.record) return;
  if (entries > most_entries_) lists_ = {}, lists_ = backend.allocate(lists);
  most_entries_ = std::max(most_entries_, entries);
  if (pages <= std::ssize(pages_)) return;
  store_.reset();  // before the larger one is taken
  store_ = backend.make_kv_store(g, pages);
  HUNCH_CHECK(store_ != nullptr);
  pages_.resize(pages);
  std::iota(pages_.begin(), pages_.end(), 0);
}

// A last block that is not full counts inside the budget; it lies in the tail, which is always read.
SparseCheck::Quota SparseCheck::quota(int64_t len, int rows, int heads) const {
  const BlockBudget& b = *options_.attention;
  Quota out{.full = len / b.block};
  const int rest = len % b.block != 0;
  out.recent = int(std::min<int64_t>(recent_blocks(b, rows) - rest, out.full));
  const int64_t forced = std::min<int64_t>(b.sinks + out.recent, out.full);
  out.count = std::max({budget_blocks(b, len, heads) - rest * heads, forced * heads, int64_t(1)});
  return out;
}

View<int32_t, 2> SparseCheck::lists(int layer, int64_t width) const {
  const int64_t heads = setup_.geometry.kv_heads;
  auto* data = static_cast<int32_t*>(lists_.data()) + (in_place_ ? layer * heads * most_entries_ : 0);
  View<int32_t, 2> out(data, heads, width);
  out.stride[0] = most_entries_;
  return out;
}

View<float, 2> SparseCheck::rate(int layer, View<const float, 2> q, int64_t full) {
  const auto scores = scores_.view<float>(setup_.geometry.kv_heads, most_blocks_);
  means_.score(layer, q, options_.attention->max_of_group, full, scores);
  return scores;
}

// Makes last_ and its lists.
void SparseCheck::choose(int layer, View<const float, 2> q, int64_t len, int rows) {
  const BlockBudget& b = *options_.attention;
  const int heads = setup_.geometry.kv_heads;
  const Quota quota = this->quota(len, rows, b.joint ? heads : 1);
  chosen_at_ = len, last_.lists = layer, last_.tail_first = quota.full * b.block;
  last_.all = quota.count >= quota.full * (b.joint ? heads : 1);
  if (last_.all) return;
  const auto scores = rate(layer, q, quota.full);
  if (b.joint) {
    choose_blocks(scores, quota.full, quota.count, b.sinks, quota.recent, true, kept_);
    return list_entries();
  }
  last_.width = quota.count * b.block;
  HUNCH_CHECK(last_.width <= most_entries_);
  setup_.backend->top_k({.scores = scores,
      .n = quota.full,
      .count = quota.count,
      .sinks = int(std::min<int64_t>(b.sinks, quota.full)),
      .recent = quota.recent,
      .block = b.block,
      .index = lists(layer, last_.width)});
}

// The lists of kept_ as entries, each at the end of its line.
void SparseCheck::list_entries() {
  const int block = options_.attention->block;
  last_.width = 0;
  for (const auto& list : kept_) last_.width = std::max(last_.width, std::ssize(list) * block);
  HUNCH_CHECK(last_.width <= most_entries_);
  const auto to = lists(0, last_.width);
  for (size_t head = 0; head < kept_.size(); ++head) {
    int64_t at = last_.head_first[head] = last_.width - std::ssize(kept_[head]) * block;
    std::fill_n(&to(int64_t(head), 0), at, 0);
    for (const int32_t b : kept_[head])
      for (int e = 0; e < block; ++e) to(int64_t(head), at++) = b * block + e;
  }
}

std::vector<std::vector<int32_t>> SparseCheck::kept() const {
  const int block = options_.attention->block;
  const auto entries = lists(last_.lists, last_.width);
  std::vector<std::vector<int32_t>> out(last_.head_first.size());
  for (size_t head = 0; head < out.size(); ++head)
    for (int64_t i = last_.head_first[head]; i < last_.width; i += block) out[head].push_back(entries(int64_t(head), i) / block);
  return out;
}

// Makes chosen_[layer], and the copy of what it names.
void SparseCheck::choose_set(int layer, View<const float, 3> q, const KvRef& own, int64_t len) {
  const BlockBudget& b = *options_.attention;
  Chosen& set = chosen_[layer];
  set.all = true;
  if (all_read_ || len <= b.dense_len) return;
  if (options_.record) {
    means_.extend(layer, own, len / b.block);
    return watch_blocks(layer, q, len);
  }
  if (chooses(layer) || chosen_at_ != len) {  // drafts may leave out the layer that was to choose
    means_.extend(layer, own, len / b.block);
    choose(layer, q[0], len, options_.drafts ? 1 : int(q.extent[0]));
  }
  set = last_;
  if (set.all || in_place_) return;
  setup_.backend->gather_kv({.layer = layer,
      .from = own,
      .to = {store_.get(), View<const int32_t, 1>(pages_.data(), pages_.size())},
      .index = lists(set.lists, set.width),
      .tail_first = set.tail_first,
      .tail_last = len});
}

SparseCheck::Reading SparseCheck::select(int layer, View<const float, 3> q, const KvRef& own, int64_t committed, int round_row) {
  if (!options_.attention || setup_.window[layer] > 0) return {};
  HUNCH_CHECK(round_row == 0 || options_.drafts);
  if (round_row == 0) choose_set(layer, q, own, committed);
  const Chosen& set = chosen_[layer];
  if (set.all) return {};
  Reading out{.selection = {.grain = Selection::Grain::Token, .prefix = set.width, .tail_first = set.tail_first}};
  if (in_place_) out.selection.index = lists(set.lists, set.width);
  else out.selection.kv = {store_.get(), View<const int32_t, 1>(pages_.data(), pages_.size())};
  const bool ragged = std::ranges::any_of(set.head_first, [](int64_t first) { return first > 0; });
  if (ragged) out.head_first = set.head_first;
  counts_.entries += committed * setup_.geometry.kv_heads;
  for (const int64_t first : set.head_first) counts_.entries_read += set.width - first + committed - set.tail_first;
  left_out_ = true;
  return out;
}

void SparseCheck::thin_channels(int layer, View<float, 2> gate) {
  const int64_t rows = gate.extent[0], width = gate.extent[1];
  if (CheckRecord* record = options_.record) {
    auto& bins = record->channels[layer];
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < width; ++i) ++bins[bin_of(std::fabs(silu(gate(r, i))))];
    return;
  }
  const float threshold = options_.thresholds[layer];
  if (threshold <= 0) return;
  setup_.backend->thin_channels(
      {.gate = gate, .threshold = threshold, .by_row = options_.drafts, .below = &skipped()(0), .skipped = &skipped()(1)});
  counts_.channels += width, counts_.channel_rows += rows * width;
}

void SparseCheck::thin_experts(int layer, View<int32_t, 2> ids, View<float, 2> shares) {
  if (CheckRecord* record = options_.record) {
    auto& seen = record->ratios[layer];
    for (int64_t r = 0; r < ids.extent[0]; ++r) {
      const auto ratios = tail_ratios(shares[r]);
      seen.resize(ratios.size());
      for (size_t m = 0; m < ratios.size(); ++m) seen[m].push_back(ratios[m]);
    }
    return;
  }
  const ExpertRule& rule = *options_.experts;
  setup_.backend->thin_experts({.mode = rule.mode,
      .most = rule.most,
      .mass = rule.mass,
      .renorm = rule.renorm,
      .betas = betas_.empty() ? nullptr : static_cast<const float*>(betas_[layer].data()),
      .ids = ids,
      .shares = shares,
      .skipped = &skipped()(2)});
  counts_.experts += ids.size();
}

SparseCheck::Counts SparseCheck::counts() const {
  Counts out = counts_;
  out.channel_rows_below = skipped()(0), out.channels_skipped = skipped()(1), out.experts_skipped = skipped()(2);
  return out;
}

bool SparseCheck::end_pass(int rows) {
  if (CheckRecord* record = options_.record; record && !record->sets.empty()) {
    std::vector<std::vector<int32_t>> flat(record->layers);  // head after head, told apart by a stride
    for (int layer = 0; layer < record->layers; ++layer)
      for (size_t head = 0; head < record->sets[layer].size(); ++head)
        for (const int32_t block : record->sets[layer][head])
          flat[layer].push_back(int32_t(head) * int32_t(most_blocks_) + block);
    if (!flat.back().empty() || !flat.front().empty()) {
      ++record->steps;
      for (int a = 0; a < record->layers; ++a)
        for (int b = 0; b < record->layers; ++b) {
          const int64_t both = shared(flat[a], flat[b]);
          const int64_t either = int64_t(flat[a].size() + flat[b].size()) - both;
          record->jaccard[a * record->layers + b] += either > 0 ? double(both) / double(either) : 0;
        }
    }
    for (auto& layer : record->sets) layer.clear();
  }
  // What a device's drafts leave out is not known before somebody waits: their passes count as if there always were something.
  if (options_.drafts && setup_.backend->asynchronous()) {
    left_out_ |= thins_channels() || thins_experts();
  } else {
    const int64_t now = skipped()(1) + skipped()(2);
    left_out_ |= now != std::exchange(seen_, now);
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
  const BlockBudget& b = *options_.attention;
  const int heads = setup_.geometry.kv_heads;
  const Quota quota = this->quota(len, rows, b.joint ? heads : 1);
  for (int row = 0; row < rows; ++row) {
    choose_blocks(rate(layer, q[row], quota.full), quota.full, quota.count, b.sinks, quota.recent, b.joint, kept_);
    sets.push_back(kept_);
  }
  record.sets.resize(record.layers);
  record.sets[layer] = sets[0];
  for (int a = 0; a < rows; ++a)
    for (int b = a + 1; b < rows && b - a < int(record.overlap.size()); ++b)
      for (size_t head = 0; head < sets[a].size(); ++head) {
        const auto& set = sets[a][head];
        if (set.empty()) continue;
        record.overlap[b - a] += double(shared(set, sets[b][head])) / double(set.size());
        record.overlap_pairs[b - a] += 1;
      }
}

std::vector<int> SparseCheck::reuse_layers() const {
  std::vector<int> out;
  if (options_.attention)
    for (size_t layer = 0; layer < options_.anchors.size(); ++layer)
      if (!options_.anchors[layer] && setup_.window[layer] == 0) out.push_back(int(layer));
  return out;
}

size_t SparseCheck::bytes() const { return means_.bytes() + lists_.bytes() + (store_ ? store_->bytes : 0); }

}
