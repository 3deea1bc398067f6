// Natively trained sparse attention on the device (nsa_args.h: order of arithmetic; nsa_kernel.cuh: the kernels). Rows of a run
// are cut into groups that share every tile they read; a row's bits are the same in any group (SSV, section 4, "exact merged
// schedule"). Lossy on request: one row of a group selects blocks for all ("shared index"), or blocks are given (a layer that
// reuses another's).
//
// Device memory: q, gates, out, chosen, entries. Host memory: everything else.
#pragma once

#include "backend/cuda/commands.h"
#include "backend/cuda/nsa_args.h"
#include "backend/ops/nsa.h"

namespace hunch {

// Rows of one sequence. Stores: bf16, heads of 64 or 128, pages of kPageLen. A chain's entries and compressed entries, its own
// too, stand in the stores.
struct NsaRows {
  KvPlane raw, compressed;
  View<const int32_t, 1> raw_pages, compressed_pages;
  View<const float, 3> q;      // [row][head][head_dim]
  View<const float, 2> gates;  // [row][3 * head + branch], before the sigmoid
  View<float, 3> out;
  std::span<const int32_t> positions;  // of rows
  // Of a tree: rows before their children, -1: the root; row r is entry positions[0] + r. Empty: a chain.
  std::span<const int32_t> parents;
  // Of a tree: which of the compressed entries in `owned_rows` ([kv_head][num_owned][K | V]) a row completes, -1: none.
  std::span<const int32_t> owned;
  const std::byte* owned_rows = nullptr;
  int num_owned = 0;
  int32_t* chosen = nullptr;  // [row][kv_head][sel_count] blocks, ascending, -1 behind the last; null: nobody wants to know
  bool given = false;         // they are read, not made
};

struct NsaGrouping {
  int rows = 0;         // of a group; 0: as many as there is room for
  bool shared = false;  // the row with the longest prefix selects for its group
  bool apart = false;   // a kernel for every branch and one that mixes them, for comparison
};

class CudaNsa {
 public:
  void enqueue(
      Commands& commands, const NsaShape& shape, float scale, std::span<const NsaRows> runs, const NsaGrouping& grouping = {}) {
    attend(commands, shape, scale, runs, grouping, nullptr);
  }

  // The ops (ops/nsa.h). What is compressed is kept until the attention that reads it: all of it is made in one launch.
  void compress(const CompressKvArgs& args) { kept_.push_back(args); }
  void enqueue(Commands& commands, const NsaAttentionArgs& args);

 private:
  void attend(Commands& commands, const NsaShape& shape, float scale, std::span<const NsaRows> runs, const NsaGrouping& grouping,
      const NsaAttentionArgs* op);  // op: what was kept is compressed first
  void add_run(Commands& commands, const NsaShape& shape, const NsaRows& run, NsaDevice& device);
  void find_paths(const NsaRows& run);
  void bundle_paths(int head_dim);
  void find_owned(const NsaShape& shape, const NsaRun& run, int index);
  void compress_kept(Commands& commands, const NsaAttentionArgs& args);
  // Of the running call; their memory stays.
  std::vector<CompressKvArgs> kept_;
  std::vector<NsaDevice> devices_;
  std::vector<NsaRows> rows_;
  std::vector<NsaCompressDevice> jobs_;
  std::vector<int32_t> owned_, places_;
  // Of a tree: NsaDevice; leaf_: [path] its last row, owned_of_path_: [path].
  std::vector<int32_t> path_of_row_, path_rows_, beside_rows_, path_beside_, owned_path_of_row_, path_owned_, leaf_,
      owned_of_path_;
  std::vector<NsaBundle> bundles_, owned_bundles_;
  size_t owned_stride_ = 0;
};

// Rows of `head_dim` that a group may have of `group` query heads each.
int most_grouped_rows(int head_dim, int group);
// What of this is not there on devices; empty: nothing.
std::string nsa_lacks(const NsaShape& shape, int heads, int kv_heads, int head_dim);
int64_t nsa_longest_context(const NsaShape& shape);  // tokens

}
