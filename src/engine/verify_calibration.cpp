#include "engine/verify_calibration.h"

#include <nlohmann/json.hpp>
#include <numeric>

#include "base/failure.h"
#include "engine/cost_table.h"

namespace hunch {
namespace {

using nlohmann::json;
constexpr int kVersion = 1, kQuantiles = 19;

bool numbers(const json& in, std::vector<std::vector<float>>& out, size_t layers) {
  if (!in.is_array() || (!in.empty() && in.size() != layers)) return false;
  for (const json& row : in) {
    if (!row.is_array()) return false;
    auto& values = out.emplace_back();
    for (const json& x : row) {
      if (!x.is_number() || !std::isfinite(x.get<double>())) return false;
      values.push_back(float(x.get<double>()));
    }
  }
  return true;
}

}

CheckRecord make_record(int layers, int rows) {
  CheckRecord out;
  out.rows = rows, out.layers = layers;
  out.jaccard.assign(size_t(layers) * layers, 0);
  out.overlap.assign(rows, 0), out.overlap_pairs.assign(rows, 0);
  out.channels.assign(layers, std::vector<int64_t>(CheckRecord::kBins));
  out.ratios.resize(layers), out.sets.resize(layers);
  return out;
}

std::vector<int> choose_anchors(std::span<const double> similarity, int layers, int count, int most) {
  const auto like = [&](int a, int b) { return similarity[a * layers + b]; };
  std::vector<int> order(layers - 1);
  std::iota(order.begin(), order.end(), 1);
  std::ranges::stable_sort(order, [&](int a, int b) { return like(a, a - 1) < like(b, b - 1); });
  std::vector<int> anchors{0};  // J(M_1, M_0) = 0 by definition: always the least
  anchors.insert(anchors.end(), order.begin(), order.begin() + std::clamp(count - 1, 0, layers - 1));
  std::ranges::sort(anchors);
  // Little likeness to the layer before is not little likeness to the anchor that serves: long spans drift.
  while (int(anchors.size()) < std::min(most, layers)) {
    int worst = -1;
    double least = kServed;
    for (int layer = 0; layer < layers; ++layer) {
      const int anchor = *(std::ranges::upper_bound(anchors, layer) - 1);
      if (anchor != layer && like(layer, anchor) < least) worst = layer, least = like(layer, anchor);
    }
    if (worst < 0) break;
    anchors.insert(std::ranges::upper_bound(anchors, worst), worst);
  }
  return anchors;
}

VerifyCalibration VerifyCalibration::of(const CheckRecord& record, std::string model, int anchors) {
  VerifyCalibration out{.model = std::move(model), .layers = record.layers};
  if (record.steps > 0) {
    std::vector<double> similarity = record.jaccard;
    for (double& j : similarity) j /= double(record.steps);
    out.anchors = choose_anchors(similarity, record.layers, std::max(1, anchors / 2), anchors);
  }
  for (const auto& bins : record.channels) {
    const int64_t all = std::accumulate(bins.begin(), bins.end(), int64_t(0));
    auto& sizes = out.channel_sizes.emplace_back();
    int64_t seen = 0;
    for (size_t bin = 0; all > 0 && bin < bins.size(); ++bin) {
      seen += bins[bin];
      while (int(sizes.size()) < kQuantiles && seen * 20 >= all * int64_t(sizes.size() + 1))
        sizes.push_back(std::exp2(float(bin + 1) / 8 - 24));
    }
  }
  for (const auto& layer : record.ratios) {
    auto& betas = out.expert_betas.emplace_back();
    for (auto ratios : layer) {  // the median: half of the rows lie below
      const auto middle = ratios.begin() + ratios.size() / 2;
      std::nth_element(ratios.begin(), middle, ratios.end());
      betas.push_back(*middle);
    }
  }
  return out;
}

std::string VerifyCalibration::to_json() const {
  return json{{"kind", "hunch verify calibration"}, {"version", kVersion}, {"model", model}, {"layers", layers},
      {"anchors", anchors}, {"channel_sizes", channel_sizes}, {"expert_betas", expert_betas}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<VerifyCalibration> VerifyCalibration::load(const std::string& path, const std::string& model, int layers) {
  std::string text;
  bool found = false;
  HUNCH_OK(read_cache_file(path, text, found));
  if (!found) return usage_error("--verify-calibration: no such file: {}", path);
  const json in = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const Error damaged =
      usage_error("--verify-calibration: {} is no calibration; hunch tune FILE --calibrate-verify makes one", path);
  if (!in.is_object() || in.value("kind", json()) != "hunch verify calibration" || in.value("version", json()) != kVersion ||
      !in.contains("model") || !in["model"].is_string() || !in.contains("layers") || !in.contains("anchors") ||
      !in["anchors"].is_array() || !in.contains("channel_sizes") || !in.contains("expert_betas"))
    return damaged;
  VerifyCalibration out{.model = in["model"].get<std::string>(), .layers = layers};
  if (out.model != model || in["layers"] != layers)
    return usage_error(
        "--verify-calibration: {} is of the model {}, this is {}: make one with hunch tune FILE --calibrate-verify", path,
        out.model, model);
  for (const json& layer : in["anchors"]) {
    if (!layer.is_number_integer() || layer.get<int64_t>() < 0 || layer.get<int64_t>() >= layers) return damaged;
    out.anchors.push_back(layer.get<int>());
  }
  if ((!out.anchors.empty() && out.anchors[0] != 0) || !std::ranges::is_sorted(out.anchors) ||
      !numbers(in["channel_sizes"], out.channel_sizes, layers) || !numbers(in["expert_betas"], out.expert_betas, layers))
    return damaged;
  return out;
}

Status VerifyCalibration::save(const std::string& path) const { return write_atomically(path, to_json() + "\n"); }
}
