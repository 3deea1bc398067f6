// From logits to a token: contract in backend/ops/sample.h. The arg max of log p + Gumbel noise is a sample of p (Gumbel, 1954;
// Maddison et al., 2014); with noise that depends on key, position and id only, it is also the same token in every pass.

#include "backend/ops/sample.h"

#include "backend/reference/reference_backend.h"
#include "base/check.h"
#include "base/race.h"

namespace hunch {
namespace {

// A possible token: `log_ratio` is log p(id) / p(best) after the temperature.
struct Candidate {
  int32_t id;
  float logit;
  double log_ratio;
  double ratio() const { return std::exp(log_ratio); }
};

// Ids that survive min_p, top-k and top-p, ascending. The order "probability descending, id ascending" is taken from the logits
// themselves, which division and exponential could only blur. The best id always survives.
std::vector<Candidate> survivors(const float* logits, int64_t vocab, float best, const SamplingParams& params) {
  std::vector<Candidate> kept;
  const double least = params.min_p > 0 ? std::min(0.0, std::log(double(params.min_p))) : -INFINITY;
  for (int64_t i = 0; i < vocab; ++i) {
    if (std::isinf(logits[i]) && logits[i] < 0) continue;
    const double log_ratio = logits[i] == best ? 0 : (double(logits[i]) - double(best)) / double(params.temperature);
    if (log_ratio >= least && !std::isinf(log_ratio)) kept.push_back({int32_t(i), logits[i], log_ratio});
  }
  std::ranges::stable_sort(kept, [](const Candidate& a, const Candidate& b) { return a.logit > b.logit; });
  if (params.top_k > 0 && size_t(params.top_k) < kept.size()) kept.resize(params.top_k);
  if (params.top_p < 1) {
    double total = 0, mass = 0;
    for (const Candidate& c : kept) total += c.ratio();
    size_t count = 0;
    do mass += kept[count++].ratio();
    while (count < kept.size() && mass < double(params.top_p) * total);
    kept.resize(count);
  }
  std::ranges::sort(kept, [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
  return kept;
}

// The drafts between the pending token and row `row`, oldest first.
std::vector<int32_t> path_to(const SampleArgs& args, int row) {
  std::vector<int32_t> path;
  for (; row > 0; row = args.parents.empty() ? row - 1 : args.parents[row]) path.push_back(args.drafts(row - 1));
  std::ranges::reverse(path);
  return path;
}

// The row after its request's rules: the order stands in backend/ops/logit_rules.h.
std::vector<float> ruled(const SampleArgs& args, int64_t r) {
  const LogitState& state = *args.state;
  const LogitRules& rules = state.rules();
  const int64_t vocab = args.logits.extent[1];
  HUNCH_CHECK(state.vocab() == vocab);
  const int row = args.first_row + int(r);
  const std::vector<int32_t> path = path_to(args, row);
  const bool blind = args.blind && row > 0;

  std::vector<bool> banned(vocab, !rules.allowed.empty());
  for (const int32_t id : rules.allowed) banned[id] = false;
  const TokenMask::Row mask = state.mask() && !blind ? state.mask()->after(path) : TokenMask::Row{};
  for (int32_t id = 0; mask.words && id < vocab; ++id)
    if (!mask.allows(id)) banned[id] = true;
  for (const std::vector<int32_t>& word : rules.bad_words)
    if (!(blind && word.size() > 1) && state.completed_next(word, path)) banned[word.back()] = true;
  if (!mask.only_ends && state.output_len() + std::ssize(path) < rules.min_tokens)
    for (const int32_t id : rules.end_ids) banned[id] = true;
  std::vector<float> out(&args.logits(r, 0), &args.logits(r, 0) + vocab);
  for (const auto& [id, bias] : rules.bias) {
    if (bias <= kBanBias) banned[id] = true;
    else out[id] += bias;
  }

  for (int32_t id = 0; id < vocab; ++id) {
    float& x = out[id];
    if (std::isnan(x)) continue;
    if (banned[id]) x = -INFINITY;
    if (!rules.penalise()) continue;
    const int64_t count = int64_t(state.output_count(id)) + std::ranges::count(path, id);
    if (rules.repetition != 1 && (count > 0 || state.in_prompt(id))) x = x > 0 ? x / rules.repetition : x * rules.repetition;
    if (count > 0) x = x - rules.frequency * float(count) - rules.presence;
  }
  return out;
}

struct Scored {
  int32_t id;
  double score;
};

// `support` in ascending order of ids.
void write_ranks(const SampleArgs& args, int64_t r, std::vector<Scored> support) {
  double greatest = -INFINITY, total = 0;
  for (const Scored& s : support) greatest = std::max(greatest, s.score);
  const auto part = [&](const Scored& s) { return s.score == greatest ? 1 : std::exp(s.score - greatest); };
  for (const Scored& s : support) total += part(s);
  std::ranges::stable_sort(support, [](const Scored& a, const Scored& b) { return a.score > b.score; });
  for (int64_t i = 0; i < num_ranked(args); ++i) {
    const bool some = i < std::ssize(support);
    if (args.ranked.data) args.ranked(r, i) = some ? support[i].id : -1;
    if (args.shares.data) args.shares(r, i) = some ? float(part(support[i]) / total) : 0;
  }
}

}

void ReferenceBackend::sample(const SampleArgs& args) {
  const int64_t vocab = args.logits.extent[1];
  HUNCH_CHECK(ranks_allowed(args));
  std::vector<float> own;
  std::vector<Scored> support;
  for (int64_t r = 0; r < args.logits.extent[0]; ++r) {
    const float* logits = &args.logits(r, 0);
    if (args.state) own = ruled(args, r), logits = own.data();
    float* probs = args.probs.data ? &args.probs(r, 0) : nullptr;
    if (probs) std::fill_n(probs, vocab, 0.0f);
    args.tokens(r) = -1;
    // Takes the tokens in ascending order, each with its score.
    double greatest = -INFINITY, next = greatest;
    int32_t second = -1;
    const auto score_of = [&](int32_t id, double score) {
      if (std::isinf(score) && score < 0) return;
      support.push_back({id, score});
      if (score > greatest) second = args.tokens(r), next = greatest, greatest = score, args.tokens(r) = id;
      else if (score > next) second = id, next = score;
    };
    const auto note_others = [&] {
      write_ranks(args, r, support);
      if (args.seconds.data) args.seconds(r) = second;
      if (args.leads.data) args.leads(r) = second < 0 ? INFINITY : float(greatest - next);
    };
    support.clear();
    note_others();
    const bool has_nan = std::any_of(logits, logits + vocab, [](float x) { return std::isnan(x); });
    const bool has_finite = std::any_of(logits, logits + vocab, [](float x) { return std::isfinite(x); });
    if (has_nan || !has_finite) continue;

    const float* best = std::max_element(logits, logits + vocab);  // the first of equals
    if (args.params.temperature < kGreedyTemperature) {
      for (int64_t id = 0; id < vocab; ++id) score_of(int32_t(id), double(logits[id]));
      if (probs) probs[best - logits] = 1;
      note_others();
      continue;
    }
    const std::vector<Candidate> kept = survivors(logits, vocab, *best, args.params);
    double total = 0;
    for (const Candidate& c : kept) {
      total += c.ratio();
      const double u = uniform(args.key, args.stream, uint32_t(args.positions(r)), uint32_t(c.id));
      score_of(c.id, c.log_ratio - std::log(-std::log(u)));
    }
    note_others();
    if (probs)
      for (const Candidate& c : kept) probs[c.id] = float(c.ratio() / total);
  }
}

void ReferenceBackend::weigh_drafts(std::span<const WeighDraftsArgs> chains) {
  for (const WeighDraftsArgs& args : chains)
    for (int64_t i = 0; i < args.tokens.extent[0]; ++i) {
      const int32_t x = args.tokens(i);
      args.weights(i, 0) = x < 0 ? 0 : args.p(i, x), args.weights(i, 1) = x < 0 ? 0 : args.q(i, x);
      args.residuals(i) = race_residual(args.key, args.first_position + i, args.p.extent[1], args.p[i], args.q[i]);
    }
}

}
