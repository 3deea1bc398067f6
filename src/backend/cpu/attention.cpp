// Neither the item that a row falls into nor the thread that takes it decides about its bits: every split starts afresh, and
// splits are folded in ascending order, by the item itself or whoever finishes last.
#include "backend/cpu/attention.h"

#include "base/check.h"

namespace hunch {
namespace {

// Query rows (rows times group) of an item that keeps all splits to itself: a block of K and V is read from memory once for all
// of them, and their state stays in the second-level cache.
constexpr int64_t kItemQueryRows = 64;
// Query rows that are not cut, for the same reason: a state is a KiB.
constexpr int64_t kSplitQueryRows = 272;
constexpr int64_t kStoreAlone = 16384;  // elements that the caller stores faster than a fork and join takes

// Entries that some row of the run reads: [first, last]; none if first > last.
struct Range {
  int64_t first = 0, last = 0;
};
Range entries_of(const AttentionRun& run) {
  int32_t least = run.last(0), most = run.last(run.num_rows - 1);
  if (!run.tree.parents.empty())
    for (int64_t row = 0; row < run.num_rows; ++row) least = std::min(least, run.last(row)), most = std::max(most, run.last(row));
  return {oldest_entry(run, least), most};
}

void check_tree(const AttentionRun& run) {
  const TreeRows& tree = run.tree;
  HUNCH_CHECK(tree.parents.size() <= kMaxTreeRows && tree.first >= 0 && tree.first + run.num_rows <= std::ssize(tree.parents));
  HUNCH_CHECK(run.scores.metric == ScoreMetric::None || run.scores.prefix_len <= tree.first_entry);
  for (int64_t row = 0; row < run.num_rows; ++row) {
    int64_t depth = 0;
    for (int32_t x = tree.parents[tree.first + row]; x >= 0; x = tree.parents[x]) ++depth;
    HUNCH_CHECK(run.last(row) == tree.first_entry + depth);
  }
}

ScoreSink sink_of(const ScoreArgs& scores, int kv_head, int kv_heads, int group, int64_t first_row) {
  ScoreSink sink;
  if (scores.metric == ScoreMetric::None || scores.prefix_len == 0) return sink;
  const bool shared = scores.out.extent[0] == 1;
  HUNCH_CHECK(shared || scores.out.extent[0] == kv_heads);
  sink.metric = scores.metric == ScoreMetric::Logit ? 1 : 2;
  sink.maximum = scores.combine == ScoreCombine::Max;
  sink.row_used = &scores.row_used(first_row);
  if (sink.metric == 2) {
    sink.lse = &scores.lse(first_row, kv_head * group);
    sink.lse_row_stride = scores.lse.stride[0], sink.lse_head_stride = scores.lse.stride[1];
  }
  HUNCH_CHECK(scores.block == 1 || (scores.block == kScoreBlock && scores.prefix_len % kScoreBlock == 0));
  static_assert(kScoreBlock == 8, "half a vector");
  sink.prefix_len = scores.prefix_len, sink.blocks = scores.block > 1;
  sink.mean = 1.0f / float(shared ? kv_heads * group : group);
  sink.out = &scores.out(shared ? 0 : kv_head, 0);
  return sink;
}

QueryRows query_rows(View<const float, 3> q, int64_t first_row, int64_t num_rows, int kv_head, int group, float scale) {
  QueryRows rows{.num_rows = int(num_rows), .group = group, .q = &q(first_row, kv_head * group, 0)};
  rows.row_stride = q.stride[0], rows.head_stride = q.stride[1];
  rows.scale = scale;
  return rows;
}

template <class T>
T* grow(Buffer& buffer, size_t count) {
  if (!buffer || buffer.bytes() < count * sizeof(T)) buffer = allocate_aligned(count * sizeof(T));
  HUNCH_CHECK(buffer);
  return static_cast<T*>(buffer.data());
}

}

KeyPlane key_plane(const KvRef& kv, int layer, int kv_head) {
  const auto& store = static_cast<const CpuKvStore&>(*kv.store);
  HUNCH_DCHECK(kv.pages.stride[0] == 1);
  return {store.plane(layer, kv_head), kv.pages.data, store.layout().chunk_bytes, store.head_dim, store.layout().padded_dim,
      store.scale(layer)};
}

void CpuAttention::plan(const AttentionArgs& args) {
  units_.clear();
  int64_t items = 0, partial_floats = 0;
  for (const AttentionRun& run : args.runs) {
    if (run.num_rows == 0) continue;
    const int kv_heads = run.kv.store->kv_heads, group = int(args.q.extent[1]) / kv_heads;
    HUNCH_CHECK(group * kv_heads == args.q.extent[1] && args.q.extent[2] == run.kv.store->head_dim && args.scale > 0);
    const int64_t query_rows = run.num_rows * group, rows_per_item = std::max<int64_t>(1, kItemQueryRows / group);
    const int64_t row_items = (run.num_rows + rows_per_item - 1) / rows_per_item;
    Unit unit{.run = &run};
    HUNCH_CHECK(first_allowed(run));
    if (!run.tree.parents.empty()) check_tree(run);
    const Range entries = entries_of(run);
    // Where nothing is read, one split remains: its item writes the zeros.
    unit.first_split = std::min(entries.first, std::max<int64_t>(0, entries.last)) / kSplitLen;
    unit.num_splits = entries.last / kSplitLen + 1 - unit.first_split;
    const bool by_split = query_rows <= kSplitQueryRows || kv_heads * row_items < threads_.count();
    const bool scored = by_split && run.scores.metric != ScoreMetric::None && run.scores.prefix_len > 0;
    if (scored && run.scores.out.extent[0] == 1) unit.num_heads = kv_heads;
    unit.rows_per_item = by_split ? 0 : int(rows_per_item);
    unit.num_items = by_split ? unit.num_splits : row_items;
    for (unit.first_head = 0; unit.first_head < kv_heads; unit.first_head += unit.num_heads) {
      unit.first_item = items;
      items += unit.num_items;
      unit.partial_offset = partial_floats;
      if (by_split)
        partial_floats += unit.num_heads * unit.num_splits * query_rows * state_len(int((run.kv.store->head_dim + 15) / 16 * 16));
      units_.push_back(unit);
    }
  }
  grow<float>(partials_, partial_floats);
  auto* pending = grow<std::atomic<int64_t>>(pending_, units_.size());
  for (size_t i = 0; i < units_.size(); ++i) std::construct_at(&pending[i], units_[i].num_items);
}

AttendItem CpuAttention::item_of(
    const AttentionArgs& args, const Unit& unit, int kv_head, int64_t first_row, int64_t num_rows) const {
  const AttentionRun& run = *unit.run;
  const int group = int(args.q.extent[1]) / run.kv.store->kv_heads;
  const int64_t row = run.first_row + first_row;
  AttendItem item;
  item.keys = key_plane(run.kv, args.layer, kv_head);
  item.rows = query_rows(args.q, row, num_rows, kv_head, group, args.scale);
  item.rows.last = &run.last(first_row), item.rows.window = run.window, item.rows.first = first_of_head(run, kv_head);
  if (!run.tree.parents.empty()) {
    item.rows.parents = run.tree.parents.data();
    item.rows.tree_row = run.tree.first + int(first_row), item.rows.tree_entry = run.tree.first_entry;
  }
  item.first_split = unit.first_split, item.end_split = unit.first_split + unit.num_splits;
  item.out = &args.out(row, kv_head * group, 0);
  item.out_row_stride = args.out.stride[0], item.out_head_stride = args.out.stride[1];
  if (args.lse.data) {
    item.lse = &args.lse(row, kv_head * group);
    item.lse_row_stride = args.lse.stride[0], item.lse_head_stride = args.lse.stride[1];
  }
  if (args.sinks) item.sinks = args.sinks + kv_head * group;
  if (unit.rows_per_item == 0 && unit.num_splits > 1) {  // one split: the item's result is the result
    item.partial_split_stride = num_rows * group * state_len(item.keys.padded_dim);
    item.partial = static_cast<float*>(partials_.data()) + unit.partial_offset +
        (kv_head - unit.first_head) * unit.num_splits * item.partial_split_stride;
  }
  return item;
}

void CpuAttention::run_item(
    const AttentionArgs& args, const Unit& unit, int64_t index, int, std::byte* scratch, float* row_sums) {
  const AttentionRun& run = *unit.run;
  const int type = int(run.kv.store->dtype), kv_heads = run.kv.store->kv_heads, group = int(args.q.extent[1]) / kv_heads;
  if (unit.rows_per_item) {
    const int64_t first_row = index * unit.rows_per_item, rows = std::min<int64_t>(unit.rows_per_item, run.num_rows - first_row);
    AttendItem item = item_of(args, unit, unit.first_head, first_row, rows);
    item.scratch = scratch;
    kernels_.attend[type](item);
    return;
  }
  const int64_t split = unit.first_split + index;
  ScoreSink sink;
  for (int head = unit.first_head; head < unit.first_head + unit.num_heads; ++head) {
    AttendItem item = item_of(args, unit, head, 0, run.num_rows);
    item.scratch = scratch;
    item.first_split = split, item.end_split = split + 1;
    if (item.partial) item.partial += index * item.partial_split_stride;
    item.scores = sink = sink_of(run.scores, head, kv_heads, group, 0);
    if (sink.metric && unit.num_heads > 1) {
      item.scores.row_sums = sink.row_sums = row_sums;
      item.scores.first_head = head == unit.first_head;
    }
    kernels_.attend[type](item);
  }
  if (sink.row_sums) kernels_.combine_rows(sink, int(run.num_rows), split);
  if (unit.num_splits == 1) return;
  auto& pending = static_cast<std::atomic<int64_t>*>(pending_.data())[&unit - units_.data()];
  if (pending.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  for (int head = unit.first_head; head < unit.first_head + unit.num_heads; ++head)
    kernels_.merge(item_of(args, unit, head, 0, run.num_rows));
}

size_t CpuAttention::attention(const AttentionArgs& args) {
  plan(args);
  if (units_.empty()) return 0;
  size_t scratch_bytes = 0, sum_bytes = 0, bytes = 0;
  for (const Unit& unit : units_) {
    const AttentionRun& run = *unit.run;
    const auto& store = static_cast<const CpuKvStore&>(*run.kv.store);
    const int64_t group = args.q.extent[1] / store.kv_heads, rows = unit.rows_per_item ? unit.rows_per_item : run.num_rows;
    scratch_bytes =
        std::max(scratch_bytes, attend_scratch_bytes(rows * group, store.layout().padded_dim, store.layout().chunk_bytes));
    if (unit.num_heads > 1) sum_bytes = std::max(sum_bytes, size_t(run.num_rows) * kSplitLen * sizeof(float));
    const Range entries = entries_of(run);
    const int64_t blocks = entries.first > entries.last ? 0 : entries.last / kPageLen + 1 - entries.first / kPageLen;
    bytes += size_t(unit.num_heads * blocks) * store.layout().chunk_bytes;
  }
  scratch_bytes = (scratch_bytes + 63) / 64 * 64;
  threads_.reserve(scratch_bytes + sum_bytes);
  const int64_t items = units_.back().first_item + units_.back().num_items;
  threads_.run(items, [&](int64_t index, int worker) {
    const auto after = std::ranges::upper_bound(units_, index, {}, &Unit::first_item);
    const Unit& unit = *(after - 1);
    std::byte* scratch = threads_.scratch(worker);
    run_item(args, unit, index - unit.first_item, worker, scratch, reinterpret_cast<float*>(scratch + scratch_bytes));
  });
  // Runs cut by rows, which lie in different items, collect their scores in a second look. Seldom: prompts are scored by a row or
  // two of their last chunk.
  for (const Unit& unit : units_) {
    if (unit.rows_per_item == 0 || unit.first_head != 0 || unit.run->scores.metric == ScoreMetric::None) continue;
    const AttentionRun& run = *unit.run;
    score_rows(args.layer, args.scale, args.q.slice(run.first_row, run.num_rows), run.kv, run.scores);
  }
  return bytes;
}

// Scores from q rows of a run by K alone, only rows between the first and the last used.
void CpuAttention::score_rows(int layer, float scale, View<const float, 3> q, const KvRef& kv, const ScoreArgs& scores) {
  if (scores.metric == ScoreMetric::None || scores.prefix_len == 0) return;
  int64_t first = 0, end = q.extent[0];
  while (first < end - 1 && !scores.row_used(first)) ++first;
  while (end > first + 1 && !scores.row_used(end - 1)) --end;
  const int kv_heads = kv.store->kv_heads, group = int(q.extent[1]) / kv_heads, type = int(kv.store->dtype);
  const bool shared = scores.out.extent[0] == 1 && kv_heads > 1;
  const int64_t splits = (scores.prefix_len + kSplitLen - 1) / kSplitLen;
  const size_t scratch_bytes = (attend_scratch_bytes((end - first) * group, kv.store->head_dim + 15, 0) + 63) / 64 * 64;
  threads_.reserve(scratch_bytes + (shared ? size_t(end - first) * kSplitLen * sizeof(float) : 0));
  threads_.run(shared ? splits : splits * kv_heads, [&](int64_t index, int worker) {
    std::byte* scratch = threads_.scratch(worker);
    const int64_t split = shared ? index : index % splits;
    const int first_head = shared ? 0 : int(index / splits), end_head = shared ? kv_heads : first_head + 1;
    AttendItem item;
    item.scratch = scratch;
    item.first_split = split, item.end_split = split + 1;
    for (int head = first_head; head < end_head; ++head) {
      item.keys = key_plane(kv, layer, head);
      item.rows = query_rows(q, first, end - first, head, group, scale);
      item.scores = sink_of(scores, head, kv_heads, group, first);
      if (shared) item.scores.row_sums = reinterpret_cast<float*>(scratch + scratch_bytes);
      item.scores.first_head = head == 0;
      kernels_.score[type](item);
    }
    if (shared) kernels_.combine_rows(item.scores, int(end - first), split);
  });
}

size_t CpuAttention::score_keys(const ScoreKeysArgs& args) {
  score_rows(args.layer, args.scale, args.q, args.kv, args.scores);
  if (args.scores.metric == ScoreMetric::None) return 0;
  const auto& store = static_cast<const CpuKvStore&>(*args.kv.store);
  const int64_t blocks = (args.scores.prefix_len + kPageLen - 1) / kPageLen;
  return size_t(store.kv_heads * blocks) * store.layout().chunk_bytes / 2;
}

void CpuAttention::store_kv(const StoreKvArgs& args) {
  const int64_t rows = args.k.extent[0];
  if (rows == 0) return;
  const int kv_heads = args.kv.store->kv_heads, type = int(args.kv.store->dtype);
  // Items own whole pages: neighbours in a page share 32-bit lanes.
  const int64_t first_page = args.first_entry / kPageLen, pages = (args.first_entry + rows - 1) / kPageLen + 1 - first_page;
  const auto store_page = [&](int64_t index, int) {
    const int head = int(index / pages);
    const int64_t page = first_page + index % pages;
    const int64_t begin = std::max(page * kPageLen, args.first_entry),
                  end = std::min((page + 1) * kPageLen, args.first_entry + rows);
    const int64_t row = begin - args.first_entry;
    kernels_.store[type]({.keys = key_plane(args.kv, args.layer, head),
        .k = &args.k(row, head, 0),
        .v = &args.v(row, head, 0),
        .k_stride = args.k.stride[0],
        .v_stride = args.v.stride[0],
        .num_rows = end - begin,
        .first_entry = begin});
  };
  threads_.run(pages * kv_heads, store_page, rows * kv_heads * args.k.extent[2] <= kStoreAlone);
}

}
