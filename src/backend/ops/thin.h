// What sparse passes leave out of a feed-forward block ("Accelerate Speculative Decoding with Sparse Computation in
// Verification", sections 3.3 and 3.4; sparse/sparse_check.h): channels that are small, experts of little weight. LOSSY.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "tensor/view.h"

namespace hunch {

// Channels of `gate` [rows][width], before its activation, with |silu| below the threshold become 0 where they are in every row,
// or, by_row, wherever they are.
struct ThinChannelsArgs {
  View<float, 2> gate;
  float threshold = 0;
  bool by_row = false;
  // Shared memory: += pairs of row and channel that are below, channels that are in every row.
  int64_t *below = nullptr, *skipped = nullptr;
};

// With a row's k weights ascending, ratio_m = (w_1 + ... + w_{k-m}) / (w_1 + ... + w_k).
enum class ExpertSkip : uint8_t {
  Literal,     // the m least go where ratio_m < beta_m: all or nothing, as the paper's condition comes to
  Graded,      // the largest i <= m with ratio_i < beta_i
  TailMass,    // the largest i <= m whose weights are at most `mass` of all
  UnionAware,  // up to m that no other row of the call reads, ascending, while their weights are at most `mass` of all
};
std::optional<ExpertSkip> expert_skip_named(std::string_view);

// Left out: id -1 and share 0.
struct ThinExpertsArgs {
  ExpertSkip mode = ExpertSkip::Literal;
  int most = 0;  // m; at least one expert stays
  float mass = 0.1f;
  bool renorm = false;           // the weights that stay are scaled to the sum of all
  const float* betas = nullptr;  // [m], Literal and Graded
  View<int32_t, 2> ids;          // [rows][k], as routed
  View<float, 2> shares;
  int64_t* skipped = nullptr;  // shared memory: += pairs that are left out
};

// The definitions, on the host.
void thin_channels(const ThinChannelsArgs&);
void thin_experts(const ThinExpertsArgs&);
// ratio_m of a row's weights (any order) for m = 1 .. k - 1.
std::vector<float> tail_ratios(View<const float, 1> shares);

}
