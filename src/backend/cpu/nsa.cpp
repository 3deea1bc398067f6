// All rows of a decode or verify pass are one group under each KV head: a block is read once for all that own it. Neither groups
// nor threads decide about a row's bits.
#include "backend/cpu/nsa.h"

#include <numeric>

#include "backend/cpu/attention.h"
#include "base/check.h"

namespace hunch {
namespace {

// Query rows (rows times heads of a group) of an item: their logits and sums stay in the second-level cache.
constexpr int64_t kItemQueryRows = 64;
constexpr int64_t kLeastQueryRows = 16;  // with fewer, what rows share is read too often

bool is_tree(const NsaRun& run) { return !run.tree.parents.empty(); }

int64_t newest(const NsaRun& run, int64_t first_row, int64_t num_rows) {
  int32_t most = 0;
  for (int64_t row = first_row; row < first_row + num_rows; ++row) most = std::max(most, run.last(row));
  return most;
}

template <class T>
T* take(std::byte*& at, int64_t count) {
  T* p = reinterpret_cast<T*>(at);
  at += (count * sizeof(T) + 63) / 64 * 64;
  return p;
}

}

size_t CpuNsa::compress(const CompressKvArgs& args) {
  if (args.last <= args.first) return 0;
  KvStore& from = *args.kv.store;
  const NsaShape& s = *args.nsa.shape;
  const int dim = from.head_dim, type = int(from.dtype);
  HUNCH_CHECK(args.rows.store->head_dim == dim && args.rows.store->kv_heads == from.kv_heads);
  HUNCH_CHECK(args.rows.store->dtype == from.dtype);
  // Items own whole pages: neighbours in a page share 32-bit lanes.
  const int64_t first_page = args.first / kPageLen, pages = (args.last - 1) / kPageLen + 1 - first_page;
  const size_t floats = size_t(2 * dim), list_bytes = (s.cmp_len * sizeof(int64_t) + 63) / 64 * 64;
  threads_.reserve(list_bytes + floats * sizeof(float));
  threads_.run(pages * from.kv_heads, [&](int64_t index, int worker) {
    const int head = int(index / pages);
    const int64_t page = first_page + index % pages;
    const int64_t begin = std::max(args.first, page * kPageLen), end = std::min(args.last, (page + 1) * kPageLen);
    auto* entries = reinterpret_cast<int64_t*>(threads_.scratch(worker));
    auto* k = reinterpret_cast<float*>(threads_.scratch(worker) + list_bytes);
    Compressor& compressor = compressors_[worker];
    compressor.use(args.nsa, dim);
    StoreItem store{.keys = key_plane(args.rows, args.layer, head), .k = k, .v = k + dim, .num_rows = 1};
    for (int64_t i = begin; i < end; ++i) {
      std::iota(entries, entries + s.cmp_len, i * s.cmp_stride);
      compressor.row(from, args.layer, head, args.kv.pages, {entries, size_t(s.cmp_len)}, i, k, k + dim);
      store.first_entry = i;
      stores_.store[type](store);
    }
  });
  return size_t((args.last - args.first) * s.cmp_len * from.kv_heads) * 2 * kv_row_bytes(from.dtype, dim);
}

// The rows that nodes own, rounded as stored ones are, each at its node's number.
void CpuNsa::grow_tree(const NsaAttentionArgs& args, const NsaRun& run, Tree& tree) {
  const NsaShape& s = *args.nsa.shape;
  KvStore& store = *run.kv.store;
  const auto& parents = run.tree.parents;
  const int nodes = int(parents.size()), type = int(store.dtype);
  HUNCH_CHECK(nodes <= kMaxTreeRows && run.tree.first >= 0 && run.tree.first + run.num_rows <= nodes);
  tree.kept = s.rows_of(run.tree.first_entry);
  tree.entry_place.resize(nodes), tree.row_place.resize(nodes);
  for (int x = 0; x < nodes; ++x) {
    const int32_t parent = parents[x];
    HUNCH_CHECK(parent < x && (parent >= 0 || x == 0));
    const int64_t position = x == 0 ? run.tree.first_entry : tree.entry_place[parent] + 1;
    tree.entry_place[x] = int32_t(position);
    tree.row_place[x] = s.rows_of(position + 1) > s.rows_of(position) ? int32_t(s.rows_of(position)) : -1;
  }
  for (int64_t row = 0; row < run.num_rows; ++row) HUNCH_CHECK(run.last(row) == tree.entry_place[run.tree.first + row]);

  tree.chunks = size_t(nodes + kPageLen - 1) / kPageLen;
  const KeyPlane plane = key_plane(run.kv, args.layer, 0);
  const size_t bytes = tree.chunks * plane.chunk_bytes * size_t(store.kv_heads);
  if (!tree.owned || tree.owned.bytes() < bytes) tree.owned = allocate_aligned(bytes);
  HUNCH_CHECK(tree.owned);
  while (identity_.size() < tree.chunks) identity_.push_back(int32_t(identity_.size()));
  const size_t list_bytes = (s.cmp_len * sizeof(int64_t) + 63) / 64 * 64;
  threads_.reserve(list_bytes + size_t(2 * store.head_dim) * sizeof(float));
  threads_.run(store.kv_heads, [&](int64_t head, int worker) {
    auto* entries = reinterpret_cast<int64_t*>(threads_.scratch(worker));
    auto* k = reinterpret_cast<float*>(threads_.scratch(worker) + list_bytes);
    Compressor& compressor = compressors_[worker];
    compressor.use(args.nsa, store.head_dim);
    StoreItem to{.keys = plane, .k = k, .v = k + store.head_dim, .num_rows = 1};
    to.keys.first_chunk = static_cast<std::byte*>(tree.owned.data()) + size_t(head) * tree.chunks * plane.chunk_bytes;
    to.keys.pages = identity_.data();
    for (int x = 0; x < nodes; ++x) {
      const int64_t index = tree.row_place[x];
      if (index < 0) continue;
      std::iota(entries, entries + s.cmp_len, index * s.cmp_stride);
      int64_t m = s.cmp_len - 1;  // its own token is the row's last
      for (int32_t at = x; at >= 0 && m >= 0; at = parents[at], --m) entries[m] = run.tree.first_entry + at;
      compressor.row(store, args.layer, int(head), run.kv.pages, {entries, size_t(s.cmp_len)}, index, k, k + store.head_dim);
      to.first_entry = x;
      stores_.store[type](to);
    }
  });
}

void CpuNsa::plan(const NsaAttentionArgs& args) {
  items_.clear();
  num_trees_ = 0;
  for (const NsaRun& run : args.runs) {
    if (run.num_rows == 0) continue;
    const KvStore& store = *run.kv.store;
    const int group = int(args.q.extent[1]) / store.kv_heads;
    HUNCH_CHECK(group * store.kv_heads == args.q.extent[1] && args.q.extent[2] == store.head_dim && args.scale > 0);
    HUNCH_CHECK(kernels_.read[int(store.dtype)]);  // other types are refused when a model is loaded
    // Runs of one tree stand behind each other.
    const auto same_tree = [&](const NsaRun& other) {
      return is_tree(other) && other.tree.parents.data() == run.tree.parents.data() && other.kv.pages.data == run.kv.pages.data;
    };
    if (is_tree(run) && (&run == args.runs.data() || !same_tree((&run)[-1]))) {
      if (trees_.size() == num_trees_) trees_.emplace_back();
      grow_tree(args, run, trees_[num_trees_++]);
    }
    // As many as fit; fewer where threads would be left without an item.
    int64_t most = std::clamp<int64_t>(kItemQueryRows / group, 1, kNsaRows);
    const int64_t all = run.num_rows * store.kv_heads * std::ssize(args.runs), each = (all - 1) / threads_.count() + 1;
    most = std::min(most, std::max({each, int64_t(kLeastQueryRows / group), int64_t(1)}));
    for (int head = 0; head < store.kv_heads; ++head)
      for (int64_t row = 0; row < run.num_rows; row += most)
        items_.push_back({&run, num_trees_ - (is_tree(run) ? 1 : 0), head, row, std::min(most, run.num_rows - row)});
  }
}

NsaItem CpuNsa::item_of(const NsaAttentionArgs& args, const Item& item, int32_t* visible) const {
  const NsaRun& run = *item.run;
  const NsaShape& s = *args.nsa.shape;
  const int group = int(args.q.extent[1]) / run.kv.store->kv_heads;
  const int64_t row = run.first_row + item.first_row, head = int64_t(item.kv_head) * group;
  NsaItem out;
  out.keys = key_plane(run.kv, args.layer, item.kv_head);
  out.rows = key_plane(run.rows, args.layer, item.kv_head);
  out.num_row_pages = run.rows.pages.extent[0];
  out.query = {.num_rows = int(item.num_rows), .group = group, .q = &args.q(row, head, 0), .scale = args.scale};
  out.query.row_stride = args.q.stride[0], out.query.head_stride = args.q.stride[1];
  out.query.last = &run.last(item.first_row);
  int64_t most = 0;
  for (int64_t r = 0; r < item.num_rows; ++r) {
    const int64_t seen = s.rows_of(run.last(item.first_row + r) + 1);
    if (visible) visible[r] = int32_t(seen);
    most = std::max(most, seen);
  }
  out.visible = visible;
  out.gates = &args.gates(row, 3 * head), out.gate_stride = args.gates.stride[0];
  out.out = args.out.data ? &args.out(row, head, 0) : nullptr;
  out.out_row_stride = args.out.stride[0], out.out_head_stride = args.out.stride[1];
  out.importance_stride = std::max<int64_t>(1, (most + kPageLen - 1) / kPageLen) * kPageLen;
  out.block_len = s.sel_block, out.window = s.window, out.most_chosen = s.sel_count;
  if (!is_tree(run)) return out;
  const Tree& tree = trees_[item.tree];
  out.query.parents = run.tree.parents.data();
  out.query.tree_row = run.tree.first + int(item.first_row), out.query.tree_entry = run.tree.first_entry;
  const int64_t last = newest(run, item.first_row, item.num_rows);
  out.key_paths = {.first_block = run.tree.first_entry / kPageLen, .place = tree.entry_place.data(), .from = out.keys};
  out.key_paths.num_blocks = int(last / kPageLen + 1 - out.key_paths.first_block);
  out.key_paths.first = run.tree.first_entry;
  out.row_paths = {.first_block = tree.kept / kPageLen, .place = tree.row_place.data(), .from = out.rows};
  out.row_paths.num_blocks = int(std::max<int64_t>(0, (most + kPageLen - 1) / kPageLen - out.row_paths.first_block));
  out.row_paths.from.first_chunk =
      static_cast<std::byte*>(tree.owned.data()) + size_t(item.kv_head) * tree.chunks * out.keys.chunk_bytes;
  out.row_paths.from.pages = identity_.data();
  return out;
}

void CpuNsa::run_item(const NsaAttentionArgs& args, const Item& which, std::byte* at) {
  const NsaRun& run = *which.run;
  const NsaShape& s = *args.nsa.shape;
  const int type = int(run.kv.store->dtype);
  auto* visible = take<int32_t>(at, kNsaRows);
  NsaItem item = item_of(args, which, visible);
  const int64_t rows = which.num_rows, num_blocks = newest(run, which.first_row, rows) / s.sel_block + 1;
  if (!args.given) item.importance = take<float>(at, rows * item.importance_stride);
  auto* scores = take<float>(at, num_blocks);
  auto* own_chosen = take<int32_t>(at, s.sel_count);
  auto* chosen = take<uint64_t>(at, num_blocks);
  auto* near = take<uint64_t>(at, num_blocks);
  auto* blocks = take<int32_t>(at, num_blocks);
  item.scratch = at;
  kernels_.route[type](item);

  std::fill(chosen, chosen + num_blocks, 0), std::fill(near, near + num_blocks, 0);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t position = run.last(which.first_row + row), own = position / s.sel_block;
    int32_t* list = args.chosen.data ? &args.chosen(run.first_row + which.first_row + row, which.kv_head, 0) : own_chosen;
    if (!args.given) {
      score_blocks(s, item.importance + row * item.importance_stride, visible[row], own + 1, scores);
      choose_blocks(s, position, scores, list);
    }
    for (int i = 0; i < s.sel_count; ++i)
      if (list[i] >= 0 && list[i] <= own) chosen[list[i]] |= uint64_t(1) << row;
    if (s.window == 0) continue;
    for (int64_t block = std::max<int64_t>(0, position + 1 - s.window) / s.sel_block; block <= own; ++block)
      near[block] |= uint64_t(1) << row;
  }
  const int64_t most = *std::max_element(visible, visible + rows);
  const auto bytes_of = [&](int64_t entries) {
    return size_t(entries) * 2 * kv_row_bytes(run.kv.store->dtype, item.keys.padded_dim);
  };
  bytes_ += bytes_of(most);
  if (!item.out) return;
  int count = 0;
  for (int64_t block = 0; block < num_blocks; ++block) {
    if (!(chosen[block] | near[block])) continue;
    blocks[count] = int32_t(block), chosen[count] = chosen[block], near[count] = near[block];
    ++count;
  }
  item.blocks = blocks, item.chosen = chosen, item.near = near, item.num_blocks = count;
  kernels_.read[type](item);
  bytes_ += bytes_of(int64_t(count) * s.sel_block);
}

size_t CpuNsa::attention(const NsaAttentionArgs& args) {
  plan(args);
  bytes_ = 0;
  size_t bytes = 0;
  for (const Item& item : items_) {
    const int64_t blocks = newest(*item.run, item.first_row, item.num_rows) / args.nsa.shape->sel_block + 1;
    bytes = std::max(bytes, scratch_bytes(args, item_of(args, item, nullptr), blocks));
  }
  threads_.reserve(bytes);
  threads_.run(std::ssize(items_), [&](int64_t index, int worker) { run_item(args, items_[index], threads_.scratch(worker)); });
  return bytes_;
}

}
