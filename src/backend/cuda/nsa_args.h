// What the kernels of natively trained sparse attention read (Yuan et al. 2025, "Native Sparse Attention"; the grouping of rows
// after SSV, section 4): written by nsa.cu on the host, copied to the device with the list.
//
// Order of arithmetic, the same for a row in any company: every branch (compressed entries, selected blocks, window) is cut into
// tiles that start at fixed places; tile t belongs to chain t % kNsaChains, which folds its tiles in ascending order with an
// online softmax; four chains next to each other are folded left to right, and so are the eight results. What a row does not read
// leaves its state bit for bit as it was. So groups of any size give a row the same bits.
#pragma once

#include "backend/cuda/kv_store.h"

namespace hunch {

inline constexpr int kNsaBlocks = 8;       // of a cluster, which has a group of rows of one KV head
inline constexpr int kNsaBlockChains = 4;  // a team's each: a warp for every 16 packed rows
inline constexpr int kNsaChains = kNsaBlocks * kNsaBlockChains;
inline constexpr int kNsaTile = 64;                      // keys of a tile of compressed entries and of the window
inline constexpr int kNsaMostGrouped = 16;               // rows of a group
inline constexpr int kNsaMostPicks = 32;                 // blocks that a row selects
inline constexpr int kNsaMostBlocks = kNsaChains * 384;  // selection blocks of a context
// Rows of a tree that a team keeps beside a tile.
constexpr int nsa_beside(int head_dim) { return head_dim == 64 ? 32 : 16; }
enum NsaBranch : int32_t { kNsaCompressed = 1, kNsaSelected = 2, kNsaWindow = 4 };

// Paths of a tree that are read together: a tile that holds places behind the cache is looked at once for all of them, their rows
// beside it. A path alone has its rows in the tile, at their places.
struct NsaBundle {
  int32_t first_path = 0, end_path = 0;
  int32_t first_beside = 0, beside = 0;  // rows in `beside_rows`; 0: a path alone
};

struct NsaDevice {
  KvPlane raw, compressed;  // bf16; raw keys with their positions in
  const int32_t *raw_pages = nullptr, *compressed_pages = nullptr;
  const float* q = nullptr;      // [row][head][head_dim]
  const float* gates = nullptr;  // [row][3 head + branch], before the sigmoid
  float* out = nullptr;          // [row][head][head_dim]
  int64_t q_row = 0, q_head = 0, gates_row = 0, out_row = 0, out_head = 0;
  int32_t rows = 0, grouped = 1, group = 1, group_shift = 0, kv_heads = 1;
  const int32_t* positions = nullptr;  // [row]
  // Entries and compressed entries in the caches. What lies behind them is reached along the paths of a tree, from the root to a
  // leaf each; a chain has none. Paths on which the same compressed entries are completed are one there.
  int32_t entries = 0, compressed_entries = 0;
  int32_t num_bundles = 0, path_stride = 1, num_owned_bundles = 0;
  const int32_t *path_of_row = nullptr, *owned_path_of_row = nullptr;  // [row]
  const int32_t* path_rows = nullptr;                                  // [path][path_stride] the row at depth 0, 1, ...; -1: none
  const NsaBundle *bundles = nullptr, *owned_bundles = nullptr;        // the second of owned paths, all owned entries beside it
  const int32_t* beside_rows = nullptr;                                // of all bundles
  const int32_t* path_beside = nullptr;  // [path][path_stride] where in its bundle's list each row stands
  int32_t owner_words = 0;               // in shared memory, before rows beside tiles
  // Of the i-th that a path completes, -1: none, in `owned`: [kv_head][num_owned][K | V].
  const std::byte* owned = nullptr;
  int32_t num_owned = 0, owned_stride = 0;   // as many as any path completes
  const int32_t* path_compressed = nullptr;  // [owned path][owned_stride]
  int32_t cmp_len = 32, cmp_stride = 16, sel_count = 16, init_blocks = 1, local_blocks = 2, window = 512;
  float scale_log2 = 0;
  int32_t branches = 7;  // of the kernel
  int32_t choose = 1;    // it selects blocks before it reads them; else they are given
  int32_t shared = 0;    // one row of a group selects for all, beside every row's forced blocks
  int32_t apart = 0;     // branches go to memory one by one, not mixed
  float *compressed_out = nullptr, *selected_out = nullptr, *window_out = nullptr;  // [row][head][head_dim]
  float* pooled = nullptr;  // [row][kv_head][pooled_stride] weights of compressed entries, summed over the heads of a KV head
  int64_t pooled_stride = 0;
  int32_t* index = nullptr;  // [row][kv_head][sel_count] ascending; -1 behind the last
};

// A compressed entry to be made: of entries [index stride, + cmp_len), or of those listed (a path of a tree).
struct NsaCompressDevice {
  int32_t run = 0, index = 0;
  int32_t listed = -1;  // first of its places in `places`; -1: as they come
  int32_t to = 0;       // stored entry of the run's compressed cache; where listed, in the run's `owned`
};
struct NsaCompressLaunch {
  const NsaDevice* runs = nullptr;
  const NsaCompressDevice* jobs = nullptr;
  const int32_t* places = nullptr;
  int32_t num_jobs = 0, linear = 0, rotates = 0;
  const float *key = nullptr, *value = nullptr, *key_offset = nullptr, *inv_freq = nullptr;  // NsaLayer
  float magnitude = 1;
};

struct NsaLaunch {
  const NsaDevice* runs = nullptr;  // one a y of the grid
};

}
