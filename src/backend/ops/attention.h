// Attention of rows over paged keys, with the scores that selections are made of collected in the same pass.
//
//   out[r][h] = sum_j softmax_j(scale q[r][h] . k[j]) v[j]   over the entries j in (last[r] - window, last[r]], j >= first
//
// With sinks a query head h has one more logit, sinks[h], that has no value: it takes part in the softmax (and in the
// log-sum-exp) once a row, whatever the row reads (gpt-oss; Xiao et al., 2024, learn such entries in place of finding them).
//
// Row invariance (ARCHITECTURE.md, decision 2): a row's bits depend on its query, its entries and their indices only. Keys are
// split at fixed multiples of kSplitLen entries, a split is folded block by block in ascending order (blocks of kPageLen), and
// split results are merged in a fixed order. K and V are read as stored. A masked entry is skipped or replaced after
// loading, never multiplied by zero: it may hold NaN.
#pragma once

#include <algorithm>

#include "backend/ops/kv.h"
#include "tensor/view.h"

namespace hunch {

inline constexpr int kSplitLen = 1024;  // entries; a multiple of kPageLen

enum class ScoreMetric : uint8_t {
  None,
  Logit,   // scale q.k
  Weight,  // min(1, exp(scale q.k - lse)) with a given log-sum-exp per row and head
};
enum class ScoreCombine : uint8_t { Sum, Max };

// Scores of the entries [0, prefix_len), one fp32 per entry and set, or one per block: the greatest of its entries. u[r] = mean
// of the metric over the set's query heads (the group of one KV head, or all heads if `out` has one row); score = sum or max over
// the rows with row_used of u[r].
inline constexpr int kScoreBlock = 8;
struct ScoreArgs {
  ScoreMetric metric = ScoreMetric::None;
  ScoreCombine combine = ScoreCombine::Sum;
  View<const uint8_t, 1> row_used;  // [rows of the run]
  View<const float, 2> lse;         // [rows of the run][head], Weight only
  int64_t prefix_len = 0;           // every used row reads all of [0, prefix_len): no window, prefix_len <= last + 1
  int block = 1;                    // or kScoreBlock; prefix_len is a multiple of it
  View<float, 2> out;               // [kv_heads or 1][>= count()]
  int64_t count() const { return prefix_len / block; }
};

// Rows that form a tree (or a part of one). The round's row x (0: the pending token) stands at entry first_entry + x and has
// depth d(x); what it reads behind the prefix [0, first_entry) are its ancestors and itself. Row invariance holds for trees too:
// from the block that holds first_entry on, the key of an ancestor at depth d is read as if it stood at entry first_entry + d, so
// that a row's bits are those of the same tokens in a chain. In AttentionRun, last[r] = first_entry + d then.
struct TreeRows {
  std::span<const int32_t> parents;  // [rows of the round] parent row, -1 for row 0; ascending order. Empty: a chain
  int first = 0;                     // the round's row that is the run's row 0
  int64_t first_entry = 0;           // of the round's row 0
};

// The rows of one sequence in a pass.
struct AttentionRun {
  int64_t first_row = 0, num_rows = 0;
  KvRef kv;
  View<const int32_t, 1> last;  // [num_rows] newest entry each row reads; ascending for a chain or a chunk, any order for a tree
  TreeRows tree;
  int window = 0;  // 0: everything
  // Entries before it do not exist for any row: never part of a result, whatever they hold. A row left without an entry
  // (last < first) gets zeros and the log-sum-exp -inf, or that of its sink. Above 0 neither with scores nor with a selection
  // read in place.
  int64_t first = 0;
  // The same for each KV head alone, in place of `first`; empty: none. Lists of several lengths that end together (cpu,
  // reference).
  std::span<const int64_t> head_first;
  // A selection read in place: the run's entry e is kv's entry index(set, e) for e < count = index.extent[1], and kv's entry
  // tail_first + (e - count) from there on; `last`, windows and splits speak of the run's entries. Data null: entries are kv's.
  View<const int32_t, 2> index;  // [kv_heads or 1 (shared)][count], ascending
  int64_t tail_first = 0;
  // The run's entries before it were there before this pass stored its rows, so that a device may read them ahead of its turn;
  // 0: nothing is said.
  int64_t settled = 0;
  ScoreArgs scores;
};

// The oldest entry that a row reads whose newest is `last`; past `last`: it reads nothing.
inline int64_t oldest_entry(const AttentionRun& run, int64_t last) {
  return std::max(run.first, run.window ? last + 1 - run.window : 0);
}
// Whether `first` goes with what else the run asks for.
inline bool first_allowed(const AttentionRun& run) {
  return (run.first == 0 && run.head_first.empty()) ||
      (run.first >= 0 && !run.index.data && run.scores.metric == ScoreMetric::None);
}
inline int64_t first_of_head(const AttentionRun& run, int kv_head) {
  return run.head_first.empty() ? run.first : run.head_first[kv_head];
}

struct AttentionArgs {
  int layer = 0;
  float scale = 1;
  View<const float, 3> q;        // [row][head][head_dim]
  View<float, 3> out;            // [row][head][head_dim]
  View<float, 2> lse;            // [row][head] natural log-sum-exp of scale q.k over the row's entries; data null: not wanted
  const float* sinks = nullptr;  // [head] fp32 logits, not scaled; null: none
  std::span<const AttentionRun> runs;
};

// The same scores without attention: a second look over K once the true log-sum-exps are known (first selection, metric
// `true_weight`). q and lse rows are those of the run.
struct ScoreKeysArgs {
  int layer = 0;
  float scale = 1;
  View<const float, 3> q;  // [row][head][head_dim]
  KvRef kv;
  ScoreArgs scores;
};

}
