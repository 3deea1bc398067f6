#include "engine/engine_costs.h"

#include <fmt/format.h>

#include "base/dtype.h"
#include "engine/bench.h"

namespace hunch {

CostKey cost_key(const EngineParts& parts) {
#ifdef HUNCH_COMMIT
  const std::string build = HUNCH_COMMIT;
#else
  const std::string build = "unknown build";
#endif
  return {
      .machine = processor_name() + ", " + parts.backend->description(),
      .threads = parts.backend->threads(),
      .build = build,
      .model = parts.model->shape().name,
      .kv_type = std::string(dtype_info(parts.geometry.dtype).name),
      .model_bytes = int64_t(parts.model->weight_bytes()),
  };
}

std::string draft_kind_name(const RequestPlan& plan) {
  const std::string weights = plan.draft_weights ? std::string(dtype_info(*plan.draft_weights).name) : "target";
  auto name = fmt::format("{}@{}", weights, plan.policy.ratio);
  const auto& skipped = plan.policy.skip_layers;
  if (!skipped.empty()) name += fmt::format(" without {} layers", std::ranges::count(skipped, uint8_t(1)));
  if (plan.policy.layer_step > 1) name += fmt::format(" step {}", plan.policy.layer_step);
  if (!plan.proposing.self_lookup.empty()) name += " with " + plan.proposing.self_lookup;
  return name;
}

CostPriors cost_priors(EngineParts& parts, const RequestPlan& plan) {
  const ModelShape& shape = parts.model->shape();
  const double bytes = parts.model->weight_bytes(), bits = parts.bits_per_weight();
  // Nominal bits a weight, scales included.
  const double draft_bits = !plan.draft_weights ? bits : *plan.draft_weights == DType::Q4_0 ? 4.5 : 8.5;
  const double element = double(kv_row_bytes(parts.geometry.dtype, parts.geometry.head_dim)) / parts.geometry.head_dim;
  CostPriors out;
  if (parts.backend->asynchronous()) out.bytes_per_second = 3e12, out.device_layers = int(shape.layers);
  out.weight_bytes = bytes;
  out.kv_bytes_per_token = 2.0 * shape.layers * shape.kv_heads * shape.head_dim * element;
  // Compressed rows grow with the context, all else that sparse attention reads does not.
  if (shape.nsa.used()) out.kv_bytes_per_token /= shape.nsa.cmp_stride;
  out.drafts = {{draft_kind_name(plan), bits > 0 ? bytes * std::min(1.0, draft_bits / bits) : bytes}};
  for (const EngineParts::Learned& drafter : parts.learned) {
    const auto kv = drafter.proposer->needs().kv;
    out.drafts.push_back({drafter.name, double(drafter.proposer->weight_bytes()),
        kv ? 2.0 * kv->layers * kv->kv_heads * kv->head_dim * element : 1.0, kv ? std::max(1, kv->layers) : 1});
  }
  return out;
}

Status measure_costs(EngineParts& parts, const RequestPlan& plan, std::span<const int64_t> depths, std::span<const int64_t> rows,
    int repeats, CostTable& table) {
  HUNCH_CHECK(!table.drafts.empty());
  RequestPlan wide = plan;
  for (const int64_t r : rows) wide.gamma = std::max(wide.gamma, int(r) - 1);
  // A median counts as several passes, so that noise which single passes taught the table gives way to it.
  constexpr int kWeight = 6;
  for (const int64_t depth : depths) {
    if (depth + wide.gamma + 1 > parts.context_len) continue;
    HUNCH_TRY(const auto bench, DepthBench::make(parts, depth, wide));
    const double entries = depth, read = std::max(plan.policy.ratio * entries, double(plan.policy.min_tokens));
    const auto record = [](PassModel& model, const PassShape& shape, double ms) {
      for (int i = 0; i < kWeight; ++i) model.record(shape, ms);
    };
    record(table.verify, {.rows = 1, .entries = entries}, bench->plain(repeats).ms);
    for (const int64_t r : rows)
      record(table.verify, {.rows = double(r), .entries = entries}, bench->verify(int(r), repeats, false).ms);
    record(table.drafts[0].step, {.rows = 1, .entries = std::min(read, entries)}, bench->draft(repeats).ms);
    // What learning adds: choosing and copying, and the scores inside of attention.
    const int usual = plan.gamma + 1;
    const double bare = bench->verify(usual, repeats, false).ms;
    const PassCost learning = bench->verify(usual, repeats, true);
    record(table.drafts[0].learn, {.rows = 1, .entries = entries}, std::max(learning.ms - bare, learning.select_ms));
  }
  return {};
}

double best_gain(const CostTable& table, const Arm& arm, double each_context, int batch, double acceptance, int& gamma) {
  const double entries = each_context * batch;
  const double plain = table.verify.ms({.rows = double(batch), .sequences = batch, .entries = entries});
  double step = 0, learn = 0;
  if (arm.passes) {
    const CostTable::Draft& kind = table.drafts[arm.draft_kind];
    const double read = std::min(each_context, std::max(arm.ratio * each_context, arm.min_entries)) * batch;
    step = kind.step.ms({.rows = double(batch), .sequences = batch, .entries = read});
    learn = kind.learn.ms({.rows = double(batch), .sequences = batch, .entries = entries});
  }
  double best = 0, tokens = 1, kept = 1;
  for (int g = 1; g <= std::min(arm.max_gamma, kMaxPlannedDraft); ++g) {
    kept *= acceptance, tokens += kept;
    const double verify = table.verify.ms({.rows = double(batch * (1 + g)), .sequences = batch, .entries = entries});
    const double gain = tokens * plain / (std::max(plain, verify) + g * step + learn);
    if (gain > best) best = gain, gamma = g;
  }
  return best;
}

BreakEven break_even(const CostTable& table, const Arm& arm, double each_context, int batch) {
  BreakEven out;
  if (best_gain(table, arm, each_context, batch, 1, out.gamma) <= 1) return out;
  out.possible = true;
  double low = 0, high = 1;  // the gain grows with the acceptance
  for (int i = 0; i < 30; ++i) {
    const double middle = 0.5 * (low + high);
    (best_gain(table, arm, each_context, batch, middle, out.gamma) > 1 ? high : low) = middle;
  }
  out.acceptance = high;
  best_gain(table, arm, each_context, batch, high, out.gamma);
  return out;
}

}
