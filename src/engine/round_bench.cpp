#include "engine/round_bench.h"

#include "base/clock.h"
#include "base/failure.h"
#include "engine/plan.h"
#include "engine/token_run.h"

namespace hunch {
namespace {

BackendCounters difference(const BackendCounters& a, const BackendCounters& b, uint64_t over) {
  return {
      (a.weight_bytes - b.weight_bytes) / over,
      (a.kv_bytes - b.kv_bytes) / over,
      (a.score_bytes - b.score_bytes) / over,
      (a.gather_bytes - b.gather_bytes) / over,
      (a.experts_read - b.experts_read) / over,
      (a.kernels - b.kernels) / over,
      (a.kernel_launches - b.kernel_launches) / over,
      (a.graph_launches - b.graph_launches) / over,
      (a.waits - b.waits) / over,
      (a.waited_ns - b.waited_ns) / over,
  };
}

// Asks the rule, which takes its time, and keeps first children by coins of given odds. Nothing about the stream is right:
// figures made with it say "synthetic".
class Synthetic final : public AcceptanceRule {
 public:
  Synthetic(std::unique_ptr<AcceptanceRule> rule, std::vector<double> odds, uint64_t seed)
      : rule_(std::move(rule)), odds_(std::move(odds)), state_(0x2545f4914f6cdd1d * (2 * seed + 1)) {}
  Guarantee guarantee() const override { return Guarantee::Lossy; }
  bool needs_q() const override { return rule_->needs_q(); }
  Reads reads(const DraftTree& tree) const override { return rule_->reads(tree); }
  bool takes_branches() const override { return rule_->takes_branches(); }
  void accept(const DraftTree& tree, int64_t first, TargetProbs& target, Chance& chance, Verdict& out) const override {
    rule_->accept(tree, first, target, chance, out);
    out.path.clear(), out.tokens.clear();
    for (int node = tree.child(-1); node >= 0 && coin() < odds_[std::min(out.path.size(), odds_.size() - 1)];
         node = tree.child(node))
      out.path.push_back(node), out.tokens.push_back(int32_t(1 + out.path.size()));
    out.next = 1;
  }

 private:
  double coin() const {  // xorshift: the same rounds in every run
    state_ ^= state_ << 13, state_ ^= state_ >> 7, state_ ^= state_ << 17;
    return double(state_ >> 11) * 0x1p-53;
  }
  std::unique_ptr<AcceptanceRule> rule_;
  std::vector<double> odds_;
  mutable uint64_t state_;
};

}

RoundBench::~RoundBench() {
  (void)parts_.backend->synchronize();
  for (auto& request : requests_) {
    request->unseated();
    request->sequence.pages.release_past(0, *parts_.pool);
  }
}

Result<std::unique_ptr<RoundBench>> RoundBench::make(EngineParts& parts, const Request& wanted, const RoundOptions& options) {
  if (options.batch > parts.limits.max_seqs)
    return usage_error("{} requests at once, the engine was made for {}", options.batch, parts.limits.max_seqs);
  const int nodes = options.gamma + options.beside;
  if (options.batch * (nodes + 1) > parts.limits.verify_rows)
    return usage_error(
        "{} requests with {} drafts are more rows than the {} of a verify pass", options.batch, nodes, parts.limits.verify_rows);
  auto bench = std::unique_ptr<RoundBench>(new RoundBench(parts, options));
  bench->goes_on_ = parts.learned_named(wanted.speculation.proposer) != nullptr;
  const int64_t most = options.depth + nodes + 2 + (bench->goes_on_ ? growth(options.gamma, options.rounds) : 0);
  if (most > parts.context_len)
    return usage_error("a depth of {} tokens and the {} of the rounds do not fit the context of {}", options.depth,
        most - options.depth, parts.context_len);
  parts.forget_prefixes();
  Request request = wanted;
  request.prompt.resize(options.depth);
  for (int64_t i = 0; i < options.depth; ++i) request.prompt[i] = int32_t(i % 1000);
  request.speculation.num_tokens = options.gamma, request.speculation.tree_tokens = options.beside;
  for (int slot = 0; slot < options.batch; ++slot) {
    HUNCH_TRY(const RequestPlan plan, plan_on(parts, request));
    HUNCH_TRY(auto made, Running::make(parts, plan, request));
    made->rule = std::make_unique<Synthetic>(std::move(made->rule), options.acceptance, slot);
    Sequence& sequence = made->sequence;
    sequence.slot = slot;
    sequence.max_len = most;
    sequence.pages = PageTable(parts.context_len);
    const bool fits = sequence.pages.grow_to(most, *parts.pool);
    bench->requests_.push_back(std::move(made));
    if (!fits) return failure("no KV pages for {} requests of {} tokens; raise --kv-memory", options.batch, most);
    fill_entries(parts, sequence, options.depth);
    bench->requests_.back()->seated();
    bench->step_.prepare(*bench->requests_.back());
  }
  bench->rewind();
  return bench;
}

int64_t RoundBench::growth(int gamma, int rounds) { return int64_t(kMostWarmRounds + 2 * rounds) * (gamma + 1); }

// Every run starts at the same depth, and every round unless it cannot. A drafter that has seen more than that forgets it.
void RoundBench::begin_run() {
  for (auto& request : requests_)
    if (goes_on_) request->unseated();
  rewind();
  for (auto& request : requests_)
    if (goes_on_) request->seated(), step_.prepare(*request);
}

int64_t RoundBench::drafted() const {
  int64_t sum = 0;
  for (const auto& request : requests_) sum += request->stats.drafted;
  return sum;
}

void RoundBench::rewind() {
  for (auto& request : requests_) {
    Sequence& sequence = request->sequence;
    sequence.tokens.resize(size_t(options_.depth) + 1, 1);
    sequence.committed_len = options_.depth;
  }
}

Status RoundBench::one_round(int gamma) {
  plan_.decodes.clear();
  for (auto& request : requests_) {
    const int beside = gamma > 0 ? options_.beside : 0;
    request->want_drafts = gamma + beside, request->want_depth = gamma;
    request->branch = beside > 0, request->top_k = request->plan.proposing.tree_top_k;
    request->chosen = gamma > 0 && request->drafting() ? 0 : -1;
    request->learns = gamma > 0 && request->policy != nullptr;
    request->looked_up = false;
    plan_.decodes.push_back({request.get(), request->want_drafts});
  }
  step_.run(plan_);
  for (auto& request : requests_) HUNCH_OK(request->failure);
  return {};
}

Result<RoundCost> RoundBench::run(int gamma, int rounds) {
  HUNCH_CHECK(rounds <= options_.rounds && gamma <= options_.gamma);
  RoundCost cost;
  begin_run();
  // A pass that learns comes first: drafts need a selection, or hidden states.
  const int least = parts_.backend->asynchronous() ? kWarmRoundsOfDevices : kWarmRounds,
            most = goes_on_ ? kMostWarmRounds : least;
  for (int warm = 0, settled = 0; warm < least || (warm < most && settled < kSettledRounds); ++warm) {
    const uint64_t launches = parts_.backend->counters().kernel_launches;
    HUNCH_OK(one_round(gamma));
    end_round();
    settled = parts_.backend->counters().kernel_launches == launches ? settled + 1 : 0;
  }
  HUNCH_OK(parts_.backend->synchronize());
  std::vector<double> whole, drafts;
  const BackendCounters before = parts_.backend->counters();
  const int64_t drafted_before = drafted();
  for (int round = 0; round < rounds; ++round) {
    const auto start = Clock::now();
    HUNCH_OK(one_round(gamma));
    whole.push_back(ms_since(start));
    end_round();
  }
  cost.per_round = difference(parts_.backend->counters(), before, rounds);
  cost.drafted = double(drafted() - drafted_before) / rounds / requests_.size();
  if (cost.drafted < gamma)
    return failure(
        "{:.1f} guesses a round were made where {} were asked for: nothing can be said of such rounds", cost.drafted, gamma);
  cost.round_ms = median(whole);
  // What the odds give in the long run; the coins of these rounds would add their noise.
  double chance = 1;
  cost.tokens = 1;
  for (int draft = 0; draft < gamma; ++draft) {
    chance *= options_.acceptance[std::min(size_t(draft), options_.acceptance.size() - 1)];
    cost.tokens += chance;
  }
  if (gamma == 0) return cost;
  // The same again with a wait between drafts and pass.
  step_.after_drafts = [this](Running&) { (void)parts_.backend->synchronize(); };
  for (int round = 0; round < rounds; ++round) {
    HUNCH_OK(one_round(gamma));
    drafts.push_back(step_.report().draft_ms);
    end_round();
  }
  step_.after_drafts = nullptr;
  cost.draft_ms = median(drafts);
  cost.verify_ms = cost.round_ms - cost.draft_ms;
  return cost;
}

}
