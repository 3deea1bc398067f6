// medusa: heads over the target's hidden state of the last committed position p, each guessing one token further (Medusa; Cai et
// al., 2024). The pending token at p + 1 is known, so head h guesses depth h + 1 behind it, position p + 2 + h. The heads know
// nothing of each other: all nodes of a depth get the same candidates.
//
// No pass and no cache: a round multiplies one row per head and request. Trees are the request's own, else the best for how often
// each rank of each head has been right.

#include "draft/medusa_heads.h"
#include "draft/rank_accuracy.h"

namespace hunch {
namespace {

class Medusa final : public Proposer {
 public:
  Medusa(const Setup& setup, MedusaHeads heads)
      : backend_(*setup.backend),
        heads_(std::move(heads)),
        vocab_(setup.target->shape().vocab_size),
        accuracies_{RankAccuracy(heads_.count(), setup.max_draft), RankAccuracy(heads_.count(), setup.max_draft)},
        drafts_(setup.max_sequences) {
    const int64_t slots = setup.max_sequences, count = heads_.count(), hidden = heads_.hidden();
    const auto words = [&](int64_t n, Memory memory) { return backend_.allocate(n * sizeof(float), memory); };
    states_ = words(slots * hidden, Memory::Device);
    x_ = words(kRows * hidden, Memory::Device), scratch_ = words(kRows * hidden, Memory::Device);
    logits_ = words(kRows * heads_.vocab(), Memory::Device);
    if (heads_.vocabulary().data)  // what they never guess stays as it is
      widened_ = backend_.constant(std::vector<float>(kRows * vocab_, -INFINITY));
    tokens_ = words(slots * count, Memory::Shared), ranked_ = words(slots * count * kRanks, Memory::Shared);
    positions_.resize(slots * count);
    rows_.reserve(kRows), open_.reserve(drafts_.size());
    made_.resize(setup.max_draft), places_.reserve(setup.max_draft);
  }

  bool passes() const override { return true; }
  size_t weight_bytes() const override { return heads_.bytes(); }
  Needs needs() const override { return {.rows = true}; }

  void open(const Sequence& sequence) override { drafts_[sequence.slot] = {}; }
  void close(Slot slot) override { drafts_[slot] = {}; }

  void follow(std::span<const TargetRows> all) override {
    for (const TargetRows& rows : all) {
      const Slot slot = rows.sequence->slot;
      backend_.copy_rows({.from = rows.hidden.slice(rows.row(rows.count - 1), 1), .to = state(slot)});
      drafts_[slot].known = rows.first_position + rows.count;
    }
  }

  void propose(std::span<const DraftTask> tasks) override {
    open_.clear();
    for (const DraftTask& task : tasks)
      if (begin(task)) open_.push_back(&drafts_[task.sequence->slot]);
    if (open_.empty()) return;
    if (backend_.asynchronous())
      return backend_.replay([this] {
        run_heads();
        for (Draft* draft : open_) fill_blind(*draft);
      });
    run_heads();
    for (Draft* draft : open_) fill(*draft);
  }

  // The tokens up to the first that was not guessed are what the heads should have said.
  void observe(const Sequence& sequence, const Verdict& verdict) override {
    Draft& draft = drafts_[sequence.slot];
    if (draft.depth == 0) return;  // somebody else drafted
    RankAccuracy& accuracy = accuracy_of(draft);
    for (int head = 0; head < draft.depth && size_t(head) <= verdict.tokens.size(); ++head) {
      const int32_t right = size_t(head) < verdict.tokens.size() ? verdict.tokens[head] : verdict.next;
      const auto ranked = candidates(sequence.slot, head);
      for (int rank = 0; rank < draft.ranks; ++rank) accuracy.record(head, rank, ranked(rank) == right);
    }
    accuracy.end_round();
    draft.depth = 0;
  }

 private:
  static constexpr int64_t kRows = 64;  // of one product, all requests together
  static constexpr int kRanks = StaticTree::kMostRanks;

  struct Draft {
    int64_t known = 0;  // positions whose hidden states were seen; state() holds the last one's; 0: none
    const DraftTask* task = nullptr;
    const StaticTree* shape = nullptr;  // null: a chain
    int depth = 0, ranks = 1;           // heads that run in this round, and candidates wanted of each
    bool noisy = false;                 // drafts share the target's noise
  };
  struct Row {
    const Draft* draft = nullptr;
    int head = 0;
  };

  View<float, 2> state(Slot slot) { return states_.view<float>(std::ssize(drafts_), heads_.hidden()).slice(slot, 1); }
  View<int32_t, 1> tokens(Slot slot) { return tokens_.view<int32_t>(std::ssize(drafts_), heads_.count())[slot]; }
  View<int32_t, 1> candidates(Slot slot, int head) {
    return ranked_.view<int32_t>(std::ssize(drafts_), heads_.count(), kRanks)[slot][head];
  }
  RankAccuracy& accuracy_of(const Draft& draft) { return accuracies_[draft.noisy]; }

  bool begin(const DraftTask& task) {
    DraftTree& tree = *task.tree;
    const DraftLimits& limits = task.limits;
    tree.size = tree.passes = 0;
    tree.in_flight = false;
    // Rules that ask for a distribution get points: the likeliest tokens, without any noise.
    tree.law = limits.want_q ? DraftLaw::Point : DraftLaw::Noise;
    Draft& draft = drafts_[task.sequence->slot];
    draft.depth = 0;
    if (limits.max_tokens <= 0 || draft.known == 0 || draft.known != task.sequence->committed_len) return false;
    draft.task = &task, draft.noisy = !limits.want_q;
    draft.depth = std::min(limits.longest(), heads_.count());
    draft.shape = limits.shape, draft.ranks = 1;
    if (limits.shape) {
      draft.depth = std::min(draft.depth, limits.shape->depth()), draft.ranks = limits.shape->ranks();
    } else if (limits.may_branch && limits.tree_top_k > 1) {
      draft.shape = &accuracy_of(draft).tree(), draft.ranks = std::min(limits.tree_top_k, kRanks);
    } else {
      // The head that makes the rest unlikely stays.
      float reach = 1;
      for (int head = 0; head < draft.depth; ++head)
        if ((reach *= accuracy_of(draft).of(head, 0)) < limits.stop_below) draft.depth = head + 1;
    }
    return true;
  }

  void run_heads() {
    rows_.clear();
    for (int head = 0; head < heads_.count(); ++head) {
      for (const Draft* draft : open_)
        if (head < draft->depth) {
          rows_.push_back({draft, head});
          if (rows_.size() == kRows) flush();
        }
      if (!heads_.one_output()) flush();
    }
    flush();
  }

  // Runs the heads of rows_, each head's rows together, and samples their candidates.
  void flush() {
    const int64_t count = std::ssize(rows_), hidden = heads_.hidden();
    if (count == 0) return;
    const auto x = x_.view<float>(kRows, hidden), scratch = scratch_.view<float>(kRows, hidden);
    for (int64_t first = 0, end = 0; first < count; first = end) {
      const int head = rows_[first].head;
      for (; end < count && rows_[end].head == head; ++end)
        backend_.copy_rows({.from = state(rows_[end].draft->task->sequence->slot), .to = x.slice(end, 1)});
      heads_.transform(backend_, head, x.slice(first, end - first), scratch.slice(first, end - first));
    }
    auto logits = logits_.view<float>(kRows, heads_.vocab()).slice(0, count);
    heads_.logits(backend_, rows_[0].head, x.slice(0, count), logits);
    if (const auto map = heads_.vocabulary(); map.data) {
      const auto wide = widened_.view<float>(kRows, vocab_).slice(0, count);
      backend_.scatter_columns({.from = logits, .map = map, .to = wide});
      logits = wide;
    }
    for (int64_t i = 0; i < count; ++i) sample(rows_[i], View<const float, 2>(logits).slice(i, 1));
    rows_.clear();
  }

  // Rule match wants the target's noise, so that both choose alike. Rules about the path (penalties) see the best candidates of
  // the heads before.
  void sample(const Row& row, View<const float, 2> logits) {
    const Draft& draft = *row.draft;
    const Sequence& sequence = *draft.task->sequence;
    int32_t* const position = &positions_[size_t(sequence.slot) * heads_.count() + row.head];
    *position = int32_t(sequence.committed_len + 1 + row.head);
    SampleArgs args{
        .logits = logits,
        .params = sequence.sampling,
        .key = sequence.noise,
        .stream = NoiseStream::Target,
        .positions = View<const int32_t, 1>(position, 1),
        .tokens = tokens(sequence.slot).slice(row.head, 1),
        .state = sequence.logit_state.get(),
        .first_row = row.head,
        .drafts = tokens(sequence.slot),
        .blind = backend_.asynchronous(),
        .ranked = View<int32_t, 2>(&candidates(sequence.slot, row.head)(0), 1, draft.ranks),
    };
    if (!draft.noisy) args.params = {.temperature = 0, .top_k = 0, .top_p = 1, .min_p = 0};
    backend_.sample(args);
  }

  void fill(Draft& draft) {
    const DraftTask& task = *draft.task;
    DraftTree& tree = *task.tree;
    const Slot slot = task.sequence->slot;
    tree.passes = 1;
    if (!draft.shape) {
      int length = 0;
      for (; length < draft.depth && candidates(slot, length)(0) >= 0; ++length)
        tree.tokens(length) = candidates(slot, length)(0);
      return tree.make_chain(length);
    }
    make_nodes(draft, [&](const StaticTree::Node& node) {
      const int32_t token = candidates(slot, node.depth - 1)(node.rank);
      if (token >= 0) tree.tokens(tree.size) = token;
      return token >= 0;
    });
  }

  // The shape's nodes that this round has, in order: take(node) says whether it can be the tree's next. Nodes that a limit cuts,
  // or that cannot, take what is behind them along.
  template <class Take>
  void make_nodes(const Draft& draft, const Take& take) {
    DraftTree& tree = *draft.task->tree;
    const StaticTree& shape = *draft.shape;
    for (int at = 0; at < shape.size() && tree.size < draft.task->limits.max_tokens; ++at) {
      const StaticTree::Node& node = shape.node(at);
      const int parent = node.parent < 0 ? -1 : made_[node.parent];
      made_[at] = kCut;
      if (parent == kCut || node.depth > draft.depth || node.rank >= draft.ranks || !take(node)) continue;
      tree.parents[tree.size] = parent;
      made_[at] = tree.size++;
    }
  }

  // On a device nobody waits for the candidates: the tree has the wanted shape, whatever stands in it. A node of a rank that no
  // token had is a guess that no target makes (-1).
  void fill_blind(Draft& draft) {
    const DraftTask& task = *draft.task;
    DraftTree& tree = *task.tree;
    const auto all = ranked_.view<const int32_t>(std::ssize(drafts_), int64_t(heads_.count()) * kRanks);
    tree.passes = 1;
    places_.clear();
    if (!draft.shape) {
      tree.make_chain(draft.depth);
      for (int head = 0; head < draft.depth; ++head) places_.push_back(int32_t(head * kRanks));
    } else {
      make_nodes(draft, [&](const StaticTree::Node& node) {
        places_.push_back(int32_t((node.depth - 1) * kRanks + node.rank));
        return true;
      });
    }
    backend_.copy_tokens({.from = all[task.sequence->slot], .to = tree.tokens.slice(0, tree.size), .index = places_});
    tree.in_flight = true;
  }

  static constexpr int kCut = -2;

  Backend& backend_;
  MedusaHeads heads_;
  int64_t vocab_;
  std::array<RankAccuracy, 2> accuracies_;  // without noise, with it
  std::vector<Draft> drafts_;               // by slot
  std::vector<Draft*> open_;
  std::vector<Row> rows_;           // that run next
  std::vector<int> made_;           // [nodes of a shape] their nodes in the tree
  std::vector<int32_t> positions_;  // [slot][head]
  std::vector<int32_t> places_;     // [nodes] of their tokens among a slot's candidates
  Buffer states_;                   // [slot][hidden]
  Buffer x_, scratch_;              // [kRows][hidden]
  Buffer logits_, widened_;         // [kRows][draft vocabulary], [kRows][vocabulary]
  Buffer tokens_, ranked_;          // [slot][head], [slot][head][kRanks]
};

Proposer::Made make_medusa(const Proposer::Setup& setup) {
  if (!setup.file) return usage_error("method medusa needs heads: --model-draft PATH, or \"model\" in --speculative-config");
  HUNCH_TRY(MedusaHeads heads, MedusaHeads::read(setup));
  return std::unique_ptr<Proposer>(std::make_unique<Medusa>(setup, std::move(heads)));
}

const Register<Proposer> medusa{"medusa", "heads over the target's last hidden state (Medusa)", make_medusa};

}
}
