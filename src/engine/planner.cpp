#include "engine/planner.h"

#include "base/check.h"

namespace hunch {
namespace {

constexpr double kHopeful = 0.4;                        // standard deviations that lookups get on top
constexpr double kAlone = 0.6;                          // chance of no lookup above which drafts with passes are the rule
constexpr int kProbeLength = 4;                         // enough to tell good text from bad
constexpr double kHope = 0.97;                          // an arm that would lose at this acceptance is not probed
constexpr double kUsualRounds = 8, kUsualTokens = 2.5;  // that a request is thought to have made before its first
constexpr double kCarried = 0.4;                        // of what is known of a request's runs of lookups, to the next
constexpr double kTogether = 4;                         // rows a request in a batch where all guess
constexpr int kPlainEvery = 256, kPlainAsks = 2;
constexpr double kNear = 0.9;  // of the steady rate: an arm that made less without lookups will not pay beside them
constexpr int64_t kMature = 64;
constexpr int kPriceEvery = 4;  // decisions for a batch whose entries differ by less than a share
constexpr double kSameEntries = 0.01;
constexpr int kLengths[] = {1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16}, kLengthsOfMany[] = {2, 4, 6, 8, 12, 16};
constexpr size_t kMany = 8;

}

Planner::Planner(const CostTable& table, PlannerOptions options) : table_(table), options_(std::move(options)) {
  HUNCH_CHECK(options_.arms.size() <= kMaxArms && options_.max_slots > 0);
  int most = kMaxPlannedDraft;
  for (Arm& arm : options_.arms) {
    HUNCH_CHECK(!arm.passes || (arm.draft_kind >= 0 && size_t(arm.draft_kind) < table.drafts.size()));
    HUNCH_CHECK(arm.width == 1 || (arm.ready && arm.width > 1 && arm.width <= kMaxPlannedNodes));
    arm.max_gamma = std::clamp(arm.max_gamma, 1, arm.width == 1 ? kMaxPlannedDraft : kMaxPlannedNodes / arm.width);
    most = std::max(most, arm.max_gamma * arm.width);
    arm.prior_acceptance = std::clamp(arm.prior_acceptance, kLeast, kMost);
  }
  const size_t slots = options_.max_slots;
  slots_.resize(slots);
  chains_.resize(slots * options_.arms.size());
  steady_.resize(slots), now_.resize(slots), trial_.resize(slots);
  for (size_t a = 0; a < options_.arms.size(); ++a) steps_[a].resize(slots + 1), once_[a].resize(slots + 1);
  insists_.resize(slots), steady_of_.reserve(slots), reach_.resize(kSteps);
  for (auto& curve : verify_curves_) curve.resize(most + 1);
  for (int slot = 0; slot < options_.max_slots; ++slot) open(slot);
}

void Planner::open(int slot) {
  Slot& s = slots_[slot];
  // What lookups found for the last request they are thought to find for this one, until its own rounds say more.
  if (s.rounds >= kUsualRounds) {
    usual_ = {.recent_tokens = kCarried * s.recent_tokens, .recent_time = kCarried * s.recent_time};
    for (size_t i = 0; i < s.runs.size(); ++i) usual_.runs[i] = {kCarried * s.runs[i].rounds, kCarried * s.runs[i].missed};
  }
  s = usual_;
  steady_of_.clear();
  for (Evidence& e : s.arms) e.probe_at = kFirstProbe, e.interval = kShortest;
}

// Where lookups find something most of the time, time is worth what they make of it, not what rounds without them do: a slow
// round of passes only delays the next match.
double Planner::price_of_time(std::span<const RequestView> views, double steady) const {
  const double plain = sequences_ / plain_ms_;
  double sum = 0;
  for (const RequestView& view : views) {
    const Slot& slot = slots_[view.slot];
    const Runs& runs = slot.runs[slot.looked_up];
    const double found = 1 - (runs.missed + 1) / (runs.rounds + 1);
    const double gain = slot.recent_time > 0 ? slot.recent_tokens / slot.recent_time : 0;
    sum += steady + found * std::max(0.0, slot.weight * gain * plain - steady);
  }
  return sum / views.size();
}

void Planner::make_chain(const RequestView& view, int a, Chain& chain) const {
  const Arm& arm = options_.arms[a];
  const Slot& slot = slots_[view.slot];
  const Found& found = view.found[a];
  chain.longest = std::min({view.room, arm.max_gamma, arm.passes ? kMaxPlannedDraft : found.length});
  if (arm.width > 1) chain.longest = std::min(chain.longest, view.nodes / arm.width);
  if (!(view.arms >> a & 1) || chain.longest <= 0) {
    chain.longest = 0;
    return;
  }
  const Rates& base = shared_acceptance(a, bucket_of(a, view.context_len, found.quality));
  // The request's own record as one factor on the odds of every position: the profile keeps its form, the text sets its height.
  const Evidence& e = slot.arms[a];
  double factor = odds_factor(e);
  if (!arm.passes) {
    // A lookup that is little known is hoped to be good: being wrong costs a few rows, never trying it all it could bring.
    const double middle = factor * odds(base[0]), rate = middle / (1 + middle);
    const double hoped = rate + kHopeful * std::sqrt(rate * (1 - rate) / (1 + e.trials));
    factor *= odds(std::clamp(hoped, kLeast, kMost)) / odds(rate);
  }
  const Counts& goes_on = shared_[a].goes_on;
  double kept = 1, drafted = 1;
  const double guess = view.guess_ms * arm.width * sequences_ / plain_ms_;  // in tokens
  chain.gain[0] = chain.drafts[0] = 0;
  for (int g = 1; g <= chain.longest; ++g) {
    const size_t i = g - 1;
    const double o = factor * odds(base[i]), p = std::clamp(o / (1 + o), kLeast, kMost);
    kept *= p;
    if (arm.passes && g > 1) drafted *= (goes_on.kept[i] + kSharedStrength) / (goes_on.trials[i] + kSharedStrength);
    chain.acceptance[g] = p;
    chain.gain[g] = chain.gain[i] + slot.weight * kept - guess;
    chain.drafts[g] = chain.drafts[i] + drafted;
  }
}

// A round takes as long for all as its rows ask for. So that requests of many guesses do not make time dear for those of few, a
// token counts by how few its request makes a round: what grows is the product of all speeds, not their sum.
void Planner::weigh(std::span<const RequestView> views) {
  double sum = 0;
  for (const RequestView& view : views) {
    Slot& slot = slots_[view.slot];
    slot.weight = (slot.rounds + kUsualRounds) / (slot.tokens + kUsualRounds * kUsualTokens);
    sum += slot.weight;
  }
  for (const RequestView& view : views) slots_[view.slot].weight *= views.size() / sum;
}

// Times of this step's passes by how many rows and sequences take part; contexts as they are now.
bool Planner::price(std::span<const RequestView> views) {
  const int count = int(views.size());
  double entries = 0;
  for (const RequestView& view : views) entries += view.context_len;
  width_ = options_.widest_counts && count > 1 ? kUsualWidth : 0;
  if (table_.verify.recorded() > kMature && count == sequences_ && std::abs(entries - priced_entries_) < kSameEntries * entries &&
      ++priced_ < kPriceEvery)
    return false;
  sequences_ = count, per_sequence_ = 1.0 / count, priced_entries_ = entries, priced_ = 0;
  for (size_t w = 0; w < (width_ ? kWidths.size() : 1); ++w) {
    std::vector<double>& curve = verify_curves_[w];
    for (size_t k = 0; k < curve.size(); ++k) {
      const bool alike = int(k) >= kWidths[w];
      curve[k] = alike && w > 0
          ? verify_curves_[0][k]
          : table_.verify.ms(
                {.rows = double(count) * (1 + k), .sequences = count, .entries = entries, .widest = double(kWidths[w])});
      // More rows never take less, nor do as many that one request has more of: what the table makes of passes that it has not
      // seen must not make guesses look free.
      curve[k] = std::max({curve[k], verify_curves_[w > 0 ? w - 1 : 0][k], k > 0 ? curve[k - 1] : 0});
    }
  }
  plain_ms_ = verify_curves_[0][0];
  for (size_t a = 0; a < options_.arms.size(); ++a) {
    const Arm& arm = options_.arms[a];
    if (!arm.passes) continue;
    const CostTable::Draft& kind = table_.drafts[arm.draft_kind];
    steps_[a][0] = once_[a][0] = 0;
    const double each = entries / count, read = std::max(arm.ratio * each, std::min(arm.min_entries, each));
    for (int n = 1; n <= count; ++n) {
      steps_[a][n] = kind.step.ms({.rows = double(n * arm.width), .sequences = n, .entries = n * read});
      once_[a][n] =
          arm.ready ? kind.start.steps() * steps_[a][n] : kind.learn.ms({.rows = double(n), .sequences = n, .entries = n * each});
    }
  }
  return true;
}

// Each request takes what is worth most at this price of a millisecond (`rate`, tokens), given that drafts with passes use arm
// `passing` for `longest` steps at most, whose weights are read anyway. A chain's further lengths are not looked at where all it
// could still bring is not worth what this one costs.
Planner::Totals Planner::fill(
    size_t count, double rate, double row_ms, bool lookups, int passing, int longest, std::vector<Choice>& out) {
  const size_t arms = options_.arms.size();
  Totals totals{.tokens = double(count)};
  double rows = count, one_more = 0;
  int learning = 0;
  std::ranges::fill(reach_, 0.0);
  if (passing >= 0 && count > 1) one_more = (steps_[passing][count] - steps_[passing][1]) / (count - 1);
  for (size_t i = 0; i < count; ++i) {
    Choice best;
    double most = insists_[i] ? -INFINITY : 0;
    const double before = verify_ms(rows);
    for (size_t a = 0; a < arms; ++a) {
      const bool passes = options_.arms[a].passes;
      if (passes ? int(a) != passing : !lookups) continue;
      const Chain& chain = chains_[i * arms + a];
      const int last = std::min(chain.longest, passes ? longest : most_guesses());
      int g = 1;
      for (; g <= last; ++g) {
        const double drafts = chain.drafts[g];
        const double more = drafts * options_.arms[a].width;
        const double verify = row_ms >= 0 ? more * row_ms : verify_ms(rows + more) - before;
        const double cost = rate * (verify + (passes ? drafts * one_more : 0));
        const double value = chain.gain[g] - cost;
        if (value > most) most = value, best = {int(a), g};
        else if (one_more >= 0 && chain.gain[chain.longest] - cost <= most) break;
      }
      totals.cut = totals.cut || (g > last && last < chain.longest);
    }
    out[i] = best;
    if (best.arm == kPlain) continue;
    const Chain& chain = chains_[i * arms + best.arm];
    totals.tokens += chain.gain[best.gamma];
    rows += chain.drafts[best.gamma] * width_of(best.arm);
    if (!options_.arms[best.arm].passes) continue;
    ++learning;
    for (int g = 1; g <= best.gamma; ++g) reach_[g] += chain.drafts[g] - chain.drafts[g - 1];
  }
  totals.ms = verify_ms(rows);
  if (passing >= 0 && learning > 0) {
    totals.ms += once_[passing][learning];
    for (int g = 1; g <= longest; ++g) totals.ms += step_ms(passing, reach_[g]);
  }
  return totals;
}

// The choices with the most tokens over what their time is worth, over all arms with passes and lengths of their chains.
Planner::Totals Planner::best_choices(size_t count, double rate, bool lookups, uint32_t passing, std::vector<Choice>& out) {
  Totals best;
  Choice passes;
  double most = 0;
  const size_t widths = options_.widest_counts && count > 1 ? kWidths.size() : 1;
  size_t best_width = 0;
  const auto attempt = [&](double row_ms, int arm, int longest) {
    const Totals totals = fill(count, rate, row_ms, lookups, arm, longest, trial_);
    if (!lookups && arm >= 0 && totals.tokens > kNear * rate * totals.ms) near_ |= 1u << arm;
    if (best.tokens == 0 || totals.tokens - rate * totals.ms > most) {
      most = totals.tokens - rate * totals.ms, best = totals, best_width = width_, passes = {arm, longest};
      std::copy_n(trial_.begin(), count, out.begin());
    }
    return totals.cut;
  };
  const auto serves = [&](int arm) {  // all who insist
    for (size_t i = 0; i < count; ++i)
      if (insists_[i] && (arm < 0 || chains_[i * options_.arms.size() + arm].longest == 0)) return false;
    return true;
  };
  // The first guess in a batch may cost a pass of another kind, which hardly anybody's are worth alone: rows are also priced as
  // where all guess.
  const std::span<const int> lengths = count < kMany ? std::span<const int>(kLengths) : kLengthsOfMany;
  for (size_t width = 0; width < widths; ++width) {
    if (lookups && guessing_width_ > 0 && width != guessing_width_) continue;
    width_ = width;
    const int least = lookups || width == 0 ? 0 : kWidths[width - 1];  // shorter chains of all were tried with the width before
    const double together = (verify_ms(kTogether * count) - plain_ms_) / ((kTogether - 1) * count);
    const double row_costs[] = {-1, together};
    for (const double row_ms : std::span(row_costs).first(count > 1 ? 2 : 1)) {
      if (serves(-1) && (widths == 1 || lookups == (width > 0))) attempt(row_ms, -1, 0);
      for (size_t a = 0; a < options_.arms.size(); ++a) {
        if (!options_.arms[a].passes || !(passing >> a & 1) || !serves(int(a))) continue;
        if (widths > 1 && (options_.arms[a].width > 1) != (width == 0)) continue;  // trees are as wide as they are
        for (const int longest : passes_.gamma > 0 ? std::span<const int>(&passes_.gamma, 1) : lengths)
          if (longest > most_guesses() || (longest >= least && !attempt(row_ms, int(a), longest))) break;
      }
    }
  }
  width_ = widths > 1 && best.ms <= plain_ms_ ? kUsualWidth : best_width;
  if (lookups) guessing_width_ = best_width;
  if (lookups && passes.gamma > 0) passes_ = passes;
  return best;
}

// A plain step's cost is what all is judged by: one is made where it is not known, and now and then again.
bool Planner::plain_due(std::span<const RequestView> views) {
  double entries = 0;
  for (const RequestView& view : views) entries += view.context_len;
  const int count = int(views.size());
  if (++steps_since_plain_ > kPlainEvery) return true;
  if (table_.verify.known({.rows = double(count), .sequences = count, .entries = entries})) return false;
  uint8_t& asked =
      asked_plain_[std::clamp(int(log2_bucket(entries / count / 64)), 0, 15)][std::clamp(int(log2_bucket(count)), 0, 7)];
  return asked < kPlainAsks && ++asked > 0;
}

void Planner::decide(std::span<const RequestView> views, std::span<Decision> decisions, int max_rows) {
  const size_t count = views.size(), arms = options_.arms.size();
  HUNCH_CHECK(count == decisions.size() && count <= slots_.size());
  if (count == 0) return;
  weigh(views);
  const bool priced = price(views);
  std::array<double, kMaxArms> left_to_all{};
  for (const RequestView& view : views)
    for (size_t a = 0; a < arms; ++a) left_to_all[a] += may_lose(slots_[view.slot], int(a)) / count;
  bool found = false, insists = false;
  for (size_t i = 0; i < count; ++i) {
    Slot& slot = slots_[views[i].slot];
    insists_[i] = false;
    for (size_t a = 0; a < arms; ++a) {
      Chain& chain = chains_[i * arms + a];
      make_chain(views[i], int(a), chain);
      const double left = std::max(may_lose(slot, int(a)), left_to_all[a]);
      if (!views[i].insists && left < 0) chain.longest = 0;
      while (!options_.arms[a].passes && chain.longest > 0 && rows_at_stake(chain.longest) > left) --chain.longest;
      found = found || (!options_.arms[a].passes && chain.longest > 0);
      insists_[i] |= views[i].insists && options_.arms[a].passes && chain.longest > 0;
    }
    insists = insists || insists_[i];
  }
  // Steady: what would be done round after round without what lookups happened to find. Its rate is the price of time. Each
  // sweep's rate is a better price for the next (Dinkelbach); two suffice from the last step's. A crowd keeps it as long as its
  // prices.
  const double plain_rate = count / plain_ms_;
  const double least_rate = insists ? 0 : plain_rate;  // plain decoding is not a choice then
  double rate = std::max(plain_rate, std::min(last_rate_, 4 * plain_rate));
  const bool kept = !priced && count >= kMany && !insists &&
      std::equal(views.begin(), views.end(), steady_of_.begin(), steady_of_.end(),
          [](auto& view, int slot) { return view.slot == slot; });
  if (!kept) {
    near_ = 0, passes_ = {}, guessing_width_ = 0, steady_of_.clear();
    for (const RequestView& view : views) steady_of_.push_back(view.slot);
  }
  for (int sweep = 0; sweep < 3 && !kept; ++sweep) {
    const Totals totals = best_choices(count, rate, false, ~0u, steady_);
    const double next = std::max(least_rate, totals.tokens / totals.ms);
    const bool settled = std::abs(next - rate) < 0.01 * rate;
    rate = next;
    if (settled) break;
  }
  last_rate_ = rate, steady_width_ = width_ = kept ? steady_width_ : width_;
  const double price = price_of_time(views, rate);
  if (!found && price < 1.02 * rate)
    for (size_t i = 0; i < count; ++i) {
      const Choice& choice = steady_[i];
      const int longest = choice.arm == kPlain ? 0 : chains_[i * arms + choice.arm].longest;
      now_[i] = longest > 0 ? Choice{choice.arm, std::min(choice.gamma, longest)} : Choice{};
    }
  else best_choices(count, price, true, insists ? ~0u : !kept ? near_ : passes_.gamma > 0 ? 1u << passes_.arm : 0, now_);
  for (size_t i = 0; i < count; ++i) decisions[i] = {.arm = now_[i].arm, .gamma = now_[i].gamma};
  if (plain_due(views))
    for (size_t i = 0; i < count; ++i)
      if (!insists_[i]) decisions[i] = {};
  settle(views, decisions, rate);
  probe(views, decisions, rate, price);
  if (max_rows > 0) fit(decisions, max_rows);

  double guesses = 0, ms = 0;
  int sharing = 0, learners = 0;
  for (const Decision& d : decisions) {
    guesses += nodes_of(d);
    sharing += d.arm != kPlain && options_.arms[d.arm].passes;
    learners += d.learn >= 0;
  }
  if (guesses == 0) steps_since_plain_ = 0;
  const double rows = count + guesses, guess_ms = (verify_ms(rows) - plain_ms_) / std::max(1.0, guesses);
  for (size_t i = 0; i < count; ++i) {
    Decision& d = decisions[i];
    Slot& slot = slots_[views[i].slot];
    const Chain* chain = d.arm == kPlain ? nullptr : &chains_[i * arms + d.arm];
    // In tokens that plain decoding of the batch would have made in the time.
    const double extra = extra_ms(d, chain, guess_ms, sharing);
    const double learning = d.learn >= 0 ? once_[d.learn][learners] / learners : 0;
    slot.extra = extra * plain_rate, slot.learning = learning * plain_rate;
    ms += extra + learning;
    slot.bucket = d.arm == kPlain ? 0 : bucket_of(d.arm, views[i].context_len, views[i].found[d.arm].quality);
    slot.last = d;
    const bool looked_up = chain && !options_.arms[d.arm].passes;
    Runs& runs = slot.runs[slot.looked_up];
    runs.rounds = kRunsKeep * runs.rounds + 1, runs.missed = kRunsKeep * runs.missed + !looked_up;
    slot.looked_up = looked_up;
    if (chain && options_.arms[d.arm].passes && !d.probe && width_of(d.arm) == 1) {
      // One more draft pays while (chance that all before it is kept) * acceptance > rate * its cost.
      const double more = steps_[d.arm][sharing] / sharing + verify_ms(rows + 1) - verify_ms(rows);
      d.stop_below = float(std::clamp(rate * more / (slot.weight * chain->acceptance[d.gamma]), 0.0, 0.9));
    }
  }
  for (const RequestView& view : views) slots_[view.slot].time = 1 + ms / plain_ms_;
}

// This decision's share of what the step takes beyond a plain one, learning apart.
double Planner::extra_ms(const Decision& d, const Chain* chain, double guess_ms, int sharing) const {
  if (!chain) return 0;
  const double drafts = d.gamma <= chain->longest ? chain->drafts[d.gamma] : d.gamma;
  double ms = guess_ms * drafts * width_of(d.arm);
  // Those who take part share a draft step's weights.
  if (options_.arms[d.arm].passes) ms += drafts * steps_[d.arm][sharing] / sharing;
  if (options_.arms[d.arm].ready) ms += once_[d.arm][sharing] / sharing;
  return ms;
}

// What so many rows cost a request whose guesses all fail, in its tokens; in a batch, as where all guess.
double Planner::rows_at_stake(int guesses) const {
  if (sequences_ == 1) return (verify_ms(1 + guesses) - plain_ms_) / plain_ms_;
  return guesses * (verify_ms(kTogether * sequences_) - plain_ms_) / (kTogether - 1) / plain_ms_;
}

// What so many levels of an arm take, nobody else guessing.
double Planner::alone_ms(int arm, double drafts) const {
  const double verify = verify_ms(sequences_ + drafts * width_of(arm)) - plain_ms_;
  if (!options_.arms[arm].passes) return verify;
  return verify + drafts * steps_[arm][1] + (options_.arms[arm].ready ? once_[arm][1] : 0);
}

// Without learning now, the next round is a plain one unless a lookup finds something: it then makes one token where a steady
// round would have made each * plain_ms_ in its time.
bool Planner::worth_learning(const Slot& slot, int arm, double each, double rate) const {
  const Runs& runs = slot.runs[slot.looked_up];
  const double miss = (runs.missed + 1) / (runs.rounds + (slot.looked_up ? 2 : 1));
  return miss > kAlone || miss * std::max(0.0, each * plain_ms_ - 1) > rate * once_[arm][sequences_] / sequences_;
}

// Drafts with passes need a selection of the round before: where it is missing this round learns it.
void Planner::settle(std::span<const RequestView> views, std::span<Decision> decisions, double rate) {
  const size_t arms = options_.arms.size();
  const double each = rate / sequences_;  // tokens a millisecond of one request
  for (size_t i = 0; i < views.size(); ++i) {
    Decision& d = decisions[i];
    Slot& slot = slots_[views[i].slot];
    const bool selects = d.arm != kPlain && options_.arms[d.arm].selects();
    if (selects && views[i].prepared != d.arm) {
      const int wanted = d.arm;
      d = {};
      double most = 0;
      for (size_t a = 0; a < arms; ++a) {
        const Chain& chain = chains_[i * arms + a];
        if (options_.arms[a].passes) continue;
        for (int g = 1; g <= std::min(chain.longest, most_guesses()); ++g) {
          const double value = chain.gain[g] - rate * alone_ms(int(a), g);
          if (value > most) most = value, d.arm = int(a), d.gamma = g;
        }
      }
      if (worth_learning(slot, wanted, each, rate)) d.learn = wanted;
    } else if (selects) {
      d.learn = d.arm;
    } else if (const int steady = steady_[i].arm; steady != kPlain && options_.arms[steady].selects()) {
      if (worth_learning(slot, steady, each, rate)) d.learn = steady;
    }
    // An arm in use needs no probe; its next one is due an interval after it was last used.
    if (d.arm != kPlain) {
      Evidence& e = slot.arms[d.arm];
      e.probe_at = slot.tokens + e.interval;
    }
    if (d.learn >= 0) slot.arms[d.learn].probe_at = slot.tokens + slot.arms[d.learn].interval;
  }
}

// At most one request a step tries an arm that looks worse than what was decided for it.
void Planner::probe(std::span<const RequestView> views, std::span<Decision> decisions, double rate, double price) {
  const size_t arms = options_.arms.size();
  for (size_t i = 0; i < views.size(); ++i) {
    Slot& slot = slots_[views[i].slot];
    Decision& d = decisions[i];
    // What the decision brings beyond its own time: a lookup that found much is not given up to try something else.
    double given_up = rate * plain_ms_ / sequences_ - 1;
    if (d.arm != kPlain) {
      const Chain& chosen = chains_[i * arms + d.arm];
      given_up = std::max(given_up, chosen.gain[d.gamma] - price * alone_ms(d.arm, chosen.drafts[d.gamma]));
    }
    for (size_t a = 0; a < arms; ++a) {
      const Arm& arm = options_.arms[a];
      const Chain& chain = chains_[i * arms + a];
      if (int(a) == d.arm || int(a) == steady_[i].arm || chain.longest == 0 || slot.tokens < slot.arms[a].probe_at) continue;
      const int length = std::min({chain.longest, kProbeLength, most_guesses()});
      const double ms = alone_ms(int(a), chain.drafts[length]) + (arm.selects() ? once_[a][1] : 0);
      double hope = 0, kept = 1;
      for (int g = 0; g < length; ++g) hope += kept *= kHope;
      if (slot.weight * hope < price * ms) continue;
      // Against what its time is worth, matches to come included, and against what was decided.
      const double worth = price * ms + given_up;
      if (slot.explored + std::max(0.0, worth - chain.gain[length]) >
          options_.explore_free + options_.explore_share * slot.tokens)
        continue;
      if (arm.selects() && views[i].prepared != int(a)) {
        if (d.learn >= 0 && d.learn != int(a)) continue;
        d.learn = int(a);
        return;
      }
      slot.probe_worth = worth;
      d = {.arm = int(a), .gamma = length, .learn = d.learn, .probe = true};
      return;
    }
  }
}

// Drafts give way before anybody's own row does: who has the most guesses loses its last level until all fit.
void Planner::fit(std::span<Decision> decisions, int max_rows) {
  int rows = int(decisions.size());
  for (const Decision& d : decisions) rows += nodes_of(d);
  for (int most = kMaxPlannedNodes; most > 0; --most)
    for (Decision& d : decisions) {
      if (rows <= max_rows) return;
      if (nodes_of(d) != most) continue;
      rows -= width_of(d.arm);
      if (--d.gamma == 0) d.arm = kPlain, d.probe = false;
    }
}

}
