// INTERFACE 4: a proposer guesses and never decides. Its guesses are a function of committed state and the request's noise key
// alone; dropping them at any time costs nothing but speed. It never touches committed K and V.
#pragma once

#include <algorithm>

#include "base/registry.h"
#include "draft/draft_tree.h"
#include "draft/verdict.h"
#include "kv/page_pool.h"
#include "kv/sequence.h"
#include "model/model.h"
#include "sparse/policy.h"

namespace hunch {

class DrafterFile;  // checkpoint/drafter_file.h
class StaticTree;   // draft/static_tree.h
struct VocabMap;    // draft/vocab_map.h

// Settings of proposers; each reads its own. Names and defaults are vLLM's where it has them.
struct ProposerOptions {
  int ngram_min = 0, ngram_max = 0;  // ngram: lengths of the suffix looked up; both 0: 5 and 5, one 0: the other
  int suffix_depth = 24;             // suffix: deepest match + draft
  int suffix_cached_requests = 10000;
  int64_t suffix_cache_bytes = int64_t(256) << 20;
  double suffix_factor = 1.0, suffix_offset = 0.0, suffix_min_probability = 0.1;
  std::string cascade_first = "ngram";  // cascade: tried before self; staged: whose guesses its passes check
  std::string self_lookup;              // self: the look-up whose guess runs along with a chain's first pass; empty: none
  bool self_staged = false;             // self: it guesses behind every pass's choices, not along with the first pass alone
  std::vector<uint8_t> skip_layers;     // self: layers that draft passes leave out, a byte a layer; empty: none
  std::string feed_norm = "post", recycle_norm = "post";  // mtp: which side of the norms (proposers/mtp.cpp)
  int tree_top_k = 10;                                    // learned drafters: DraftLimits
};

struct DraftLimits {
  int max_tokens = 0;       // nodes; 0: propose nothing
  int max_depth = 0;        // nodes on a path, a chain's too; 0: as many as nodes
  bool want_q = false;      // the rule knows q: a sampled node must come with the distribution it was drawn from (or be a point)
  bool may_branch = false;  // the rule takes trees
  int tree_top_k = 10;      // learned drafters' trees: tokens tried behind a node, and nodes of a level that go on
  // Learned drafters: the request's own shape, whose nodes are all that is tried. It outlives the call. Null: none.
  const StaticTree* shape = nullptr;
  // A chain may end early, with the node by which the estimated chance that all of it is kept falls below this. That node stays:
  // dropping a sampled one for what it is would bend the distribution.
  float stop_below = 0;
  bool unchecked = false;  // guesses are said as they are: under every rule

  int longest() const { return max_depth > 0 ? std::min(max_depth, max_tokens) : max_tokens; }  // path
};

// One sequence's share of a call.
struct DraftTask {
  const Sequence* sequence = nullptr;  // has pages for its drafts
  SparsePolicy* policy = nullptr;      // what its draft rows read of the target's cache; null: everything
  DraftLimits limits;
  DraftTree* tree = nullptr;          // out; capacity and buffers are the caller's
  SparseCheck* check = nullptr;       // what its draft passes leave out; null: nothing
  std::span<const int32_t> behind{};  // look-ups: tokens guessed behind the sequence's, which the guess is to go on from
};

// Look-ups: the last tokens that a guess goes on from, at most `most`; `scratch` holds them where some are guessed themselves.
inline std::span<const int32_t> last_tokens(const DraftTask& task, size_t most, std::vector<int32_t>& scratch) {
  const std::span<const int32_t> tokens(task.sequence->tokens), behind = task.behind.last(std::min(task.behind.size(), most));
  const auto before = tokens.last(std::min(tokens.size(), most - behind.size()));
  if (behind.empty()) return before;
  scratch.assign(before.begin(), before.end());
  scratch.insert(scratch.end(), behind.begin(), behind.end());
  return scratch;
}

// What a proposer wants of the engine beyond the tokens.
struct Needs {
  bool rows = false;               // follow() after every pass
  std::vector<int> taps;           // layers whose output its rows must have, ascending
  std::optional<KvGeometry> kv{};  // of a store of its own, whose pages are those of the target's
  int64_t page_floats = 0;         // that it keeps beside every page
};

// Rows of one sequence in the pass that just ran which are final now: those of positions [first_position, committed_len).
struct TargetRows {
  const Sequence* sequence = nullptr;
  int64_t first_position = 0;
  int64_t first_row = 0, count = 0;  // where they lie in the views; with `path`, where the sequence's rows begin
  std::span<const int32_t> path;     // [count] ascending, counted from first_row; empty: one after the other
  View<const float, 2> hidden;       // [rows of the pass][hidden] behind the last norm
  std::span<const int> tapped;       // layers, ascending
  View<const float, 2> taps;         // [rows of the pass][tapped * hidden] behind those layers

  int64_t row(int64_t i) const { return first_row + (path.empty() ? i : path[i]); }
  View<const float, 2> layer(int layer) const {  // [rows of the pass][hidden]
    const auto out = side_by_side(std::span(&layer, 1));
    HUNCH_CHECK(out.data);
    return out;
  }
  // [rows of the pass][layers * hidden]; data null: they do not lie like that.
  View<const float, 2> side_by_side(std::span<const int> layers) const {
    const auto at = std::search(tapped.begin(), tapped.end(), layers.begin(), layers.end());
    if (at == tapped.end()) return {};
    View<const float, 2> out(
        taps.data + (at - tapped.begin()) * hidden.extent[1], hidden.extent[0], std::ssize(layers) * hidden.extent[1]);
    out.stride[0] = taps.stride[0];
    return out;
  }
};

// Where a proposer with a store of its own lives, once memory is planned.
struct Quarters {
  std::unique_ptr<KvStore> kv;
  const PagePool* pool = nullptr;
  int64_t max_rows = 0, context_len = 0;  // of a pass; of a sequence
};

class Proposer {
 public:
  using Made = Result<std::unique_ptr<Proposer>>;
  struct Setup {
    Backend* backend = nullptr;
    const Model* target = nullptr;
    std::function<const Model*()> draft_weights;  // makes the same model with cheaper weights, if it can; none: the target itself
    Pass* pass = nullptr;                         // over the target's KV store
    int max_draft = 0, max_sequences = 1;
    ProposerOptions options;
    DrafterFile* file = nullptr;              // a learned drafter's weights; null: it has none of its own
    const Checkpoint* checkpoint = nullptr;   // the target's
    const Checkpoint* draft_model = nullptr;  // draft_model: its own; stays open
    const VocabMap* draft_vocab = nullptr;    // and how its ids and the target's go together; null: they are the same
  };
  virtual ~Proposer() = default;

  virtual bool drafts() const { return true; }  // false: this is plain decoding
  // True if drafts are passes of the target over a policy's selection (the sequence then has a policy that learns in verify).
  virtual bool uses_policy() const { return false; }
  // True if guessing runs a network: it takes time.
  virtual bool passes() const { return uses_policy(); }
  // True if its drafts may be drawn from a distribution that it hands over (law Given).
  virtual bool draws() const { return uses_policy(); }
  virtual size_t weight_bytes() const { return 0; }  // of its own, that one pass reads
  virtual Needs needs() const { return {}; }
  virtual void move_in(Quarters) {}

  // A slot gets a sequence (its prompt is in tokens), or the same one again after it was preempted.
  virtual void open(const Sequence&) {}
  // Fills the tree of every task. Tasks whose limits allow nothing get an empty tree.
  virtual void propose(std::span<const DraftTask>) = 0;
  // After each verify: the committed tokens of the sequence have grown by the verdict.
  virtual void observe(const Sequence&, const Verdict&) {}
  // After every pass, where needs() says so: the rows that it made final of all sequences that use this proposer, prompt chunks
  // too. The views hold until the next pass.
  virtual void follow(std::span<const TargetRows>) {}
  // Where ops run late, before the pass is waited for: every row of verified chains, kept or not. What is listed here needs no
  // list behind the wait.
  virtual void preview(std::span<const TargetRows>) {}
  // Chunks of these sequences' prompts are at work, where ops run late: time to get ready for them.
  virtual void meanwhile(std::span<const Sequence* const>) {}
  virtual void close(Slot) {}
};

}
