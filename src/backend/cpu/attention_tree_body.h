// What the rows of a tree read behind the prefix (ops/attention.h, TreeRows): copies of the last blocks with a row's ancestors in
// the order of their depths, so that the code for whole blocks sees a chain. Used by attention_body.h.
#pragma once

namespace hunch::HUNCH_ISA {

// Entries that a row reads: [first_of, end_of), none if first_of >= end_of.
HUNCH_SIMD int64_t end_of(const QueryRows& rows, int row) { return int64_t(rows.last[row]) + 1; }
HUNCH_SIMD int64_t first_of(const QueryRows& rows, int row) {
  const int64_t first = rows.window ? end_of(rows, row) - rows.window : 0;
  return first > rows.first ? first : rows.first;
}
HUNCH_SIMD bool reads_nothing(const QueryRows& rows, int row) { return first_of(rows, row) >= end_of(rows, row); }
// Whether a row reads some of the entries [first, end).
HUNCH_SIMD bool reads_some(const QueryRows& rows, int row, int64_t first, int64_t end) {
  return first_of(rows, row) < end && end_of(rows, row) > first && !reads_nothing(rows, row);
}
// The round's row whose child is `row`.
HUNCH_SIMD int parent_of(const QueryRows& rows, int row) { return rows.parents[rows.tree_row + row]; }

// Entry `e` of one chunk to entry `to_e` of another.
template <class Kv>
void copy_entry(const KeyPlane& keys, const std::byte* from, int e, std::byte* to, int to_e) {
  constexpr int kLineBytes = kLanes * Kv::kLaneBytes;
  const int lines = keys.padded_dim / Kv::kLaneDims;
  const std::byte* k = from + size_t(e / kLanes * lines) * kLineBytes + size_t(e % kLanes) * Kv::kLaneBytes;
  std::byte* to_k = to + size_t(to_e / kLanes * lines) * kLineBytes + size_t(to_e % kLanes) * Kv::kLaneBytes;
  for (int line = 0; line < lines; ++line, k += kLineBytes, to_k += kLineBytes) __builtin_memcpy(to_k, k, Kv::kLaneBytes);
  constexpr int kPer = Kv::kEntriesPerLine, kBytes = Kv::kElementBytes;
  const std::byte* v = from + keys.chunk_bytes / 2 + size_t(e / kPer * kPer * keys.padded_dim + e % kPer) * kBytes;
  std::byte* to_v = to + keys.chunk_bytes / 2 + size_t(to_e / kPer * kPer * keys.padded_dim + to_e % kPer) * kBytes;
  for (int d = 0; d < keys.padded_dim; ++d, v += kPer * kBytes, to_v += kPer * kBytes) __builtin_memcpy(to_v, v, kBytes);
  if constexpr (Kv::kCodes)
    for (size_t block : {size_t(0), keys.chunk_bytes / 2})
      scales_of<Kv>(to + block, keys.padded_dim)[to_e] = scales_of<Kv>(from + block, keys.padded_dim)[e];
}

// The copies of one item: made when first asked for, changed from path to path where the paths differ.
template <class Kv>
class PathBlocks {
 public:
  PathBlocks(const AttendItem& item, std::byte* memory) : keys_(item.keys), rows_(item.rows), memory_(memory) {
    if (rows_.parents) first_block_ = rows_.tree_entry / kBlockLen;
  }
  bool copies(int64_t block) const { return rows_.parents && block >= first_block_; }

  // The block as `row` and its ancestors read it. What stands behind the row's own entry is no key of it: it masks that.
  const std::byte* chunk_of(int64_t block, int row) {
    const int at = int(block - first_block_);
    std::byte* chunk = memory_ + size_t(at) * keys_.chunk_bytes;
    const int64_t block_first = block * kBlockLen, to_depth = block_first - rows_.tree_entry;  // depth of the block's entry 0
    if (!made_[at]) {
      __builtin_memcpy(chunk, chunk_at(keys_, block), keys_.chunk_bytes);
      for (int i = 0; i < kBlockLen; ++i) standing_[at][i] = int32_t(to_depth + i);  // as stored: depth x is row x
      made_[at] = true;
    }
    int64_t depth = rows_.last[row] - rows_.tree_entry;
    for (int x = rows_.tree_row + row; x >= 0; x = rows_.parents[x], --depth) {
      const int64_t i = depth - to_depth;
      if (i < 0 || i >= kBlockLen || standing_[at][i] == x) continue;
      const int64_t entry = rows_.tree_entry + x;
      copy_entry<Kv>(keys_, chunk_at(keys_, entry / kBlockLen), int(entry % kBlockLen), chunk, int(i));
      standing_[at][i] = x;
    }
    return chunk;
  }

 private:
  static_assert((kBlockLen - 1 + kMaxTreeRows - 1) / kBlockLen + 1 == kTreeBlocks);

  const KeyPlane& keys_;
  const QueryRows& rows_;
  std::byte* memory_;
  int64_t first_block_ = 0;
  bool made_[kTreeBlocks] = {};
  int32_t standing_[kTreeBlocks][kBlockLen];  // the round's row whose K and V stand there
};

}
