// VerifyCalibration: what sparse verification wants to know of a model, found by watching exact passes over sample texts (`hunch
// tune FILE --calibrate-verify OUT`): the layers that choose blocks for those behind them, sizes of channels, thresholds of
// experts. "Accelerate Speculative Decoding with Sparse Computation in Verification", sections 3.2 to 3.4.
#pragma once

#include "base/result.h"
#include "sparse/sparse_check.h"

namespace hunch {

struct VerifyCalibration {
  std::string model;  // identity_of(), its text
  int layers = 0;
  std::vector<int> anchors;                       // ascending, the first is the first layer; empty: none were found
  std::vector<std::vector<float>> channel_sizes;  // [layer][i] the quantile (i + 1) / 20 of |silu(gate)|
  std::vector<std::vector<float>> expert_betas;   // [layer][m - 1]

  static VerifyCalibration of(const CheckRecord&, std::string model, int anchors);
  std::string to_json() const;
  // Errors: damaged, or of another model; names the file, and both models.
  static Result<VerifyCalibration> load(const std::string& path, const std::string& model, int layers);
  Status save(const std::string& path) const;
  float channel_threshold(int layer, double share) const {
    const auto& sizes = channel_sizes[layer];
    const int i = int(std::lround(share * 20)) - 1;
    return i < 0 || i >= int(sizes.size()) ? 0 : sizes[i];
  }
};

// The anchors of section 3.2, `count` of them (at least one): the layers whose sets are least like the layer's before, the first
// always. While a layer is less like the anchor that serves it than kServed, the worst such layer becomes one too, up to `most`.
// similarity [layers][layers].
inline constexpr double kServed = 0.6;
std::vector<int> choose_anchors(std::span<const double> similarity, int layers, int count, int most);

// A record that fits a model.
CheckRecord make_record(int layers, int rows);

}
