// Natively trained sparse attention (Yuan et al., 2025, "Native Sparse Attention"; docs/nsa.md): compressed rows of K and V, and
// attention of three branches with gates. With s = scale q . k, a query at position t and head h of a group sharing one KV head:
//
//   compressed   softmax over the compressed rows i whose last token i stride + len - 1 <= t
//   importance   P[i] = sum over the group's heads of those weights; block j's score adds P[i] as many times as row i has whole
//                strides in block j
//   chosen       of the blocks 0 .. t / block: the first init and the last local ones, then the highest scores (of equal ones the
//                lower block), sel_count together; softmax over their tokens <= t
//   window       softmax over the tokens (t - window, t]
//   out          sum over the branches of sigmoid(gate) times the branch's sum of v; a branch that reads nothing adds nothing
//
// Compressed rows are a function of K and V as stored: unrotated keys are had by rotating back. Nothing else is kept, so that
// roll-back is a length here too.
//
// Row invariance (ARCHITECTURE.md, decision 2): a row's bits depend on its query, gates and entries only, in whatever group of
// rows it runs. In a tree (TreeRows) a node whose token completes a compressed row owns it: itself and its descendants see it.
#pragma once

#include "backend/ops/attention.h"
#include "backend/ops/kv.h"
#include "checkpoint/shape.h"

namespace hunch {

// What compression in one layer needs; fp32 values of the backend's memory.
struct NsaLayer {
  const NsaShape* shape = nullptr;
  // Weighted and mean: [kv_head][cmp_len] weights of each row. Linear: [kv_head][cmp_len * head_dim][head_dim].
  const float *key = nullptr, *value = nullptr;
  const float* key_offset = nullptr;  // [kv_head][head_dim], added to every compressed key before its rotation; null: none
  const float* inv_freq = nullptr;    // [head_dim / 2] of rope
  float magnitude = 1;                // of rope's cosines and sines
};

// Makes the compressed rows [first, last) of a sequence from its entries. `rows`: a store of the same heads, type and scales
// whose entry i is compressed row i.
struct CompressKvArgs {
  int layer = 0;
  NsaLayer nsa;
  KvRef kv, rows;
  int64_t first = 0, last = 0;
};

// Rows of one sequence in a pass. Compressed rows that end in front of tree.first_entry (in a chain: up to the last row's own)
// are in `rows`; owned ones of a tree are made by the op and stay in its scratch.
struct NsaRun {
  int64_t first_row = 0, num_rows = 0;
  KvRef kv, rows;
  View<const int32_t, 1> last;  // [num_rows] position of each row, as in AttentionRun
  TreeRows tree;
};

struct NsaAttentionArgs {
  int layer = 0;
  NsaLayer nsa;
  float scale = 1;
  View<const float, 3> q;      // [row][head][head_dim], rotated
  View<const float, 2> gates;  // [row][3 * head + branch], before the sigmoid; branches: compressed, chosen, window
  View<float, 3> out;          // [row][head][head_dim]; data null: rows choose and read nothing
  std::span<const NsaRun> runs;
  // [row][kv_head][sel_count] blocks that the row reads, ascending, -1 behind the last. Data null: nobody wants to know. With
  // `given` they are read instead of made (a layer that reuses another's choice, or rows that share one): blocks past the row's
  // own are skipped.
  View<int32_t, 3> chosen;
  bool given = false;
};

// One compressed row: entries [cmp_len] of its tokens, `index` its number. K and V rows [head_dim] as they are stored afterwards.
// The definition of all backends in whose memory the host reads.
class Compressor {
 public:
  // Before rows of a layer are made; what it keeps of a model serves all layers.
  void use(const NsaLayer&, int head_dim);
  void row(KvStore&, int layer, int kv_head, View<const int32_t, 1> pages, std::span<const int64_t> entries, int64_t index,
      float* k, float* v);

 private:
  void weighted(int kv_head, int64_t m, const float* k, const float* v);
  void linear(int kv_head, int64_t m, const float* k, const float* v);

  NsaLayer nsa_;
  int dim_ = 0;
  std::vector<float> inv_freq_;      // that turns_ are of
  std::vector<float> turns_;         // [cmp_len][dim / 2][cos, sin] of going back m tokens
  std::vector<float> start_;         // [dim / 2][cos, sin] of the first token of the row
  std::vector<float> k_, v_;         // one entry
  std::vector<double> key_, value_;  // sums
};

// scores[j] for the blocks j < num_blocks from P of `rows` compressed rows (NaN-free). `scores` is overwritten.
void score_blocks(const NsaShape&, const float* p, int64_t rows, int64_t num_blocks, float* scores);
// The chosen blocks of a query at `position` from scores of the blocks [0, position / sel_block]: ascending, -1 behind.
void choose_blocks(const NsaShape&, int64_t position, const float* scores, int32_t* chosen);

}
