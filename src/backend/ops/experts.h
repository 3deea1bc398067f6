// Mixtures of experts: which experts a row goes to, and their gated feed-forward blocks. Sparsely-gated layers: Shazeer et al.,
// 2017; the forms of Qwen3-MoE, of gpt-oss and of DeepSeek-V2 and V3.
#pragma once

#include "backend/ops/matmul.h"
#include "backend/ops/norm.h"
#include "tensor/view.h"

namespace hunch {

enum class Routing : uint8_t {
  Softmax,          // shares p = softmax(logits) over all experts in fp32; the k greatest p
  SoftmaxOfChosen,  // the k greatest logits; shares are the softmax over these
  Sigmoid,          // shares p = sigmoid(logits); the k greatest p + bias (DeepSeek-V3, section 2.1.2)
};

// For each row: k experts as `routing` says, ties to the lower id, NaN ranks lowest; ascending ids with their shares, which with
// `normalise` are divided by their sum (taken in the order of ids, as all sums over the chosen), then times `scale`.
// Group-limited: of `groups` equal stretches of experts the best `groups_kept` can be chosen from, ties to the lower group; a
// group is as good as its greatest p, of Routing::Sigmoid as the sum of its two greatest p + bias.
struct RouteArgs {
  View<const float, 2> logits;  // [rows][experts]
  Routing routing = Routing::Softmax;
  bool normalise = false;
  const float* bias = nullptr;      // [experts], Sigmoid only; null: none
  int groups = 1, groups_kept = 1;  // Softmax and Sigmoid; groups_kept of them hold at least k experts
  float scale = 1;
  View<int32_t, 2> ids;   // [rows][k], 1 <= k <= experts
  View<float, 2> shares;  // [rows][k]
};

struct Expert {
  const Weight *gate = nullptr, *up = nullptr, *down = nullptr;  // [width][hidden] twice, [hidden][width]; alike for all experts
  const float *gate_bias = nullptr, *up_bias = nullptr, *down_bias = nullptr;  // [width] twice, [hidden]; all or none
};

// out[r] += shares[r][0] y[r][ids[r][0]], then += shares[r][1] y[r][ids[r][1]], ... in fp32 and in the ascending order of ids,
// y[r][e] = down_e(silu(gate_e x[r]) * up_e x[r]), with biases added to the three products and the gate that `clamp` says.
// Row invariance: a row of `out` has the same bits whichever other rows share the call and its experts. An expert's weights are
// read once for all its rows, those of experts without rows not at all (BackendCounters::experts_read).
struct ExpertsArgs {
  View<const float, 2> x;      // [rows][hidden]; another memory than `out`
  View<const int32_t, 2> ids;  // [rows][k], ascending in a row; below 0: no expert
  View<const float, 2> shares;
  std::span<const Expert> experts;
  GateClamp clamp = {};
  View<float, 2> out;                // [rows][hidden]
  View<float, 2> gate, up;           // scratch, [rows][width]
  View<float, 2> gathered, product;  // scratch, [rows][hidden]
};

}
