// self: the target guesses its own next tokens while reading only what the policy selected (Vegas, section 3). Draft step j feeds
// the nodes of depth j of every sequence (the pending token at first) at their true positions, all in one pass, and samples their
// children. A chain has one node a depth; where branching is allowed and the choice unsure, the second token becomes a sibling,
// and both go on as rows of one pass over the same weights and selected entries.
//
// A look-up may run ahead of a chain: its guesses go along with the first pass, as rows behind the pending token's. Every row
// makes the choice that it would make in a step of its own, so guesses that equal the choices before them were right about the
// draft (not yet about the target): one pass then stands for several, and the chain is the same.

#include "draft/confidence.h"
#include "draft/proposer.h"

namespace hunch {
namespace {

class Self final : public Proposer {
 public:
  // `lookup` may be null.
  Self(const Setup& setup, std::unique_ptr<Proposer> lookup)
      : backend_(*setup.backend),
        target_(*setup.target),
        make_weights_(setup.draft_weights),
        pass_(*setup.pass),
        max_draft_(setup.max_draft),
        lookup_(std::move(lookup)),
        staged_(setup.options.self_staged),
        skip_layers_(setup.options.skip_layers),
        drafts_(setup.max_sequences) {
    const ModelShape& shape = target_.shape();
    // Most sequences draft chains; wide levels of all at once are cut to the room.
    max_rows_ = std::min(pass_.max_rows(), std::max((staged_ ? 4 : 1) * setup.max_sequences, kWidest));
    hidden_ = backend_.allocate(size_t(max_rows_) * shape.hidden * sizeof(float));
    logits_ = backend_.allocate(size_t(max_rows_) * shape.vocab_size * sizeof(float));
    ids_ = backend_.allocate(max_rows_ * sizeof(int32_t), Memory::Shared);
    chosen_ = backend_.allocate(2 * size_t(max_rows_) * sizeof(int32_t), Memory::Shared);
    leads_ = backend_.allocate(max_rows_ * sizeof(float), Memory::Shared);
    positions_.resize(max_rows_);
    if (backend_.asynchronous())
      levels_ = backend_.allocate(size_t(max_draft_ + 1) * max_rows_ * sizeof(int32_t), Memory::Shared);
    open_.reserve(setup.max_sequences), blind_.reserve(setup.max_sequences);
    segments_.reserve(setup.max_sequences);
    for (Draft& draft : drafts_) draft.reserve(max_draft_);
    if (!lookup_) return;
    guesses_.reserve(setup.max_sequences);
    guess_tree_.resize(setup.max_sequences);
    guess_ids_ = backend_.allocate(guess_tree_.size() * kMostGuessed * sizeof(int32_t), Memory::Shared);
    auto ids = guess_ids_.view<int32_t>(std::ssize(guess_tree_), kMostGuessed);
    for (size_t slot = 0; slot < guess_tree_.size(); ++slot) {
      guess_tree_[slot].parents.resize(kMostGuessed);
      guess_tree_[slot].tokens = ids[int64_t(slot)];
    }
  }

  bool uses_policy() const override { return true; }

  void open(const Sequence& sequence) override {
    if (lookup_) lookup_->open(sequence);
  }
  void propose(std::span<const DraftTask> tasks) override {
    HUNCH_CHECK(tasks.size() <= drafts_.size());
    open_.clear();
    for (const DraftTask& task : tasks) {
      task.tree->size = task.tree->passes = 0;
      task.tree->in_flight = false;
      task.tree->law = task.limits.want_q ? DraftLaw::Given : DraftLaw::Noise;
      if (task.limits.max_tokens <= 0) continue;
      Draft& draft = drafts_[task.sequence->slot];
      draft.begin(task, staged_);
      open_.push_back(&draft);
    }
    if (backend_.asynchronous()) run_blind();
    if (lookup_ && !staged_) guess();
    while (!open_.empty()) {
      if (staged_) guess();
      pass();
      std::erase_if(open_, [](const Draft* draft) { return draft->done; });
    }
  }

  void observe(const Sequence& sequence, const Verdict& verdict) override {
    if (lookup_) lookup_->observe(sequence, verdict);
    Draft& draft = drafts_[sequence.slot];
    if (draft.nodes == 0) return;  // somebody else drafted
    Confidence& confidence = confidence_of(draft);
    int row = 0;
    for (const int node : verdict.path) {
      if (node >= draft.nodes) break;  // what a grammar left no choice about was added behind
      confidence.record(draft.confidence_class(node), true);
      record_law(draft, row, draft.first_child(row) == node);
      row = node + 1;
    }
    if (const int refused = draft.first_child(row); refused >= 0) {
      confidence.record(draft.confidence_class(refused), false);
      record_law(draft, row, false);
    }
    draft.nodes = 0;
  }
  void close(Slot slot) override {
    drafts_[slot].nodes = 0;
    if (lookup_) lookup_->close(slot);
  }

 private:
  // Made at first use: a request that never drafts need not wait for them.
  const Model& weights() {
    if (!weights_ && make_weights_) weights_ = make_weights_();
    if (!weights_) weights_ = &target_;
    return *weights_;
  }
  static constexpr int kWidest = 16;       // rows of one sequence's level
  static constexpr int kMostGuessed = 15;  // rows behind the first
  static constexpr float kUnsure = 0.75f;  // a choice that the target shares less often than this gets a sibling

  // One sequence's tree in the works. Row 0 is the pending token, row x node x - 1.
  struct Draft {
    const DraftTask* task = nullptr;
    bool straight = false;         // a chain, whatever is allowed
    std::vector<int32_t> parents;  // [rows]
    std::vector<uint8_t> classes;  // [nodes] of how sure the choice was
    std::vector<float> chance;     // [rows] that the path to it is kept
    std::vector<uint8_t> laws;     // [rows that ran] of a tree of drawn nodes: how sure q was
    int first = 0, rows = 0;       // the level that runs next
    int nodes = 0, depth = 0;
    bool done = false;

    void reserve(int most) {
      parents.reserve(most + 1), classes.reserve(most);
      chance.reserve(most + 1), laws.reserve(most + 1);
    }
    void begin(const DraftTask& t, bool staged) {
      task = &t, straight = staged || !t.limits.may_branch;
      parents.assign(1, -1), classes.clear(), chance.assign(1, 1.0f), laws.clear();
      first = 0, rows = 1, nodes = 0, depth = 0, done = false;
    }
    int confidence_class(int node) const { return classes[node]; }
    bool given() const { return task->tree->law == DraftLaw::Given; }
    bool chain() const { return straight; }
    int first_child(int row) const {
      for (int node = row; node < nodes; ++node)
        if (parents[node + 1] == row) return node;
      return -1;
    }
    int deepest() const {
      const DraftLimits& limits = task->limits;
      return limits.max_depth > 0 ? std::min(limits.max_depth, limits.max_tokens) : limits.max_tokens;
    }
  };

  // Adds the rows of a look-up's chain to the next pass of every draft that is one. Along with the first pass of a selecting
  // policy, drafts with coins of their own (law Given) go without. Behind the choices of every pass (staged) they do not: a row
  // draws with the coin of its own depth (sample()) from its own q, and both are settled before the guess is compared.
  void guess() {
    guesses_.clear();
    for (Draft* draft : open_) {
      if (!draft->chain() || (draft->given() && !staged_) || draft->deepest() - draft->nodes < 2) continue;
      const Sequence* sequence = draft->task->sequence;
      guesses_.push_back({
          .sequence = sequence,
          .limits = {.max_tokens = std::min(draft->deepest() - draft->nodes - 1, kMostGuessed)},
          .tree = &guess_tree_[sequence->slot],
          .behind = {draft->task->tree->tokens.data, size_t(draft->nodes)},
      });
    }
    if (guesses_.empty()) return;
    lookup_->propose(guesses_);
    for (const DraftTask& task : guesses_) {
      Draft& draft = drafts_[task.sequence->slot];
      for (int i = 0; i < task.tree->size; ++i) draft.task->tree->tokens(draft.nodes + i) = task.tree->tokens(i);
      draft.rows += task.tree->size;
    }
  }

  // On a device, chains run blind (follower_blind.cpp).
  // What is left of open_ needs the host at every level.
  void run_blind() {
    const auto blind = [this](const Draft* draft) {
      const DraftTask& task = *draft->task;
      return draft->chain() && !(task.limits.unchecked && task.sequence->needs_drafts_here()) &&
          !(lookup_ && (staged_ || !draft->given()));
    };
    blind_.clear();
    for (Draft* draft : open_)
      if (blind(draft) && int(blind_.size()) < max_rows_) blind_.push_back(draft);
    if (blind_.empty()) return;
    std::erase_if(open_, [&](Draft* draft) { return std::ranges::find(blind_, draft) != blind_.end(); });
    std::ranges::stable_sort(blind_, [](const Draft* a, const Draft* b) { return a->deepest() > b->deepest(); });
    auto levels = levels_.view<int32_t>(max_draft_ + 1, max_rows_);  // [level][draft] tokens that go in
    for (size_t i = 0; i < blind_.size(); ++i) levels(0, i) = blind_[i]->task->sequence->pending();
    size_t open = blind_.size();
    for (int level = 0; level < blind_[0]->deepest(); ++level) {
      while (blind_[open - 1]->deepest() <= level) --open;
      // A level is a unit: the device works on it while the host prepares the next.
      backend_.replay([&] {
        segments_.clear();
        for (size_t i = 0; i < open; ++i) {
          const DraftTask& task = *blind_[i]->task;
          segments_.push_back({
              .phase = Segment::Phase::Draft,
              .sequence = task.sequence,
              .first_position = task.sequence->committed_len + level,
              .num_rows = 1,
              .policy = task.policy,
              .round_row = level,
              .check = task.check,
          });
        }
        const int64_t rows = int64_t(open);
        pass_.begin(levels[level].slice(0, rows), segments_);
        const auto logits = logits_of(rows);
        for (int64_t i = 0; i < rows; ++i) {
          Draft& draft = *blind_[i];
          if (SparseCheck* check = draft.task->check) check->end_pass(1);
          draft.depth = draft.first = level;
          View<const int32_t, 1> before(&levels(1, i), level);
          before.stride[0] = max_rows_;
          sample(draft, logits.slice(i, 1), {.tokens = levels[level + 1].slice(i, 1), .drafts = before});
        }
      });
    }
    for (size_t i = 0; i < blind_.size(); ++i) {
      View<const int32_t, 1> column(&levels(1, i), blind_[i]->deepest());
      column.stride[0] = max_rows_;
      backend_.copy_tokens({.from = column, .to = blind_[i]->task->tree->tokens.slice(0, blind_[i]->deepest())});
    }
    for (Draft* draft : blind_) {
      DraftTree& tree = *draft->task->tree;
      tree.make_chain(draft->deepest());
      tree.passes = tree.size;
      tree.in_flight = true;
      draft->first = draft->nodes = 0;  // how sure the choices were is not looked at
    }
  }

  // Of the pass that was begun.
  View<const float, 2> logits_of(int64_t rows) {
    const ModelShape& shape = target_.shape();
    auto hidden = hidden_.view<float>(rows, shape.hidden), logits = logits_.view<float>(rows, shape.vocab_size);
    weights().forward(pass_, hidden, skip_layers_);
    weights().logits(backend_, hidden, logits);
    return logits;
  }

  // One level of every open draft; of a chain with a guess, as many levels as the guess has.
  void pass() {
    auto ids = ids_.view<int32_t>(max_rows_);
    int64_t rows = 0;
    segments_.clear();
    for (Draft* draft : open_) {
      const Sequence& sequence = *draft->task->sequence;
      draft->rows = int(std::min<int64_t>(draft->rows, max_rows_ - rows - int64_t(open_.size() - segments_.size() - 1)));
      for (int row = draft->first; row < draft->first + draft->rows; ++row)
        ids(rows++) = row == 0 ? sequence.pending() : draft->task->tree->tokens(row - 1);
      segments_.push_back({
          .phase = Segment::Phase::Draft,
          .sequence = &sequence,
          .first_position = sequence.committed_len + (draft->chain() ? draft->first : 0),
          .num_rows = draft->rows,
          .policy = draft->task->policy,
          .round_row = draft->first,
          .parents = draft->chain() ? std::span<const int32_t>{} : std::span<const int32_t>(draft->parents),
          .check = draft->task->check,
      });
    }
    pass_.begin(View<const int32_t, 1>(ids).slice(0, rows), segments_);
    const auto logits = logits_of(rows);
    int64_t row = 0;
    for (Draft* draft : open_) {
      const int count = draft->rows;
      sample(*draft, logits.slice(row, count),
          {.tokens = chosen_.view<int32_t>(2, max_rows_)[0].slice(row, count),
              .seconds = chosen_.view<int32_t>(2, max_rows_)[1].slice(row, count),
              .leads = leads_.view<float>(max_rows_).slice(row, count)});
      row += count;
    }
    if (!backend_.synchronize().ok()) return open_.clear();  // the pass that verifies fails with the reason
    row = 0;
    for (Draft* draft : open_) {
      const int count = draft->rows;
      if (SparseCheck* check = draft->task->check) check->end_pass(count);
      take(*draft, row);
      row += count;
    }
  }

  // The children of a level. Rule match wants the target's own noise, so that both choose alike; rule ratio wants drafts
  // independent of every coin. Nodes of one depth share their noise: the rule looks at the children of one, which was decided
  // without it.
  struct Choices {
    View<int32_t, 1> tokens, seconds;
    View<float, 1> leads;
    View<const int32_t, 1> drafts{};  // before them; data null: the tree's
  };
  void sample(const Draft& draft, View<const float, 2> logits, const Choices& to) {
    if (!draft.given() || !draft.chain() || draft.rows == 1) return sample(draft, 0, draft.rows, logits, to);
    for (int row = 0; row < draft.rows; ++row)  // every depth has coins of its own
      sample(draft, row, 1, logits.slice(row, 1),
          {.tokens = to.tokens.slice(row, 1), .seconds = to.seconds.slice(row, 1), .leads = to.leads.slice(row, 1)});
  }
  void sample(const Draft& draft, int from, int count, View<const float, 2> logits, const Choices& to) {
    const Sequence& sequence = *draft.task->sequence;
    const DraftTree& tree = *draft.task->tree;
    const View<int32_t, 1> positions(positions_.data(), count);
    for (int i = 0; i < count; ++i)
      positions(i) = int32_t(sequence.committed_len + draft.depth + 1 + (draft.chain() ? from + i : 0));
    const bool given = draft.given();
    backend_.sample({
        .logits = logits,
        .params = sequence.sampling,
        .key = sequence.noise,
        .stream = given ? draft_stream(draft.depth + from) : NoiseStream::Target,
        .positions = positions,
        .tokens = to.tokens,
        .probs = given ? tree.q.slice(draft.first + from, count) : View<float, 2>{},
        .state = sequence.logit_state.get(),
        .first_row = draft.first + from,
        .drafts = to.drafts.data ? to.drafts : tree.tokens,
        .parents = draft.chain() ? std::span<const int32_t>{} : std::span<const int32_t>(draft.parents),
        .blind = to.drafts.data != nullptr,
        .seconds = to.seconds,
        .leads = to.leads,
    });
  }

  // A guess's rows are levels of one row, taken as long as the row before chose what this one was given.
  void take(Draft& draft, int64_t at) {
    const DraftTask& task = *draft.task;
    ++task.tree->passes;
    if (!draft.chain() || draft.rows == 1) return grow(draft, at);
    const int count = draft.rows;
    for (int i = 0; i < count && !draft.done; ++i) {
      const int node = draft.nodes;
      const int32_t next = i + 1 < count ? task.tree->tokens(node) : -1;
      draft.rows = 1;
      grow(draft, at + i);
      if (task.tree->tokens(node) != next) break;
    }
    if (task.policy) task.policy->forget_drafts(*task.sequence, draft.first);
  }

  // Adds the sampled tokens to the tree: the choices of all rows of the level, then seconds where a choice is unsure. Where nodes
  // or rows run out depends on their order, not on what was drawn.
  void grow(Draft& draft, int64_t at) {
    DraftTree& tree = *draft.task->tree;
    const DraftLimits& limits = draft.task->limits;
    const auto chosen = chosen_.view<int32_t>(2, max_rows_)[0], seconds = chosen_.view<int32_t>(2, max_rows_)[1];
    const auto leads = leads_.view<float>(max_rows_);
    const Confidence& confidence = confidence_of(draft);
    const int level = draft.first, count = draft.rows, first_node = draft.nodes;
    float best = 0;
    const auto add = [&](int row, int32_t token, float share, int sure) {
      if (draft.nodes >= limits.max_tokens || token < 0) return;
      const int node = draft.nodes++;
      tree.tokens(node) = token;
      tree.parents[node] = row - 1;
      draft.parents.push_back(row);
      draft.classes.push_back(uint8_t(sure));
      draft.chance.push_back(draft.chance[row] * share);
      best = std::max(best, draft.chance.back());
    };
    for (int i = 0; i < count; ++i) {
      const int sure = Confidence::class_of(leads(at + i));
      add(level + i, chosen(at + i), confidence.kept(sure), sure);
    }
    for (int i = 0; !draft.chain() && i < count; ++i) {
      const float kept = chance_of_first(draft, level + i, leads(at + i));
      if (draft.nodes - first_node < kWidest && kept < kUnsure && seconds(at + i) >= 0)
        add(level + i, seconds(at + i), (1 - kept) / 2, Confidence::kSecond);
    }
    tree.size = draft.nodes;
    ++draft.depth;
    draft.first = first_node + 1, draft.rows = draft.nodes - first_node;
    // A choice without a valid number ends the draft; the node that makes the rest unlikely stays.
    draft.done =
        draft.rows == 0 || draft.nodes >= limits.max_tokens || draft.depth >= draft.deepest() || best < limits.stop_below;
  }

  // That the target keeps a row's first child, for the decision about a second. Drawn children: a function of q and of what
  // earlier rounds kept, known before the draw.
  float chance_of_first(Draft& draft, int row, float lead) const {
    if (!draft.given()) return by_noise_.kept(Confidence::class_of(lead));
    draft.laws.resize(size_t(row) + 1, 0);
    draft.laws[row] = uint8_t(Confidence::class_of_law(View<const float, 2>(draft.task->tree->q)[row]));
    return by_law_.kept(draft.laws[row]);
  }

  void record_law(const Draft& draft, int row, bool kept) {
    if (size_t(row) < draft.laws.size()) by_law_.record(draft.laws[row], kept);
  }

  Confidence& confidence_of(const Draft& draft) { return draft.given() ? by_draw_ : by_noise_; }

  Backend& backend_;
  const Model& target_;
  std::function<const Model*()> make_weights_;
  const Model* weights_ = nullptr;
  Pass& pass_;
  int max_draft_, max_rows_ = 0;
  std::unique_ptr<Proposer> lookup_;
  bool staged_;
  std::vector<uint8_t> skip_layers_;
  std::vector<DraftTree> guess_tree_;  // by slot
  Buffer guess_ids_;
  std::vector<DraftTask> guesses_;
  Buffer hidden_, logits_, ids_, chosen_, leads_;
  Buffer levels_;  // [max_draft + 1][max_rows] of run_blind
  std::vector<int32_t> positions_;
  std::vector<Draft> drafts_;  // by slot
  std::vector<Draft*> open_, blind_;
  std::vector<Segment> segments_;
  Confidence by_noise_, by_draw_;  // a draft shares the noise of the target, or has its own
  Confidence by_law_;              // the first of drawn children, by the likeliest token of their law
};

Proposer::Made make_self(const Proposer::Setup& setup) {
  std::unique_ptr<Proposer> lookup;
  if (const std::string& name = setup.options.self_lookup; !name.empty()) {
    const auto* part = name == "ngram" || name == "suffix" ? Register<Proposer>::find(name) : nullptr;
    if (!part) return usage_error("unknown look-up '" + name + "' for self; known: ngram, suffix");
    HUNCH_TRY(lookup, part->make(setup));
  }
  return std::unique_ptr<Proposer>(new Self(setup, std::move(lookup)));
}

const Register<Proposer> self{"self", "the same model over selected entries of its own KV cache", make_self};

}
}
