// Arguments of the kernels of natively trained sparse attention: plain structs, as in attention_kernels.h. Filled by nsa.cpp,
// read by nsa_body.h.
#pragma once

#include "backend/cpu/attention_kernels.h"

namespace hunch {

inline constexpr int kNsaRows = 64;  // rows of an item: an owner word has a bit for each

// From a block on, what the rows of a tree read differs from path to path: the round's node x, where it stands on a path at all,
// stands at place[x], and is stored as entry first + x of `from`.
struct NsaPathPlane {
  int64_t first_block = 0;         // of blocks of kPageLen places
  int num_blocks = 0;              // 0: a chain
  const int32_t* place = nullptr;  // [nodes] -1: nowhere
  KeyPlane from;
  int64_t first = 0;
};

// Some rows of one run under one KV head, route() then read() on the same item.
struct NsaItem {
  KeyPlane keys, rows;               // entries and compressed rows
  int64_t num_row_pages = 0;         // of compressed rows that the store has
  QueryRows query;                   // at most kNsaRows; `last` is the position, `first` and `window` are not used
  const int32_t* visible = nullptr;  // [row] compressed rows that it sees
  NsaPathPlane key_paths, row_paths;
  const float* gates = nullptr;  // [row][3 * head of the group + branch]
  int64_t gate_stride = 0;
  float* out = nullptr;  // [row][head of the group][head_dim]
  int64_t out_row_stride = 0, out_head_stride = 0;

  // route(): weights of compressed rows, summed over the heads of the group, of those that the row sees. Null: not wanted.
  // [row][importance_stride], a multiple of kPageLen
  float* importance = nullptr;
  int64_t importance_stride = 0;

  // read(): blocks that somebody reads, ascending, and who: bit r of `chosen` and `near` (window) is row r.
  int block_len = 64, window = 0, most_chosen = 0;
  const int32_t* blocks = nullptr;
  const uint64_t *chosen = nullptr, *near = nullptr;
  int num_blocks = 0;

  std::byte* scratch = nullptr;  // nsa_scratch_bytes()
};

// Logits of the chosen blocks and of the window that a query row keeps.
constexpr int64_t nsa_read_stride(const NsaItem& item) {
  return (int64_t(item.most_chosen) + (item.window > 0 ? item.window / item.block_len + 2 : 0)) * item.block_len;
}
// Floats of a query row's logits: room for both halves, an odd number of blocks, so that rows do not collide in a cache.
constexpr int64_t nsa_logit_stride(const NsaItem& item) {
  const int64_t read = nsa_read_stride(item), most = item.importance_stride > read ? item.importance_stride : read;
  return ((most + 63) / 64 | 1) * 64;
}
constexpr size_t nsa_scratch_bytes(const NsaItem& item) {
  const int64_t query_rows = int64_t(item.query.num_rows) * item.query.group;
  const int paths = item.key_paths.num_blocks + item.row_paths.num_blocks;
  return size_t(query_rows) * size_t(8 * item.keys.padded_dim + 4 * nsa_logit_stride(item) + 8) + 16 * 64 * 4 + kNsaRows * 4 +
      size_t(paths) * (item.keys.chunk_bytes + 64 * 4) + 1024;
}

struct NsaKernels {
  // Indexed by DType: F32, F16, BF16.
  void (*route[kNumDTypes])(const NsaItem&) = {};
  void (*read[kNumDTypes])(const NsaItem&) = {};
};

}
