// Pass: a forward pass as a value. It says which rows run (a token at a position of a sequence), whether they draft or read
// everything, and which policy selects and learns. Families call attend() and never know which of these it is.
#pragma once

#include <atomic>

#include "model/index_sharing.h"
#include "sparse/sparse_check.h"

namespace hunch {

// The rows of one sequence in a pass: consecutive positions of a chain or of a prompt chunk.
struct Segment {
  enum class Phase : uint8_t {
    Prefill,  // a prompt chunk; reads all before it
    Draft,    // rows that read the policy's selection and the tail
    Verify,   // the pending token and drafts; reads all. Plain decoding is verify without drafts
  } phase = Phase::Verify;
  const Sequence* sequence = nullptr;
  int64_t first_position = 0;
  int num_rows = 0;
  SparsePolicy* policy = nullptr;  // selects for drafts, learns from the others; null: neither
  // Prefill: how many of the last rows the first selection is taken from (0: not the end of the prompt).
  int selecting_rows = 0;
  int64_t first = 0;  // entries of the sequence before it do not exist for these rows; above 0 without a policy only
  int round_row = 0;  // draft: number in the round of the first row (0: the pending token)
  // Draft and verify: parent row of every row of the round, -1 for row 0 (empty: a chain). first_position is then that of the
  // round's row 0, a row's own is that plus its depth.
  std::span<const int32_t> parents;
  const IndexSharing* sharing = nullptr;  // sparse attention; null: every row chooses for itself in every layer
  SparseCheck* check = nullptr;           // leaves something out: in verify LOSSY; null: exact, or what the policy says
};

struct PassLimits {
  int max_rows = 512, max_segments = 1;
  int64_t floats_per_row = 0;  // of scratch, beyond what a decoder needs
  // Sparse attention: compressed rows, num_pages / max_segments pages for the sequence of each slot.
  KvStore* compressed = nullptr;
};

// Hidden states of a pass that somebody wants: the residual stream behind some layers, ascending, side by side.
struct Taps {
  std::span<const int> layers;
  View<float, 2> out;  // [rows][layers * hidden]
};

class Pass {
 public:
  Pass(Backend&, const ModelShape&, KvStore&, const PassLimits&);

  // Begins a pass over `segments`; `ids` [rows] holds their tokens in order (backend memory, read when the model runs).
  void begin(View<const int32_t, 1> ids, std::span<const Segment> segments, const Taps& taps = {});

  Backend& backend() const { return backend_; }
  Arena& arena() { return arena_; }
  int64_t num_rows() const { return num_rows_; }
  int max_rows() const { return limits_.max_rows; }
  View<const int32_t, 1> ids() const { return ids_; }
  View<const int32_t, 1> positions() const { return View<const int32_t, 1>(positions_.data(), num_rows_); }

  // Rows that feed-forward blocks take together: those of a request whose check leaves channels or experts out, or all up to
  // them.
  struct Part {
    int64_t first = 0, rows = 0;
    SparseCheck* check = nullptr;
  };
  std::span<const Part> parts() const { return parts_; }

  // Store K and V, select, attend, learn: every method meets here.
  struct Attend {
    View<const float, 3> q;     // [row][head][head_dim], normed and rotated
    View<const float, 3> k, v;  // [row][kv_head][head_dim]
    View<float, 3> out;         // [row][head][head_dim]
    float scale = 1;
    const float* sinks = nullptr;  // [head] (AttentionArgs)
    NsaLayer nsa = {};             // shape null: ordinary attention
    View<const float, 2> gates;    // [row][3 heads] of sparse attention
  };
  void attend(int layer, const Attend&);
  // K and V alone, of rows whose output nobody reads: chains that no policy looks at.
  void store(int layer, View<const float, 3> k, View<const float, 3> v);

  // The residual stream behind a layer: kept if somebody listens.
  void layer_output(int layer, View<const float, 2> x);
  // Calls of layer_output() so far; any thread may ask.
  uint64_t layers_run() const { return layers_run_.load(std::memory_order_relaxed); }

  // Over draft segments and layers that a policy chose for: entries that it chose from, and chose. The steps' thread.
  int64_t entries_offered() const { return entries_offered_; }
  int64_t entries_selected() const { return entries_selected_; }
  // Time spent learning (scores excepted: they are part of attention) since the last call.
  double take_select_ms();

 private:
  // Sparse attention: the compressed rows of a sequence that a pass makes, in every layer.
  struct Compressing {
    int64_t first = 0, last = 0;
    View<const int32_t, 1> pages;
  };
  Compressing compressing(const Segment&) const;
  void attend_sparsely(int layer, const Attend&);
  // Of attend_sparsely: how the rows of a pass come by their choice of blocks.
  struct Choosing {
    std::vector<NsaRun> own, choosers, shared, reused;  // choose and read; choose only; read choices of others, of other layers
  };
  void share_choices(const Segment&, const NsaRun&);
  void settle_shared(const Segment&, const NsaRun&);
  PassInfo info_of(const Segment&) const;
  void store_own(int layer, const Segment&, int64_t first_row, View<const float, 3> k, View<const float, 3> v);
  AttentionRun run_of(int layer, const Segment&, int64_t first_row, const Attend&);
  void request_scores(int layer, const Segment&, const PassInfo&, AttentionRun&);

  Backend& backend_;
  const ModelShape& shape_;
  KvStore& store_;
  PassLimits limits_;
  Arena arena_;
  std::vector<int32_t> positions_, last_;  // [max_rows]
  std::vector<uint8_t> used_;              // [max_rows]
  Buffer lse_;
  View<const int32_t, 1> ids_;
  Taps taps_;
  std::vector<Segment> segments_;
  std::vector<Part> parts_;
  std::vector<AttentionRun> runs_;         // [segment] of the layer before; empty: none
  std::vector<int32_t> compressed_pages_;  // all there are, a stretch for each slot
  std::vector<Compressing> compressing_;
  std::vector<NsaRun> nsa_runs_;
  Choosing choosing_;
  Buffer chosen_, listed_;  // [max_rows][kv_head][sel_count], [max_rows][kv_head][shared_list_len()]
  NsaShape listed_shape_;   // the model's, with lists of that length
  std::vector<int> order_;
  int64_t num_rows_ = 0;
  double select_ms_ = 0;
  int64_t entries_offered_ = 0, entries_selected_ = 0;
  std::atomic<uint64_t> layers_run_{0};
};

}
