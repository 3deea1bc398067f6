// Which of a row's experts a sparse check leaves out ("Accelerate Speculative Decoding with Sparse Computation in Verification",
// section 3.4). LOSSY. With a row's k weights ascending, ratio_m = (w_1 + ... + w_{k-m}) / (w_1 + ... + w_k).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "tensor/view.h"

namespace hunch {

struct ExpertRule {
  enum class Mode : uint8_t {
    Literal,     // the m least go where ratio_m < beta_m: all or nothing, as the paper's condition comes to
    Graded,      // the largest i <= m with ratio_i < beta_i
    TailMass,    // the largest i <= m whose weights are at most `mass` of all
    UnionAware,  // up to m that no other row of the step reads, ascending, while their weights are at most `mass` of all
  } mode = Mode::Literal;
  int most = 0;  // m
  float mass = 0.1f;
  bool renorm = false;                    // the weights that stay are scaled to the sum of all
  std::vector<std::vector<float>> betas;  // [layer][m - 1]: medians of ratio_m
};
std::optional<ExpertRule::Mode> expert_mode_named(std::string_view);

// ratio_m of a row's weights (any order) for m = 1 .. k - 1: the sum of the k - m least, over all.
std::vector<float> tail_ratios(View<const float, 1> shares);

// Left out: id -1 and share 0. Returns how many pairs are. `layer`: of the betas.
int64_t skip_experts(const ExpertRule&, int layer, View<int32_t, 2> ids, View<float, 2> shares);

}  // namespace hunch
