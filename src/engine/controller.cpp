#include "engine/controller.h"

#include <fmt/format.h>

#include <bit>

#include "engine/defaults.h"
#include "engine/engine_costs.h"
#include "engine/profile.h"

namespace hunch {
namespace {

// Arms: as in auto_drafters(), then a chain of each drafter that was loaded, then a tree of each.
constexpr int kLookup = 0, kSelf = 1, kLearned = 2;

// Guesses a level of the planner's trees. On a device rows hide behind memory; on a CPU a guess past the eighth costs a tenth of
// a plain step, so that only narrow trees can pay.
constexpr int kTreeWidth = 3, kTreeWidthOfDevices = 6, kDeepestTree = 8;

// How often a suffix guess was kept, by position, where the past says that less than 1, 2, 4, 8 ... of it will be: counted on
// books, code, records and edits with the shipped model. A request's own rounds soon count more.
constexpr double kPriorRounds = 16;
constexpr std::array<std::array<double, 4>, 5> kLookupPrior = {{
    {0.18, 0.3, 0.4, 0.5},
    {0.41, 0.6, 0.75, 0.8},
    {0.88, 0.92, 0.94, 0.94},
    {0.92, 0.94, 0.94, 0.94},
    {0.93, 0.95, 0.95, 0.95},
}};

// The drafter knows how sure it is of every token, the planner only of the average: a chain that goes well may go on a little
// longer than planned, one that goes badly ends early. Too late costs a draft step, too early a share of a whole pass: the
// threshold stays below break-even.
constexpr int kBeyondPlan = 2;
constexpr float kStopScale = 0.6f;

// With fewer entries drafts save little: no copy of the weights is made for them.
constexpr int64_t kSelfFrom = 2048;

// On a device looking up is host time for all: in a crowd, requests that used nothing of it for long ask seldom, more so the
// longer that was.
constexpr size_t kCrowd = 8;
constexpr int kPatience = 16, kMostSeldom = 8;  // steps

constexpr double kLeastLearning = 0.01;  // of a pass that also learns, on a device
constexpr int kMostNewLists = 6;         // passes of new kernels that are not believed, of an arm

// The plan of a request that asks for nothing: what auto drafts with.
RequestPlan usual_plan(const EngineParts& parts) {
  Request request;
  request.speculation.proposer = "self";
  auto plan = plan_request(request, {}, parts.options.max_draft, parts.model->shape().layers, parts.bits_per_weight());
  HUNCH_CHECK(plan.ok());
  return std::move(*plan);
}

PlannerOptions options_of(const EngineParts& parts) {
  PlannerOptions options;
  options.max_slots = parts.limits.max_seqs;
  options.widest_counts = parts.backend->asynchronous();
  options.arms = {
      {.name = auto_drafters()[kLookup], .passes = false, .prior_acceptance = 0.6},
      {.name = auto_drafters()[kSelf],
          .passes = true,
          .draft_kind = 0,
          .ratio = defaults::kRatio,
          .max_gamma = std::min(kMaxPlannedDraft, parts.options.max_draft),
          .prior_acceptance = 0.85},
  };
  for (const EngineParts::Learned& drafter : parts.learned) {
    if (options.arms.size() == kMaxArms) break;
    options.arms.push_back({
        .name = drafter.name,
        .passes = true,
        .ready = true,
        .draft_kind = int(options.arms.size()) - kSelf,
        .ratio = 1,
        .max_gamma = std::min(kMaxPlannedDraft, parts.options.max_draft),
        .prior_acceptance = 0.6,
    });
  }
  const size_t chains = options.arms.size();
  const int width = parts.backend->asynchronous() ? kTreeWidthOfDevices : kTreeWidth;
  for (size_t chain = kLearned; chain < chains && options.arms.size() < kMaxArms; ++chain) {
    Arm tree = options.arms[chain];
    tree.name = fmt::format("{} tree", tree.name), tree.width = width,
    tree.max_gamma = std::min(kDeepestTree, parts.options.max_draft / width);
    tree.prior_acceptance = 0.75;
    if (tree.max_gamma > 1) options.arms.push_back(tree);
  }
  return options;
}

}

const std::vector<std::string>& auto_drafters() {
  static const std::vector<std::string> names = {"suffix", "self"};
  return names;
}

Controller::Controller(EngineParts& parts)
    : parts_(parts),
      table_(cost_priors(parts, usual_plan(parts))),
      key_(cost_key(parts)),
      path_(parts.options.keep_costs ? cache_path("costs", key_) : ""),
      planner_(table_, options_of(parts)),
      num_chains_(int(std::min(size_t(kMaxArms), kLearned + parts.learned.size()))),
      ratio_(defaults::kRatio) {
  bool remembered = false;
  for (int arm = 0; arm < int(planner_.options().arms.size()); ++arm) {
    Profile seen;
    bool found = false;
    if (path_.empty() || !Profile::load(seen_path(arm), key_, seen, found).ok() || !found) continue;
    seen.apply(planner_, arm);
    remembered |= arm == kLookup;
  }
  for (size_t quality = 0; quality < kLookupPrior.size() && !remembered; ++quality)
    for (const int drawn : {0, kQualities / 2})
      planner_.seed(kLookup, 0, kLookupPrior[quality], kPriorRounds, int(quality) + drawn);
  // A damaged or foreign file is as good as none; what is learned now replaces it.
  if (!path_.empty()) (void)table_.load(path_, key_);
  Profile profile;
  bool found = false;
  if (!path_.empty() && Profile::load(cache_path("profile", key_), key_, profile, found).ok() && found) {
    profile.apply(planner_, kSelf);
    ratio_ = profile.ratio;
  }
  views_.reserve(parts.limits.max_seqs);
  lookups_.reserve(parts.limits.max_seqs);
  decisions_.reserve(parts.limits.max_seqs);
}

Controller::~Controller() {
  if (path_.empty() || table_.verify.recorded() == 0) return;
  (void)table_.save(path_, key_);  // a full disk costs what was learned
  for (int arm = 0; arm < int(planner_.options().arms.size()); ++arm) (void)Profile::of(planner_, arm).save(seen_path(arm), key_);
}

// Where an arm's acceptance is kept: the first rounds of the next run need not find it out again.
std::string Controller::seen_path(int arm) const {
  std::string name = planner_.options().arms[arm].name;
  std::ranges::replace(name, ' ', '-');
  return cache_path(fmt::format("seen-{}", name), key_);
}

RequestView Controller::view_of(const Running& who) const {
  const int64_t entries_left = parts_.context_len - who.sequence.len();
  RequestView view{
      .slot = who.sequence.slot,
      .context_len = who.sequence.committed_len,
      .room = std::min(kMaxPlannedDraft, who.most_depth()),
      .nodes = who.rule->takes_branches() ? int(std::min<int64_t>(who.plan.planned_nodes, entries_left)) : 0,
      .guess_ms = who.grammar() ? masks_.guess_ms(!who.plan.greedy()) : 0,
      .prepared = who.prepared || who.chooses_blocks() ? kSelf : -1,
  };
  if (who.plan.paced) {
    view.arms = 1u << kSelf, view.insists = true;
    return view;
  }
  if (parts_.model->shape().nsa.used() || (who.check && who.plan.sparse.ratio < 1) || !may_draft_itself(who))
    view.arms &= ~(1u << kSelf);  // its attention is sparse already, or there is little to leave out
  const DraftTree& found = who.drafters[kLookup].tree;
  const int quality = std::min(kQualities / 2 - 1, int(std::bit_width(unsigned(found.worth))));
  view.found[kLookup] = {.length = found.size, .quality = quality + (who.plan.greedy() ? 0 : kQualities / 2)};
  return view;
}

bool Controller::may_draft_itself(const Running& who) const {
  const auto& copy = who.plan.draft_weights;
  return !copy || (!copy_failed_ && (who.sequence.len() >= kSelfFrom || parts_.has_draft_weights(*copy)));
}

int Controller::drafter_of(int arm) const { return arm < num_chains_ ? arm : kLearned + arm - num_chains_; }

// A tree's count whether or not the best of its nodes stand in the last of them.
int Controller::levels_of(const Running& who) const {
  return width_of(who.arm) > 1 && who.tree().size > 0 ? who.want_depth : who.tree().size;
}

int Controller::tree_nodes() const {
  int most = 0;
  for (const Arm& arm : planner_.options().arms)
    if (arm.width > 1) most = std::max(most, arm.width * arm.max_gamma);
  return most;
}

void Controller::decide(std::span<Running* const> requests, Step& step) {
  if (requests.empty()) return;
  for (Running* who : requests) {
    if (!who->planned) planner_.open(who->sequence.slot);
    who->planned = true;
  }
  for (const Running* who : requests) get_ready(*who);
  lookups_.clear();
  const bool seldom = parts_.backend->asynchronous() && requests.size() > kCrowd;
  for (Running* who : requests) {
    if (!who->plan.planned) continue;
    who->drafters[kLookup].tree.size = 0;
    const int every = int(std::bit_floor(unsigned(std::min(who->unused / 4, kMostSeldom))));
    if (!seldom || who->unused < kPatience || (who->unused + who->sequence.slot) % every == 0) lookups_.push_back(who);
  }
  step.look_up(lookups_, kLookup);
  views_.clear();
  for (const Running* who : requests) views_.push_back(view_of(*who));
  decisions_.assign(requests.size(), {});
  planner_.decide(views_, decisions_, requests.size() > 1 ? int(parts_.limits.verify_rows) : 0);
  const int beyond = parts_.backend->asynchronous() ? 0 : kBeyondPlan;  // a device's chains do not end early
  for (size_t i = 0; i < requests.size(); ++i) {
    Running& who = *requests[i];
    const Decision& decision = decisions_[i];
    who.arm = decision.arm, who.chosen = who.plan.paced ? decision.arm == kSelf ? 0 : -1 : drafter_of(decision.arm);
    who.want_drafts = who.want_depth = decision.gamma;
    who.branch = who.may_branch(), who.top_k = who.plan.proposing.tree_top_k;
    if (const int width = width_of(decision.arm); width > 1) {
      who.want_drafts = decision.gamma * width, who.branch = true, who.top_k = width;
    } else if (decision.arm >= kSelf) {
      // Where the request wants trees itself, chains may become some, of so many guesses.
      who.want_drafts = who.want_depth = std::min(views_[i].room, decision.gamma + beyond);
    }
    who.looked_up = decision.arm == kLookup, who.unused = who.looked_up ? 0 : who.unused + 1;
    who.learns = decision.learn == kSelf;
    who.stop_below = kStopScale * decision.stop_below;
  }
}

void Controller::record(const StepReport& report, std::span<Running* const> decoded) {
  for (const Running* who : decoded)
    if (who->planned)
      planner_.record({
          .slot = who->sequence.slot,
          .drafted = levels_of(*who),
          .accepted = who->emitted_drafts,
          .stopped_early = drafter_of(who->arm) >= kSelf && width_of(who->arm) == 1 && who->tree().size < who->want_drafts,
      });
  // Passes with a prompt's rows say nothing about decoding.
  if (report.chunks > 0 || report.decodes == 0 || report.sparse) return;
  // Nor do guesses whose kernels are new to a device about their cost: found dear, they would not be made again. An arm whose
  // kernels stay new, as it is seldom used, costs what that takes.
  if (report.launched > 0 && report.verify_rows > report.decodes) {
    uint32_t arms = 0;
    for (const Running* who : decoded)
      if (who->planned && who->arm >= 0 && who->tree().size > 0) arms |= 1u << who->arm;
    bool new_to_one = false;
    for (size_t arm = 0; arm < new_lists_.size(); ++arm)
      if (std::max(arms, 1u) >> arm & 1) new_to_one |= new_lists_[arm]++ < kMostNewLists;
    if (new_to_one) return;
  }
  PassShape shape{.rows = double(report.verify_rows), .sequences = report.decodes, .entries = double(report.entries)};
  for (const Running* who : decoded)
    if (planner_.options().widest_counts) shape.widest = std::max(shape.widest, 1.0 + who->tree().size);
  // Scores that are collected on the way count as the pass's; they are a few per cent of it.
  double pass = report.pass_ms, learn = report.select_ms;
  bool tells = true;
  if (report.masked > 0 && parts_.backend->asynchronous()) {
    const double usual = table_.verify.ms(shape);
    pass = masks_.record(pass, usual, report.masks_ms, report.masked_rows - report.masked, report.drawn), tells = pass != usual;
  }
  if (report.learning > 0 && parts_.backend->asynchronous()) {
    // There the host sees only the whole: beyond what such a pass takes else, it is for learning.
    const double usual = table_.verify.ms(shape);
    learn = std::max(pass - usual, kLeastLearning * pass), pass = pass < usual ? pass : 0;
  }
  if (pass > 0 && tells) table_.verify.record(shape, pass);
  if (report.learning > 0) {
    const double share = double(report.learning) / report.decodes;
    table_.drafts[0].learn.record(
        {.rows = double(report.learning), .sequences = report.learning, .entries = share * report.entries}, learn);
  }
  for (const StepReport::Drafted& drafted : report.drafted) {
    PassShape draft{.rows = 0, .sequences = 0, .entries = 0};
    int chosen = -1;
    double sequences = 0;
    for (const Running* who : decoded) {
      if (!who->planned || drafter_of(who->arm) < kSelf || who->tree().size == 0) continue;
      if (who->drafters[who->chosen].proposer != drafted.by) continue;
      chosen = drafter_of(who->arm);
      const double share = std::min(1.0, double(levels_of(*who)) / drafted.steps);  // of the steps in which it took part
      const double read = chosen == kSelf ? ratio_ : 1;
      sequences += share, draft.rows += share * width_of(who->arm);
      draft.entries += share * std::max(16.0, read * who->sequence.committed_len);
    }
    if (chosen < 0) continue;
    draft.sequences = std::max(1, int(sequences + 0.5));
    draft.rows = std::max(draft.rows, double(draft.sequences));
    CostTable::Draft& kind = table_.drafts[chosen - kSelf];
    if (chosen == kSelf) kind.step.record(draft, drafted.ms / drafted.steps);
    else kind.record_chain(draft, drafted.steps, drafted.ms);
  }
}

}
