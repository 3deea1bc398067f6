// SparseCheck: what passes of one request leave out ("Accelerate Speculative Decoding with Sparse Computation in Verification";
// docs/sparse-verification.md). Verify passes: LOSSY. Draft passes: what they say is checked exactly. One a request: blocks of
// the cache (section 3.1) with sets reused by layers (3.2), channels of the feed-forward block (3.3), experts (3.4); each is off
// unless asked for. It counts what it left out: labels come from that. A device wants a budget for each head.
#pragma once

#include "sparse/block_choice.h"
#include "sparse/policy.h"

namespace hunch {

// What exact passes are watched for, to calibrate (engine/verify_calibration.h) and to measure.
struct CheckRecord {
  int rows = 0;  // of a step: sets are chosen for each row's query
  // J[a][b] of layers: sums over steps of |A and B| / |A or B|, sets of all heads together.
  int layers = 0;
  std::vector<double> jaccard;
  int64_t steps = 0;
  // Pairs of rows of a step at a distance: shares of a row's set that the other has too.
  std::vector<double> overlap, overlap_pairs;
  // [layer] |silu(gate)| by size: bin i holds [2^(i/8 - 24), 2^((i+1)/8 - 24)).
  static constexpr int kBins = 256;
  std::vector<std::vector<int64_t>> channels;
  // [layer][m - 1] the least-m-left-out share of a row's weights (tail_ratios).
  std::vector<std::vector<std::vector<float>>> ratios;
  std::vector<std::vector<std::vector<int32_t>>> sets;  // of this step's row 0: [layer][kv_head]
};

// Of ThinExpertsArgs.
struct ExpertRule {
  ExpertSkip mode = ExpertSkip::Literal;
  int most = 0;
  float mass = 0.1f;
  bool renorm = false;
  std::vector<std::vector<float>> betas;  // [layer][m - 1]: medians of ratio_m
};

struct CheckOptions {
  std::optional<BlockBudget> attention;
  std::vector<uint8_t> anchors;   // [layers] 1: chooses for itself; empty: all do
  std::vector<float> thresholds;  // [layers] of channels; empty: all stay
  std::optional<ExpertRule> experts;
  // Passes that draft: what a row reads and says does not depend on rows beside it (UnionAware experts excepted). The first row
  // of a round chooses blocks for all its passes, and channels go row by row.
  bool drafts = false;
  CheckRecord* record = nullptr;  // watch only, leave nothing out
};

class SparseCheck {
 public:
  struct Setup {
    Backend* backend = nullptr;
    KvGeometry geometry;
    std::vector<int> window;  // [layers] 0: reads all; other layers always read their window
    int max_rows = 0;         // of a round
    CheckOptions options;
  };
  explicit SparseCheck(Setup);
  SparseCheck(const SparseCheck&) = delete;
  SparseCheck& operator=(const SparseCheck&) = delete;

  // A slot got the sequence: memory for its longest state; nothing is known of it yet. Without room for that all is read.
  void open(const Sequence&);

  // What rows read in a layer; called after their K and V were stored. Grain::All: all. Only the first `committed` entries are
  // final: what is behind them is the round's own, and no mean knows it. `round_row`: number of the first row in the round; above
  // 0 the rows read what the round's first row chose, and the rows before them.
  struct Reading {
    Selection selection;
    std::span<const int64_t> head_first;  // AttentionRun
  };
  Reading select(int layer, View<const float, 3> q, const KvRef& own, int64_t committed,
      int round_row = 0);  // q [rows][heads][head_dim]

  bool thins_attention() const { return options_.attention.has_value(); }
  bool thins_channels() const { return !options_.thresholds.empty() || options_.record; }
  bool thins_experts() const { return options_.experts.has_value() || options_.record; }
  // gate [rows][width] before its activation: channels whose silu is below the threshold become 0, in a check where they are in
  // every row.
  void thin_channels(int layer, View<float, 2> gate);
  void thin_experts(int layer, View<int32_t, 2> ids, View<float, 2> shares);  // as routed; left out: id -1, share 0

  // Counts since open() of the object; `rows` of passes that left something out, noted by end_pass().
  struct Counts {
    int64_t passes = 0, rows = 0, entries = 0, entries_read = 0, channels = 0, channels_skipped = 0, channel_rows = 0,
            channel_rows_below = 0, experts = 0, experts_skipped = 0;
  };
  Counts counts() const;  // on a device as of the last wait
  // Whether the pass that ends now left something out.
  bool end_pass(int rows);
  std::vector<int> reuse_layers() const;
  // Tests: the whole blocks that the last anchor chose, [kv_head]. Host memory only.
  std::vector<std::vector<int32_t>> kept() const;
  size_t bytes() const;

 private:
  // What the rows of this round read of a layer: whole blocks, `width` entries to a KV head (lists end together), and the rest.
  struct Chosen {
    bool all = true;
    int lists = 0;  // the layer whose lists these are
    int64_t width = 0, tail_first = 0;
    std::vector<int64_t> head_first;
  };
  // Of a step: how many whole blocks there are, each KV head may read, and the last ones that it always reads.
  struct Quota {
    int64_t full = 0, count = 0;
    int recent = 0;
  };
  Quota quota(int64_t len, int rows, int heads) const;
  View<float, 2> rate(int layer, View<const float, 2> q, int64_t full);
  void choose(int layer, View<const float, 2> q, int64_t len, int rows);
  void choose_set(int layer, View<const float, 3> q, const KvRef& own, int64_t len);
  void list_entries();
  void watch_blocks(int layer, View<const float, 3> q, int64_t len);
  bool chooses(int layer) const { return options_.anchors.empty() || options_.anchors[layer]; }
  View<int32_t, 2> lists(int layer, int64_t width) const;  // [kv_head][width]

  Setup setup_;
  CheckOptions& options_;
  bool in_place_;         // chosen entries are read where they lie
  bool all_read_ = true;  // of this sequence: it is short, or memory is
  BlockMeans means_;
  std::unique_ptr<KvStore> store_;  // compact: chosen entries, the rest of a block, the pass's rows
  std::vector<int32_t> pages_;
  Buffer scores_;  // [kv_head][blocks]
  Buffer lists_;   // [layer, or 1][kv_head][most_entries_]
  int64_t most_blocks_ = 0, most_entries_ = 0;
  std::vector<std::vector<int32_t>> kept_;  // a joint budget, or watched
  int64_t chosen_at_ = -1;                  // the length at the last choice
  Chosen last_;                             // what that was
  std::vector<Chosen> chosen_;              // [layers]
  std::vector<Buffer> betas_;               // [layers]
  // Shared memory: pairs of row and channel, channels, pairs of row and expert that were left out; their sum at the last pass.
  View<int64_t, 1> skipped() const { return skipped_.view<int64_t>(3); }
  Buffer skipped_;
  int64_t seen_ = 0;
  bool left_out_ = false;
  Counts counts_;
};

}
