// From logits to a token: one processing order for every row, plain, draft, verify or bonus.
#pragma once

#include <algorithm>

#include "backend/ops/logit_rules.h"
#include "base/random.h"
#include "tensor/view.h"

namespace hunch {

struct SamplingParams {
  float temperature = 0.8f;  // below 1e-5: greedy, arg max, lowest id on ties
  int top_k = 40;            // 0: off
  float top_p = 0.95f;       // 1: off
  float min_p = 0.05f;       // 0: off; relative to the greatest probability
};

// Order: divide by temperature; min_p; top-k by (probability descending, id ascending); top-p on the renormalised survivors
// (the smallest set whose mass reaches top_p); softmax. The token is arg max over the survivors of log p + Gumbel noise of
// (key, stream, position, id), -log(-log u) with 32-bit u: a sample of p, and a function of logits, key and position alone.
// With `state`, its rules (bans, bias, penalties; backend/ops/logit_rules.h) come first, for every row by its own history: the
// committed tokens and the drafts on the path to the row. A row with a NaN is refused even where the NaN is banned, and so is a
// row of which everything is banned.
inline constexpr int64_t kMostRanked = 64;

struct SampleArgs {
  View<const float, 2> logits;  // [rows][vocab]; columns past the vocabulary do not exist; never changed
  SamplingParams params;
  NoiseKey key;
  NoiseStream stream = NoiseStream::Target;
  View<const int32_t, 1> positions;  // [rows] position of the token being chosen
  View<int32_t, 1> tokens;           // [rows] out; -1 where the row has a NaN or no finite logit is left
  View<float, 2> probs;  // [rows][vocab] out, the processed distribution, 0 outside the support; data null: not wanted
  const LogitState* state = nullptr;
  // Row r follows the round's row first_row + r: row 0 is the pending token (the last committed one), row x > 0 is draft x - 1,
  // whose token is drafts(x - 1) and whose parent is row parents[x] (empty: a chain, parent x - 1). Needed with `state` only.
  int first_row = 0;
  View<const int32_t, 1> drafts;
  std::span<const int32_t> parents;
  // The host does not know the drafts: behind them goes unapplied what reads them there, the mask and bad words of several
  // tokens.
  bool blind = false;
  // How sure the choice was: the token that came second (-1: no other was possible, or none at all) and by how much the choice
  // leads its score (log p + noise; greedy: logits), infinite without a second. Each null: not wanted.
  View<int32_t, 1> seconds;  // [rows] out
  View<float, 1> leads;      // [rows] out
  // The k best of a row, the best first, equals by id: ranked(r, 0) is tokens(r), ranked(r, 1) what seconds(r) is. With noise
  // they are k draws from p without replacement, in order (Gumbel top-k; Kool, van Hoof & Welling, 2019).
  //   shares(r, i) = exp(score_i) / sum over the support of exp(score)
  // The support is what the filters leave; greedy, where they cut nothing: every id whose logit, after the rules, is above -inf,
  // so that shares are the softmax of the logits. Ids that equal an infinite best logit share alike. Beyond the support, and in
  // refused rows: -1 and 0. k <= kMostRanked; each may be null (not wanted) without the other.
  View<int32_t, 2> ranked;  // [rows][k] out
  View<float, 2> shares;    // [rows][k] out
};

// What rule ratio asks of a chain that was drawn, so that no distribution leaves the device: node i stands behind row i of p (the
// target's) and of q (which it was drawn from).
struct WeighDraftsArgs {
  View<const float, 2> p, q;      // [nodes][vocab]
  View<const int32_t, 1> tokens;  // [nodes]; -1: nothing was drawn
  NoiseKey key;
  int64_t first_position = 0;  // of node 0's token
  View<float, 2> weights;      // [nodes][2] out: p and q of the token; 0 where there is none
  View<int32_t, 1> residuals;  // [nodes] out: what is said where the node is refused (race_residual() of base/race.h)
};

inline bool wants_second(const SampleArgs& args) { return args.seconds.data || args.leads.data; }

// How many are wanted, 0: none.
inline int64_t num_ranked(const SampleArgs& args) {
  return std::max(args.ranked.data ? args.ranked.extent[1] : 0, args.shares.data ? args.shares.extent[1] : 0);
}
// Whether the shapes of `ranked` and `shares` are allowed.
inline bool ranks_allowed(const SampleArgs& args) {
  const int64_t k = num_ranked(args), rows = args.logits.extent[0];
  return k <= kMostRanked && (!args.ranked.data || (args.ranked.extent[0] == rows && args.ranked.extent[1] == k)) &&
      (!args.shares.data || (args.shares.extent[0] == rows && args.shares.extent[1] == k));
}

}
