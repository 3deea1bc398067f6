#include "engine/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "engine/defaults.h"

namespace hunch {
namespace {

// Adds the time of a scope to a counter in milliseconds.
class Stopwatch {
 public:
  explicit Stopwatch(double& total) : total_(total), start_(std::chrono::steady_clock::now()) {}
  ~Stopwatch() { total_ += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  double& total_;
  std::chrono::steady_clock::time_point start_;
};

Error numerical_error(int64_t position) {
  return Error{fmt::format(
      "numerical error: the model has no valid logits for the token at position {}; its weights may hold NaN or infinity",
      position)};
}

}  // namespace

SampledRows::SampledRows(Backend& backend, int64_t vocab, int max_rows, bool want_probs)
    : backend_(backend), vocab_(vocab), max_rows_(max_rows) {
  logits_ = backend.allocate(size_t(max_rows) * size_t(vocab) * sizeof(float));
  tokens_ = backend.allocate(size_t(max_rows) * sizeof(int32_t));
  positions_ = backend.allocate(size_t(max_rows) * sizeof(int32_t));
  if (want_probs) probs_ = backend.allocate(size_t(max_rows) * size_t(vocab) * sizeof(float));
}

void SampledRows::sample(const Sequence& sequence, int rows, int64_t first) {
  auto positions = positions_.view<int32_t>(rows);
  for (int row = 0; row < rows; ++row) positions(row) = int32_t(first + row);
  backend_.sample({.logits = logits(rows),
                   .params = sequence.sampling,
                   .key = sequence.noise,
                   .stream = NoiseStream::Target,
                   .positions = positions,
                   .tokens = tokens_.view<int32_t>(rows),
                   .probs = probs_ ? probs_.view<float>(rows, vocab_) : View<float, 2>{}});
}

Step::Step(EngineParts& parts, const RequestPlan& plan, const Request& request)
    : parts_(parts), plan_(plan), chance_(plan.noise) {
  sequence_.tokens.reserve(size_t(parts.context_len) + 1);
  sequence_.tokens = request.prompt;
  sequence_.prompt_len = int64_t(request.prompt.size());
  const int64_t room = parts.context_len - sequence_.prompt_len;
  sequence_.max_len = sequence_.prompt_len + (request.max_tokens < 0 ? room : std::min(room, request.max_tokens));
  sequence_.pages = PageTable(parts.context_len);
  sequence_.noise = plan.noise;
  sequence_.sampling = plan.sampling;
}

Step::~Step() {
  if (policy_) policy_->close(sequence_.slot);
  if (proposer_) proposer_->close(sequence_.slot);
  sequence_.pages.release_past(0, *parts_.pool);
}

Result<std::unique_ptr<Step>> Step::make(EngineParts& parts, const RequestPlan& plan, const Request& request) {
  auto step = std::unique_ptr<Step>(new Step(parts, plan, request));
  Backend& backend = *parts.backend;
  const ModelShape& shape = parts.model->shape();
  const int max_rows = plan.gamma + 1;

  HUNCH_TRY(step->rule_, Register<AcceptanceRule>::find(plan.rule)->make({}));
  const Model* draft_weights = nullptr;
  if (plan.proposer != "none") {
    const auto policy = parts.policy_setup(plan.policy, plan.gamma);
    HUNCH_TRY(step->policy_, Register<SparsePolicy>::find(plan.policy_name)->make(policy));
    if (plan.draft_weights) { HUNCH_TRY(draft_weights, parts.draft_weights(*plan.draft_weights)); }
  }
  HUNCH_TRY(step->proposer_, Register<Proposer>::find(plan.proposer)
                                 ->make({.backend = &backend,
                                         .target = parts.model.get(),
                                         .draft_weights = draft_weights,
                                         .pass = &*parts.pass,
                                         .max_draft = plan.gamma}));

  const bool want_q = step->rule_->needs_q() && step->proposer_->drafts();
  step->rows_ = std::make_unique<SampledRows>(backend, shape.vocab_size, max_rows, want_q);
  step->ids_ = backend.allocate(size_t(std::max(max_rows, parts.pass->max_rows())) * sizeof(int32_t));
  step->hidden_ = backend.allocate(size_t(parts.pass->max_rows()) * size_t(shape.hidden) * sizeof(float));
  step->tree_.parents.resize(size_t(plan.gamma));
  step->tree_.tokens = step->ids_.view<int32_t>(max_rows).slice(1, plan.gamma);
  if (want_q) {
    step->q_ = backend.allocate(size_t(plan.gamma) * size_t(shape.vocab_size) * sizeof(float));
    step->tree_.q = step->q_.view<float>(plan.gamma, shape.vocab_size);
  }
  step->verdict_.path.reserve(size_t(max_rows));
  step->verdict_.tokens.reserve(size_t(max_rows));
  step->stats.drafted_by_position.assign(size_t(step->proposer_->drafts() ? plan.gamma : 0), 0);
  step->stats.accepted_by_position = step->stats.drafted_by_position;
  return step;
}

void Step::adopt_kept() {
  const std::vector<int32_t>& kept = parts_.kept.tokens;
  // The rows that the first selection is taken from are run anew.
  const int64_t most = std::max<int64_t>(0, sequence_.prompt_len - defaults::kSelectingRows);
  int64_t common = 0;
  while (common < std::min<int64_t>(most, int64_t(kept.size())) && kept[size_t(common)] == sequence_.tokens[size_t(common)])
    ++common;
  if (common == 0) return;
  sequence_.pages = std::exchange(parts_.kept.pages, PageTable());
  sequence_.pages.release_past(common, *parts_.pool);
  sequence_.committed_len = common;
  parts_.kept.tokens.clear();
  stats.reused_tokens = common;
}

void Step::keep() {
  parts_.forget_kept();
  if (guarantee() == Guarantee::Lossy) return;
  parts_.kept.tokens.assign(sequence_.tokens.begin(), sequence_.tokens.begin() + sequence_.committed_len);
  sequence_.pages.release_past(sequence_.committed_len, *parts_.pool);
  parts_.kept.pages = std::exchange(sequence_.pages, PageTable());
}

Guarantee Step::guarantee() const {
  if (!proposer_->drafts()) return Guarantee::Stream;
  return plan_.verify ? rule_->guarantee() : policy_->unverified();
}

Result<bool> Step::prefill(const std::atomic<bool>* interrupted) {
  Stopwatch watch(stats.milliseconds.prefill);
  const Model& model = *parts_.model;
  const int64_t prompt = sequence_.prompt_len;
  const int selecting = int(std::min<int64_t>(defaults::kSelectingRows, prompt));
  if (!sequence_.pages.grow_to(prompt, *parts_.pool)) return Error{"no KV pages left for the prompt; raise --kv-memory"};
  if (policy_) policy_->open(sequence_);
  proposer_->open(sequence_);
  int64_t done = sequence_.committed_len, rows = 0;
  while (done < prompt) {
    if (interrupted && *interrupted) return false;
    rows = std::min<int64_t>(parts_.options.chunk_len, prompt - done);
    // The rows that the first selection is taken from stay in one chunk.
    if (prompt - done > rows && prompt - done - rows < selecting) rows = prompt - done - selecting;
    auto ids = ids_.view<int32_t>(rows);
    std::copy_n(sequence_.tokens.begin() + done, rows, ids.data);
    const bool last = done + rows == prompt;
    const Segment segment{.phase = Segment::Phase::Prefill,
                          .sequence = &sequence_,
                          .first_position = done,
                          .num_rows = int(rows),
                          .policy = policy_.get(),
                          .selecting_rows = last ? selecting : 0};
    parts_.pass->begin(ids, std::span(&segment, 1));
    model.forward(*parts_.pass, hidden_.view<float>(rows, model.shape().hidden));
    done += rows;
    if (parts_.options.progress) parts_.options.progress("prefill", done, prompt);
  }
  parts_.pass->take_select_ms();
  model.logits(*parts_.backend, hidden_.view<float>(rows, model.shape().hidden).slice(rows - 1, 1), rows_->logits(1));
  sequence_.committed_len = prompt;
  rows_->sample(sequence_, 1, prompt);
  const int32_t first = rows_->choice(0);
  if (first < 0) return numerical_error(prompt);
  sequence_.tokens.push_back(first);
  return true;
}

// Drafts may not pass the end of the sequence: gamma drafts and a bonus are gamma + 1 new tokens.
int Step::draft_limit() const {
  if (!proposer_->drafts()) return 0;
  return int(std::clamp<int64_t>(sequence_.max_len - sequence_.len() - 1, 0, plan_.gamma));
}

Result<Step::Emitted> Step::round() {
  const int limit = draft_limit();
  if (!sequence_.pages.grow_to(sequence_.committed_len + limit + 1, *parts_.pool))
    return Error{"no KV pages left; raise --kv-memory"};
  propose(limit);
  if (!plan_.verify && tree_.size > 0) return emit_unverified();
  if (after_drafts) after_drafts(*this);
  verify();
  return settle();
}

void Step::propose(int limit) {
  Stopwatch watch(stats.milliseconds.draft);
  const DraftTask task{.sequence = &sequence_,
                       .policy = policy_.get(),
                       .limits = {.max_tokens = limit, .want_q = rule_->needs_q()},
                       .tree = &tree_};
  if (limit == 0) tree_.size = 0;
  else proposer_->propose(std::span(&task, 1));
  // A proposer that breaks its contract costs its guesses, not the output.
  for (int node = 0; node < tree_.size; ++node)
    if (tree_.tokens(node) < 0 || tree_.tokens(node) >= parts_.model->shape().vocab_size) tree_.size = node;
}

// ONE pass over the pending token and every draft: row 0 always runs, it overwrites what a draft left at its position.
void Step::verify() {
  Stopwatch watch(stats.milliseconds.verify);
  const int rows = tree_.size + 1;
  auto ids = ids_.view<int32_t>(rows);
  ids(0) = sequence_.pending();
  const Segment segment{.phase = Segment::Phase::Verify,
                        .sequence = &sequence_,
                        .first_position = sequence_.committed_len,
                        .num_rows = rows,
                        .policy = policy_.get()};
  parts_.pass->begin(ids, std::span(&segment, 1));
  const Model& model = *parts_.model;
  auto hidden = hidden_.view<float>(rows, model.shape().hidden);
  model.forward(*parts_.pass, hidden);
  model.logits(*parts_.backend, hidden, rows_->logits(rows));
  rows_->sample(sequence_, rows, sequence_.committed_len + 1);
  rule_->accept(tree_, sequence_.committed_len + 1, *rows_, chance_, verdict_);
  const double select = parts_.pass->take_select_ms();
  stats.milliseconds.select += select;
  stats.milliseconds.verify -= select;
}

Result<Step::Emitted> Step::settle() {
  if (verdict_.next < 0) return numerical_error(sequence_.len() + int64_t(verdict_.tokens.size()));
  const Emitted emitted{sequence_.len(), int(verdict_.tokens.size())};
  const Commit commit = commit_chain(sequence_, tree_.size + 1, verdict_.tokens, verdict_.next);
  if (policy_) {
    Stopwatch watch(stats.milliseconds.select);
    policy_->committed(sequence_, commit);
  }
  proposer_->observe(sequence_, verdict_);
  if (tree_.size > 0) {
    ++stats.rounds;
    stats.drafted += tree_.size;
    stats.accepted += commit.accepted;
    for (int i = 0; i < tree_.size; ++i) ++stats.drafted_by_position[size_t(i)];
    for (int i = 0; i < commit.accepted; ++i) ++stats.accepted_by_position[size_t(i)];
  }
  if (after_commit) after_commit(*this);
  return emitted;
}

// Lossy: every draft becomes output, its K and V made by sparse attention stay, and the selection moves on.
Result<Step::Emitted> Step::emit_unverified() {
  const Emitted emitted{sequence_.len(), tree_.size};
  for (int node = 0; node < tree_.size; ++node) sequence_.tokens.push_back(tree_.tokens(node));
  sequence_.committed_len += tree_.size;
  Stopwatch watch(stats.milliseconds.select);
  HUNCH_CHECK(policy_->refresh(sequence_, {parts_.store.get(), sequence_.pages.view()}));
  return emitted;
}

}  // namespace hunch
