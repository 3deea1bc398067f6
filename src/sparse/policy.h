// INTERFACE 2: a sparse policy says what a draft row reads, and learns it from rows that read everything.
//
// A selection is made per layer in a pass that reads all (verify, or the last rows of the prompt), right after that layer's
// attention, while its keys are still in the caches: the chosen entries and the pass's own rows (the tail) are copied into a
// compact store, over which draft rows run the ordinary dense attention. Definitions: sparse/README.md; Vegas eq. 1-3.
#pragma once

#include "base/guarantee.h"
#include "kv/commit.h"

namespace hunch {

struct PolicyOptions {
  double ratio = 0.07;  // kept ratio, (0, 1]
  int min_tokens = 16;
  int sinks = 0, recent = 0;
  std::string metric = "weight", rows = "all", combine = "max", share = "kv_head";
  int spread = 16;                   // vegas: entries behind a high score, in whole blocks
  int64_t max_tokens = 0;            // > 0: entries kept at most, whatever ratio and min_tokens say (sparse_attn_max_tokens)
  int page = 16;                     // quest: entries of a page
  int block = 8;                     // vegas: aligned blocks of so many entries are kept whole, by their greatest score
  int layer_step = 1;                // scored policies: every so many layers one chooses; those behind it read the same positions
  std::vector<uint8_t> skip_layers;  // layers that drafts leave out, a byte a layer; empty: none
};

// Entries kept of `valid`: min(valid, max(min_tokens, ceil(ratio valid))), at most max_tokens where that is said. The
// ratio counts as the decimal it was written as: plain ceil of the double product is one too many at 300 x 0.07.
int64_t kept_entries(const PolicyOptions&, int64_t valid);

// Where the draft rows of a layer read and write.
struct Selection {
  enum class Grain : uint8_t {
    All,    // the sequence's own entries, all of them
    Token,  // `prefix` selected entries, then the positions from tail_first on
  } grain = Grain::All;
  // Token: a compact copy that holds just these (kv), or their lists: the sequence's own entries are read where they lie.
  KvRef kv;
  View<const int32_t, 2> index;  // [kv_heads or 1][prefix], ascending
  int64_t prefix = 0, tail_first = 0;
  int block = 1;  // the prefix is made of aligned blocks of so many entries; tail_first is a multiple of it
  // The row at `position` stands there in what is read.
  int64_t entry_of(int64_t position) const { return prefix + (position - tail_first); }
};

// The rows of one sequence in a pass that reads all, or in a draft pass.
struct PassInfo {
  const Sequence* sequence = nullptr;
  bool draft = false;
  bool prompt = false;         // the last rows of a prompt: first selection
  int64_t first_position = 0;  // of the rows that count (verify: row 0; prompt: the last rows only)
  int num_rows = 0;            // rows that count; they are the last of the run
  // Draft and verify: number in the round of the first row (0: the pending token, x: draft node x - 1). Draft steps note what the
  // verify rows of their number want to know.
  int round_row = 0;
};

// The draft rows that are about to read; for policies that select anew at every draft step.
struct DraftQueries {
  View<const float, 3> q;  // [rows][head][head_dim]; data null: nothing is about to read, select() answers as it last did
  float scale = 1;
  KvRef kv;                      // the sequence's own entries, these rows' included
  const float* sinks = nullptr;  // of the layer (AttentionArgs)
};

// What a policy wants of a pass that reads all. Rows are those of PassInfo.
struct ScoreRequest {
  ScoreMetric metric = ScoreMetric::None;
  ScoreCombine combine = ScoreCombine::Max;
  View<const uint8_t, 1> row_used;  // [num_rows]
  View<const float, 2> lse;         // [num_rows][head]; Weight
  int block = 1;                    // ScoreArgs::block; what is left of the prefix behind whole ones has no score
  View<float, 2> out;               // [kv_heads or 1][>= prefix / block], the policy's own
};

// What a layer's attention left behind.
struct Observation {
  View<const float, 3> q;       // [num_rows][head][head_dim]
  View<const float, 2> lse;     // [num_rows][head] true log-sum-exps over what the rows read
  View<const float, 2> scores;  // ScoreRequest::out; data null if none were requested
  float scale = 1;
  KvRef kv;  // the sequence's own entries, these rows' included
};

class SparsePolicy {
 public:
  struct Setup {
    Backend* backend = nullptr;
    KvGeometry geometry;
    int heads = 0;
    std::vector<int> window;  // [layers] 0: reads all and drafts run it; other layers are never selected from
    int max_sequences = 1;
    int max_draft = 0;
    PolicyOptions options;
  };
  virtual ~SparsePolicy() = default;

  // What decoding by this policy's selection alone, without verification, would mean. Drafting is always safe.
  virtual Guarantee unverified() const { return Guarantee::Lossy; }
  // Bytes of its own for one engine (compact copies, scores).
  virtual size_t bytes() const { return 0; }

  // Rows at the end of a prompt that the first selection is taken from (fewer where the prompt is shorter).
  virtual int prompt_rows() const { return 2; }

  // A slot gets a sequence: takes the memory that its longest state (Sequence::max_len) needs, or keeps what the slot has.
  virtual void open(const Sequence&) {}
  virtual ScoreRequest scores(int /*layer*/, const PassInfo&) { return {}; }
  virtual Selection select(int /*layer*/, const DraftQueries&, const PassInfo&) { return {}; }
  virtual void learn(int /*layer*/, const PassInfo&, const Observation&) {}
  // Draft rows of this round from this number on were guesses that the round does not have: what was learned of them is void.
  virtual void forget_drafts(const Sequence&, int /*first_row*/) {}
  // Unverified decoding: makes the selection anew without a pass that reads all. False where the policy needs one.
  virtual bool refresh(const Sequence&, const KvRef& /*own*/) { return false; }
  // After the sequence's own entries were closed up (a tree's accepted path lies at consecutive entries).
  virtual void committed(const Sequence&, const Commit&) {}
  virtual void close(Slot) {}

  // Tests: the compact store that a slot's draft rows read (NaN until written), nullptr before the slot's first open() and where
  // there is none; the selected positions of a layer and set.
  virtual KvStore* compact_store(Slot = 0) { return nullptr; }
  virtual View<const int32_t, 2> selected(Slot, int /*layer*/) const { return {}; }
};

// Policies that read more than they save, or choose blindly: for tests and tables, never for help texts or planners. Their
// `about` says so in its first words.
inline bool analysis_only(const Register<SparsePolicy>::Part& part) { return part.about.starts_with("analysis only"); }

}
