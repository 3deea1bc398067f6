#include "engine/step.h"

#include "base/clock.h"
#include "base/failure.h"
#include "engine/approximation.h"
#include "engine/grammar_drafts.h"
#include "engine/sampling_options.h"
#include "engine/strategy.h"
#include "kv/commit.h"

namespace hunch {
namespace {

constexpr int64_t kMostLooked = 64;
constexpr size_t kCrowd = 4;  // requests of a step

// Adds the time of a scope to a counter in milliseconds.
class Stopwatch {
 public:
  explicit Stopwatch(double& total) : total_(total), start_(Clock::now()) {}
  ~Stopwatch() { total_ += ms_since(start_); }

 private:
  double& total_;
  Clock::time_point start_;
};

Error numerical_error(int64_t position) {
  return failure(
      "numerical_error: the model has no valid logits for the token at position {}; its weights may hold NaN or infinity",
      position);
}

uint64_t kv_bytes(const Backend& backend) {
  const BackendCounters& c = backend.counters();
  return c.kv_bytes + c.score_bytes + c.gather_bytes;
}

}

Step::Step(EngineParts& parts, const SchedulerLimits& limits)
    : parts_(parts),
      // Every request's verified rows, and one row of each that ends its prompt in the same step.
      rows_(*parts.backend, parts.model->shape().vocab_size, limits.verify_rows + limits.max_seqs),
      most_looked_(std::min<int64_t>(kMostLooked, limits.verify_rows)) {
  ids_ = parts.backend->allocate(limits.most_rows() * sizeof(int32_t), Memory::Shared);
  hidden_ = parts.backend->allocate(size_t(limits.most_rows()) * parts.model->shape().hidden * sizeof(float));
  taps_ = parts.backend->allocate(size_t(limits.most_rows()) * parts.taps.size() * parts.model->shape().hidden * sizeof(float));
  const size_t looked = size_t(rows_.max_rows()) * (1 + kMaxLogprobs);
  looked_ids_ = parts.backend->allocate(looked * sizeof(int32_t), Memory::Shared);
  looked_values_ = parts.backend->allocate(looked * sizeof(float), Memory::Shared);
  looks_.reserve(rows_.max_rows()), looked_for_.reserve(rows_.max_rows());
  const size_t most = limits.max_seqs;
  tasks_.reserve(most), verified_.reserve(most), asked_.reserve(most), reading_.reserve(most), segments_.reserve(most);
  followed_.reserve(most), report_.drafted.reserve(kMaxArms);
}

void Step::prepare(const Running& who) {
  if (!who.needs_probs() || !who.drafting()) return;
  rows_.prepare(AcceptanceRule::Reads::Weights);
  if (who.reads_rows()) rows_.prepare(AcceptanceRule::Reads::Rows);
}

void Step::run(const StepPlan& plan) {
  report_.drafted.clear();
  report_ = {.drafted = std::move(report_.drafted)};
  const uint64_t bytes_before = kv_bytes(*parts_.backend), experts_before = parts_.backend->counters().experts_read,
                 launched_before = parts_.backend->counters().kernel_launches;
  for (const auto& decode : plan.decodes) {
    Running& who = running(decode);
    who.emitted_first = who.sequence.len(), who.emitted_drafts = 0;
  }
  for (const auto& chunk : plan.chunks) running(chunk).emitted_first = running(chunk).sequence.len();

  doing_ = "drafting";
  propose(plan);
  doing_ = "the pass over prompts and guesses";
  forward(plan);
  doing_ = "handing out tokens";

  const uint64_t shared =
      (kv_bytes(*parts_.backend) - bytes_before) / std::max<size_t>(1, plan.decodes.size() + plan.chunks.size());
  report_.experts_read = parts_.backend->counters().experts_read - experts_before;
  report_.launched = parts_.backend->counters().kernel_launches - launched_before;
  for (const auto& decode : plan.decodes) {
    Generation& stats = running(decode).stats;
    stats.milliseconds.draft += report_.draft_ms, stats.milliseconds.verify += report_.pass_ms,
        stats.milliseconds.select += report_.select_ms;
    stats.kv_bytes_read += shared;
    ++stats.steps, stats.experts_read += report_.experts_read;
  }
  for (const auto& chunk : plan.chunks) running(chunk).stats.milliseconds.prefill += report_.pass_ms;
}

// Every proposer drafts for all the requests that chose it, in one call.
void Step::propose(const StepPlan& plan) {
  Stopwatch watch(report_.draft_ms);
  asked_.clear();
  const auto proposer_of = [](const Running& who) { return who.chosen < 0 ? nullptr : who.drafters[who.chosen].proposer; };
  for (const auto& decode : plan.decodes) {
    Running& who = running(decode);
    who.row_parents.clear();
    if (decode.drafts == 0) who.chosen = -1;
    if (who.chosen < 0 || who.looked_up) continue;
    DraftTree& tree = who.drafters[who.chosen].tree;
    tree.size = 0, tree.in_flight = false;
    // What the grammar leaves no choice about needs no drafter.
    const int most = std::min({decode.drafts, who.want_depth, who.most_depth()});
    if (who.grammar() && who.plan.verify && !who.plan.planned)
      who.looked_up = jump_ahead(*who.grammar(), *parts_.tokenizer, most, tree);
    if (who.grammar() && proposer_of(who)->passes()) who.grammar()->fill_soon(1);  // the first guess is made under a mask
  }
  bool flying = false;
  for (const auto& decode : plan.decodes) {
    Proposer* proposer = proposer_of(running(decode));
    if (!proposer || running(decode).looked_up || std::ranges::find(asked_, proposer) != asked_.end()) continue;
    asked_.push_back(proposer);
    tasks_.clear();
    bool here = false;  // masks, bad words and what is said unchecked want guesses before the pass
    for (const auto& other : plan.decodes) {
      Running& who = running(other);
      if (proposer_of(who) != proposer || who.looked_up) continue;
      here |= !who.plan.verify || who.sequence.needs_drafts_here();
      tasks_.push_back(task_of(who, size_t(who.chosen), other.drafts, std::min(who.want_depth, who.most_depth()), who.branch));
    }
    double ms = 0;
    {
      Stopwatch own(ms);
      proposer->propose(tasks_);
      if (here) land();
    }
    int steps = 0;
    bool in_flight = false;
    for (const DraftTask& task : tasks_) {
      in_flight |= task.tree->size > 0 && task.tree->in_flight;
      if (task.tree->size > 0 && !task.check)
        steps = std::max(steps, task.limits.may_branch ? task.limits.longest() : task.tree->size);
    }
    if (proposer->passes() && steps > 0) report_.drafted.push_back({proposer, ms, steps, in_flight});
    flying |= in_flight;
  }
  if (flying) parts_.backend->mark();
  for (const auto& decode : plan.decodes) {
    Running& who = running(decode);
    if (who.chosen >= 0) check_tree(who, decode.drafts);
    if (who.grammar())
      (void)who.grammar()->take_waited_ms(), who.grammar()->fill_soon(leaves_masks_out(who) ? 1 : 1 + who.tree().size);
    who.looked_up = false;
    if (after_drafts) after_drafts(who);
  }
}

// Nobody waits level by level, but once for all.
void Step::land() {
  if (std::ranges::none_of(tasks_, [](const DraftTask& task) { return task.tree->in_flight; })) return;
  const bool good = parts_.backend->synchronize().ok();  // else the pass says why
  for (const DraftTask& task : tasks_) task.tree->in_flight = false, task.tree->size *= good;
}

DraftTask Step::task_of(Running& who, size_t drafter, int drafts, int depth, bool branch) const {
  who.make_room_for_laws(who.drafters[drafter]);
  const bool branches = who.rule->takes_branches();
  const StaticTree& shape = who.plan.token_tree;
  return {
      .sequence = &who.sequence,
      .policy = who.policy,
      .limits = {.max_tokens = drafts,
          .max_depth = depth,
          .want_q = who.needs_probs(),
          .may_branch = branch,
          .tree_top_k = who.top_k,
          .shape = shape.size() > 0 && (branches || !shape.branches()) ? &shape : nullptr,
          .stop_below = who.stop_below,
          .unchecked = !who.plan.verify},
      .tree = &who.drafters[drafter].tree,
      .check = who.thinned.get(),
  };
}

void Step::look_up(std::span<Running* const> requests, size_t drafter) {
  tasks_.clear();
  for (Running* who : requests)
    tasks_.push_back(task_of(*who, drafter, who->most_drafts(), who->most_depth(), who->may_branch()));
  if (!tasks_.empty()) requests[0]->drafters[drafter].proposer->propose(tasks_);
  for (Running* who : requests) {  // of what a crowd finds, little may be wanted
    DraftTree& tree = who->drafters[drafter].tree;
    if (who->grammar() && (requests.size() <= kCrowd || tree.size == 0))
      keep_to(*who->grammar(), *parts_.tokenizer, who->most_depth(), tree);
  }
}

// A proposer that breaks its contract costs its guesses alone.
void Step::check_tree(Running& who, int granted) const {
  DraftTree& tree = who.drafters[who.chosen].tree;
  const int64_t vocab = parts_.model->shape().vocab_size;
  tree.size = std::min(tree.size, granted);
  for (int node = 0; !tree.in_flight && node < tree.size; ++node)
    if (tree.tokens(node) < 0 || tree.tokens(node) >= vocab || tree.parents[node] >= node ||
        tree.depth_of(node) > who.most_depth())
      tree.size = node;
  if (who.grammar() && who.plan.verify)
    keep_to(*who.grammar(), *parts_.tokenizer, std::min({granted, who.want_depth, who.most_depth()}), tree);
  if (!tree.branches()) return;
  who.row_parents.push_back(-1);
  for (int node = 0; node < tree.size; ++node) who.row_parents.push_back(tree.parents[node] + 1);
}

// ONE pass: the rows of every tree, then the prompt chunks. A request's row 0 always runs, it overwrites what a draft left at its
// position.
void Step::forward(const StepPlan& plan) {
  double ms = 0;
  verified_.clear();
  segments_.clear();
  int64_t rows = 0, verify_rows = 0;
  bool flying = false;
  const int64_t capacity = int64_t(ids_.bytes() / sizeof(int32_t));
  auto ids = ids_.view<int32_t>(capacity);
  for (const auto& decode : plan.decodes) {
    Running& who = running(decode);
    if (!who.plan.verify && who.tree().size > 0) {
      emit_unverified(who);
      continue;
    }
    HUNCH_CHECK(rows + who.tree().size + 1 <= capacity);
    ids(rows++) = who.sequence.pending();
    const DraftTree& tree = who.tree();
    flying |= tree.size > 0 && tree.in_flight;
    if (tree.in_flight) {
      parts_.backend->copy_tokens({.from = tree.tokens.slice(0, tree.size), .to = ids.slice(rows, tree.size)});
      rows += tree.size;
    } else {
      for (int node = 0; node < tree.size; ++node) ids(rows++) = tree.tokens(node);
    }
    segments_.push_back({
        .phase = Segment::Phase::Verify,
        .sequence = &who.sequence,
        .first_position = who.sequence.committed_len,
        .num_rows = who.tree().size + 1,
        .policy = who.learns ? who.policy : nullptr,
        .parents = who.row_parents,
        .sharing = who.sharing,
        .check = who.check.get(),
    });
    verified_.push_back(&who);
    if (who.plan.approximation.any())
      count_choices(who.sharing, parts_.model->shape().layers, who.tree().size + 1, who.stats.approximation);
    report_.learning += who.learns && who.policy;
    report_.entries += who.sequence.committed_len;
    report_.sparse |= who.check != nullptr;
    if (who.grammar())
      ++report_.masked, report_.masked_rows += who.tree().size + 1, report_.drawn |= who.tree().size > 0 && !who.plan.greedy();
  }
  verify_rows = rows;
  report_.decodes = int(verified_.size()), report_.verify_rows = int(rows), report_.chunks = int(plan.chunks.size());
  for (const auto& chunk : plan.chunks) {
    Running& who = running(chunk);
    const Sequence& sequence = who.sequence;
    HUNCH_CHECK(rows + chunk.rows <= capacity);
    // A kernel a layer and sequence chooses entries: in a crowd only for who is going to draft with them.
    who.learns = who.policy && !(who.plan.planned && plan.decodes.size() + plan.chunks.size() > kCrowd);
    std::copy_n(sequence.tokens.begin() + sequence.committed_len, chunk.rows, &ids(rows));
    rows += chunk.rows;
    segments_.push_back({.phase = Segment::Phase::Prefill,
        .sequence = &sequence,
        .first_position = sequence.committed_len,
        .num_rows = int(chunk.rows),
        .policy = who.learns ? who.policy : nullptr,
        .selecting_rows = chunk.last && who.learns ? int(std::min<int64_t>(who.policy->prompt_rows(), chunk.rows)) : 0});
  }
  if (rows == 0) return;
  if (!flying) parts_.backend->hurry(std::ssize(segments_));  // nothing runs meanwhile

  const Model& model = *parts_.model;
  auto hidden = hidden_.view<float>(rows, model.shape().hidden);
  {
    Stopwatch watch(ms);
    const auto start = Clock::now();
    parts_.pass->begin(View<const int32_t, 1>(ids).slice(0, rows), segments_, {parts_.taps, taps_of(rows)});
    // Of chunks that end no prompt only K and V are wanted, as a rule.
    const bool read = verify_rows > 0 || parts_.follows_last || model.shape().nsa.used() ||
        std::ranges::any_of(
            plan.chunks, [&](const auto& chunk) { return chunk.last || running(chunk).plan.prompt_logprobs >= 0; });
    model.forward(*parts_.pass, read ? hidden : View<float, 2>{});
    if (verify_rows > 0) model.logits(*parts_.backend, hidden.slice(0, verify_rows), rows_.logits(0, verify_rows));
    int64_t first = 0;
    for (Running* who : verified_) {
      who->reads = who->tree().size > 0 ? who->rule->reads(who->tree()) : AcceptanceRule::Reads::Choices;
      if (who->grammar()) who->grammar()->leave_out(leaves_masks_out(*who));
      rows_.sample(who->sequence, who->tree(), who->row_parents, first, who->reads);
      first += who->tree().size + 1;
    }
    for (size_t i = 0; i < plan.chunks.size(); ++i) {
      const auto& chunk = plan.chunks[i];
      if (ends_prompt(chunk)) sample_first(running(chunk), first_answer_row(i), hidden.slice(first + chunk.rows - 1, 1));
      first += chunk.rows;
    }
    rows_.weigh();
    if (parts_.backend->asynchronous()) preview(plan, hidden);
    if (!flying) parts_.backend->start();  // drafts' time is taken where all is started
    if (meanwhile) meanwhile();
    doing_ = "waiting for the device";
    if (const Status done = parts_.backend->synchronize(); !done.ok()) return fail_all(plan, done.error());
    ms -= waited_for_drafts(ms_since(start));
    doing_ = "deciding what stays";
    first = 0;
    for (Running* who : verified_) {
      const int64_t next = first + who->tree().size + 1;
      who->final_first = who->sequence.committed_len, who->first_row = first;
      if (GrammarMask* const grammar = who->grammar()) {
        report_.masks_ms += grammar->take_waited_ms();
        grammar->leave_out(false);
        if (leaves_masks_out(*who)) refuse_forbidden(*grammar, who->tree(), rows_.choices(first, next - first));
      }
      settle(*who, first);
      first = next;
    }
    look_at_verified();
    for (size_t i = 0; i < plan.chunks.size(); ++i) {
      const auto& chunk = plan.chunks[i];
      running(chunk).final_first = chunk.who->sequence.committed_len, running(chunk).first_row = first;
      settle_chunk(running(chunk), chunk, first_answer_row(i), hidden.slice(first, chunk.rows));
      first += chunk.rows;
    }
  }
  doing_ = "showing drafters what stayed";
  follow(plan, hidden);
  const double select = parts_.pass->take_select_ms();
  report_.select_ms += select;
  report_.pass_ms += ms - select;
}

// Of the time from the pass's start to its end, what drafts still in flight took: it is theirs.
double Step::waited_for_drafts(double ms) {
  const double own = parts_.backend->since_mark_ms(), theirs = ms - own;
  if (own <= 0 || theirs <= 0) return 0;
  report_.draft_ms += theirs;
  double steps = 0;
  for (const auto& drafted : report_.drafted) steps += drafted.in_flight ? drafted.steps : 0;
  for (auto& drafted : report_.drafted)
    if (drafted.in_flight) drafted.ms += theirs * drafted.steps / steps;
  return theirs;
}

// What a pass has of a sequence's rows.
TargetRows Step::rows_of(
    const Running& who, int64_t first_position, int64_t first_row, int64_t count, View<const float, 2> hidden) const {
  return {
      .sequence = &who.sequence,
      .first_position = first_position,
      .first_row = first_row,
      .count = count,
      .hidden = hidden,
      .tapped = parts_.taps,
      .taps = taps_of(hidden.extent[0]),
  };
}

// Where ops run late, drafters list what they make of a chain's rows behind the pass, and prepare for prompts.
void Step::preview(const StepPlan& plan, View<const float, 2> hidden) {
  asked_.clear();
  for (const auto& chunk : plan.chunks)
    for (const Running::Drafter& drafter : running(chunk).drafters) {
      Proposer* const proposer = drafter.proposer;
      if (std::ranges::find(asked_, proposer) != asked_.end()) continue;
      asked_.push_back(proposer), reading_.clear();
      for (const auto& other : plan.chunks)
        if (running(other).uses(*proposer)) reading_.push_back(&other.who->sequence);
      proposer->meanwhile(reading_);
    }
  for (Proposer* proposer : parts_.followers()) {
    followed_.clear();
    int64_t first = 0;
    for (const Running* who : verified_) {
      const int64_t count = who->tree().size + 1;
      if (who->row_parents.empty() && who->uses(*proposer))
        followed_.push_back(rows_of(*who, who->sequence.committed_len, first, count, hidden));
      first += count;
    }
    if (!followed_.empty()) proposer->preview(followed_);
  }
}

// Proposers with a cache of their own see the rows that this pass made final, all sequences of one at once.
void Step::follow(const StepPlan& plan, View<const float, 2> hidden) {
  Stopwatch watch(report_.draft_ms);
  for (Proposer* proposer : parts_.followers()) {
    followed_.clear();
    const auto add = [&](const Running& who, std::span<const int32_t> path) {
      const int64_t count = who.sequence.committed_len - who.final_first;
      if (count == 0 || !who.failure.ok() || !who.uses(*proposer)) return;
      followed_.push_back(rows_of(who, who.final_first, who.first_row, count, hidden));
      followed_.back().path = path;
    };
    for (const Running* who : verified_) add(*who, who->path_rows);
    for (const auto& chunk : plan.chunks) add(running(chunk), {});
    if (!followed_.empty()) proposer->follow(followed_);
  }
}

// No token was chosen behind the committed ones: is it the rules that leave none, whatever the logits are?
Error Step::nothing_chosen(const Running& who, int64_t position) {
  if (!who.grammar()) return numerical_error(position);
  const int64_t vocab = parts_.model->shape().vocab_size;
  const std::vector<float> zeros(vocab);
  patch_.reserve(vocab, 0);
  const float* left =
      patch_.apply({.logits = View<const float, 2>(zeros.data(), 1, vocab), .state = who.sequence.logit_state.get()}, 0);
  if (std::any_of(left, left + vocab, [](float x) { return std::isfinite(x); })) return numerical_error(position);
  return failure(
      "grammar_dead_end: no token may follow at position {}: the structure asked for, with the other rules of the "
      "request, leaves none, or its grammar has too many readings; loosen logit_bias, allowed_token_ids or "
      "bad_words, or the structure",
      position);
}

// The device failed: nothing of this step is known.
void Step::fail_all(const StepPlan& plan, const Error& why) {
  device_lost_ = true;
  const Error error{"device_lost: " + why.message};
  for (const auto& decode : plan.decodes) running(decode).failure = error;
  for (const auto& chunk : plan.chunks) running(chunk).failure = error;
}

void Step::look_at(int64_t first, std::span<const int32_t> ids, int count, int64_t at) {
  const int64_t rows = std::ssize(ids);
  const auto seen = looked_ids_.view<int32_t>(rows_.max_rows(), 1 + kMaxLogprobs).slice(at, rows);
  const auto values = looked_values_.view<float>(rows_.max_rows(), 1 + kMaxLogprobs).slice(at, rows);
  for (int64_t row = 0; row < rows; ++row) seen(row, 0) = ids[row];
  LogProbsArgs args{.logits = rows_.logits(first, rows), .count = count};
  args.ids = View<const int32_t, 1>(seen.data, rows), args.ids.stride[0] = seen.stride[0];
  args.values = View<float, 1>(values.data, rows), args.values.stride[0] = values.stride[0];
  args.top_ids = View<int32_t, 2>(seen.data + 1, rows, count), args.top_ids.stride[0] = seen.stride[0];
  args.top_values = View<float, 2>(values.data + 1, rows, count), args.top_values.stride[0] = values.stride[0];
  parts_.backend->log_probs(args);
}

TokenLogprob Step::looked(int64_t at, int count, std::vector<TokenLogprob>& top) const {
  const auto seen = looked_ids_.view<int32_t>(rows_.max_rows(), 1 + kMaxLogprobs)[at];
  const auto values = looked_values_.view<float>(rows_.max_rows(), 1 + kMaxLogprobs)[at];
  top.clear();
  for (int i = 1; i <= count && seen(i) >= 0; ++i) top.push_back({seen(i), values(i)});
  return {seen(0), values(0)};
}

// Of all requests with one wait; rows that lie together, as a chain's do, with one op.
void Step::look_at_verified() {
  looked_for_.clear();
  for (const Look& look : looks_) looked_for_.push_back(look.id);
  for (size_t from = 0, end; from < looks_.size(); from = end) {
    const int count = looks_[from].who->plan.logprobs;
    const auto goes_on = [&] { return looks_[end].who->plan.logprobs == count && looks_[end].row == looks_[end - 1].row + 1; };
    for (end = from + 1; end < looks_.size() && goes_on(); ++end) {}
    look_at(looks_[from].row, std::span(looked_for_).subspan(from, end - from), count, int64_t(from));
  }
  if (!looks_.empty()) (void)parts_.backend->synchronize();  // a failure shows at the next step
  for (size_t i = 0; i < looks_.size(); ++i) {
    Running& who = *looks_[i].who;
    who.logprobs.push_back(looked(int64_t(i), who.plan.logprobs, who.top.emplace_back()).logprob);
  }
  looks_.clear();
}

// Row p of a prompt speaks of its token p + 1. What was looked at before a preemption is not looked at again.
void Step::look_at_prompt(Running& who, const StepPlan::Chunk& chunk, View<const float, 2> hidden) {
  const Sequence& sequence = who.sequence;
  Generation& stats = who.stats;
  const int64_t end = std::min(chunk.rows, sequence.prompt_len - 1 - sequence.committed_len);
  for (int64_t row = std::ssize(stats.prompt_logprobs) - sequence.committed_len; row < end;) {
    const int64_t rows = std::min(end - row, most_looked_), next = sequence.committed_len + row + 1;
    parts_.model->logits(*parts_.backend, hidden.slice(row, rows), rows_.logits(0, rows));
    look_at(0, std::span(sequence.tokens).subspan(next, rows), who.plan.prompt_logprobs, 0);
    (void)parts_.backend->synchronize();
    for (int64_t i = 0; i < rows; ++i)
      stats.prompt_logprobs.push_back(looked(i, who.plan.prompt_logprobs, stats.prompt_top.emplace_back()));
    row += rows;
  }
}

// A preempted request knows its pending token.
bool Step::ends_prompt(const StepPlan::Chunk& chunk) const {
  const Sequence& sequence = chunk.who->sequence;
  return chunk.last && sequence.len() == sequence.committed_len + chunk.rows;
}

void Step::settle_chunk(Running& who, const StepPlan::Chunk& chunk, int64_t row, View<const float, 2> hidden) {
  Sequence& sequence = who.sequence;
  const bool answered = ends_prompt(chunk);
  if (who.plan.prompt_logprobs >= 0) look_at_prompt(who, chunk, hidden);
  sequence.committed_len += chunk.rows;
  if (chunk.last) who.prepared = who.learns;
  if (!answered) return;
  const int32_t first = SampledRows::Of(rows_, row).choice(0);
  if (first < 0) {
    who.failure = nothing_chosen(who, sequence.len());
    return;
  }
  sequence.tokens.push_back(first);
  if (sequence.logit_state) sequence.logit_state->append(first);
  if (who.grammar() && !who.drafting()) who.grammar()->fill_soon(1);
  if (who.plan.logprobs < 0) return;
  look_at(row, std::span(&first, 1), who.plan.logprobs, 0);
  (void)parts_.backend->synchronize();
  who.top.resize(1);
  who.logprobs = {looked(0, who.plan.logprobs, who.top[0]).logprob};
}

// Greedy alone: the greatest of all logits, where it is allowed, is the greatest of those allowed, bit for bit.
bool Step::leaves_masks_out(const Running& who) {
  const DraftTree& tree = who.tree();
  return who.plan.greedy() && tree.size > 0 && !tree.in_flight && who.rule->reads(tree) == AcceptanceRule::Reads::Choices;
}

void Step::settle(Running& who, int64_t first_row) {
  Sequence& sequence = who.sequence;
  const DraftTree& tree = who.tree();
  if (who.check && who.check->end_pass(tree.size + 1) && who.stats.approximation.since_token < 0)
    who.stats.approximation.since_token = sequence.len() - sequence.prompt_len;
  Verdict& verdict = who.verdict;
  SampledRows::Of target(rows_, first_row, who.reads);
  who.rule->accept(tree, sequence.len(), target, who.chance, verdict);
  if (verdict.next < 0 && verdict.tokens.empty()) {
    who.failure = nothing_chosen(who, sequence.len());
    return;
  }
  if (verdict.next < 0) {  // what was kept is said first, as plain decoding would; the next round fails
    verdict.next = verdict.tokens.back();
    verdict.tokens.pop_back(), verdict.path.pop_back();
  }
  who.emitted_first = sequence.len();
  who.emitted_drafts = int(verdict.tokens.size());
  if (who.plan.logprobs >= 0) {
    who.logprobs.clear(), who.top.clear();
    for (size_t i = 0; i <= verdict.tokens.size(); ++i) {
      const int32_t id = i < verdict.tokens.size() ? verdict.tokens[i] : verdict.next;
      looks_.push_back({&who, first_row + (i == 0 ? 0 : verdict.path[i - 1] + 1), id});
    }
  }
  if (sequence.logit_state) {
    for (const int32_t token : verdict.tokens) sequence.logit_state->append(token);
    sequence.logit_state->append(verdict.next);
    if (who.grammar() && !who.drafting()) who.grammar()->fill_soon(1);
  }
  who.path_rows.clear();
  if (!who.row_parents.empty()) {
    who.path_rows.push_back(0);
    for (const int node : verdict.path) who.path_rows.push_back(node + 1);
    close_up(*parts_.backend, {parts_.store.get(), sequence.pages.view()}, sequence.committed_len, who.path_rows);
  }
  const Commit commit = commit_path(sequence, tree.size + 1, verdict.tokens, verdict.next, who.path_rows);
  who.prepared = who.policy && who.learns;
  if (who.prepared) {
    Stopwatch watch(report_.select_ms);
    who.policy->committed(sequence, commit);
  }
  for (const Running::Drafter& drafter : who.drafters) drafter.proposer->observe(sequence, verdict);
  if (tree.size > 0) {
    Generation& stats = who.stats;
    Running::Drafter& by = who.drafters[who.chosen];
    ++by.rounds, by.kept += commit.accepted;
    ++stats.rounds;
    stats.drafted += tree.size;
    stats.accepted += commit.accepted;
    stats.draft_passes += tree.passes;
    stats.draft_rounds.push_back({uint16_t(tree.size), uint16_t(commit.accepted)});
    const int depth = who.row_parents.empty() ? tree.size : tree.depth();
    for (int i = 0; i < depth; ++i) ++stats.drafted_by_position[i];
    for (int i = 0; i < commit.accepted; ++i) ++stats.accepted_by_position[i];
  }
  if (after_commit) after_commit(who);
}

// Lossy: every draft becomes output, its K and V made by sparse attention stay, and the selection moves on.
void Step::emit_unverified(Running& who) {
  Sequence& sequence = who.sequence;
  who.emitted_first = sequence.len();
  who.emitted_drafts = who.tree().size;
  for (int node = 0; node < who.tree().size; ++node) {
    sequence.tokens.push_back(who.tree().tokens(node));
    if (sequence.logit_state) sequence.logit_state->append(sequence.tokens.back());
  }
  sequence.committed_len += who.tree().size;
  Stopwatch watch(report_.select_ms);
  HUNCH_CHECK(who.policy->refresh(sequence, {parts_.store.get(), sequence.pages.view()}));
}

}
