#include "engine/verify_check.h"

#include "base/failure.h"

namespace hunch {
namespace {

bool thins_attention(const SparseVerification& s) { return s.ratio < 1; }
bool thins_channels(const SparseVerification& s) { return s.channel_threshold > 0 || s.channel_share > 0; }

Error needs_calibration(std::string_view what) {
  return usage_error(
      "{} needs a calibration of this model: hunch tune FILE --calibrate-verify OUT makes one, --verify-calibration OUT loads it",
      what);
}

}

Status check_sparse_values(const SpeculationOptions& o) {
  const SparseVerification& s = o.sparse;
  if (!s.on && !s.drafts) return {};
  HUNCH_CHECK(!s.on || !s.drafts);
  if (!o.verify) return usage_error("unverified decoding checks nothing: leave out the sparse verification");
  const auto wrong = [](std::string_view what, auto value, std::string_view allowed) {
    return usage_error("sparse verification: {} is {}; it must {}", what, value, allowed);
  };
  if (!(s.ratio > 0 && s.ratio <= 1)) return wrong("the ratio of entries", s.ratio, "lie in (0, 1]");
  if (s.dense_len < 0) return wrong("the dense length", s.dense_len, "be 0 or more");
  if (s.block < 1 || s.block > 1024) return wrong("the block", s.block, "hold 1 to 1024 entries");
  if (s.sink_blocks < 0 || s.recent_blocks < 0) return usage_error("sparse verification: blocks always read must be 0 or more");
  if (s.scope != "per_head" && s.scope != "joint") return wrong("the scope", s.scope, "be per_head or joint");
  if (s.group != "sum" && s.group != "max") return wrong("the group", s.group, "be sum or max");
  if (!(s.channel_threshold >= 0)) return wrong("the threshold of channels", s.channel_threshold, "be 0 or more");
  if (!(s.channel_share >= 0 && s.channel_share <= 0.95))
    return wrong("the share of channels", s.channel_share, "lie in [0, 0.95]");
  if (s.channel_threshold > 0 && s.channel_share > 0)
    return usage_error("sparse verification: a threshold of channels and a share of them: say one");
  if (s.skip_experts < 0) return wrong("the number of experts left out", s.skip_experts, "be 0 or more");
  if (!expert_skip_named(s.expert_mode))
    return wrong("the mode of experts", s.expert_mode, "be literal, graded, tail_mass or union_aware");
  if (!(s.expert_mass >= 0 && s.expert_mass < 1)) return wrong("the mass of experts left out", s.expert_mass, "lie in [0, 1)");
  const bool passes = o.proposer == "self" || o.proposer == "cascade" || o.proposer == "staged";
  if (s.drafts && !passes && o.proposer != "auto")
    return usage_error(
        "--verify drafts thins the passes of the model that draft, and method {} has none: say self, cascade or staged",
        o.proposer);
  if (s.on && thins_attention(s) && passes)
    return usage_error(
        "method {} guesses by what a check of all entries learns, and this check reads a part of them: say ngram, suffix or a "
        "drafter, or leave attention exact (--verify-ratio 1)",
        o.proposer);
  return {};
}

Result<CheckOptions> check_options(const EngineParts& parts, const SparseVerification& s) {
  const ModelShape& shape = parts.model->shape();
  CheckOptions out;
  if (!s.on && !s.drafts) return out;
  out.drafts = s.drafts;
  if (parts.backend->asynchronous() && thins_attention(s) && s.scope == "joint")
    return usage_error(
        "{} has a budget for each head alone: say --verify-scope per_head, or --device cpu", parts.backend->description());
  const VerifyCalibration* known = parts.calibration ? &*parts.calibration : nullptr;
  if (thins_attention(s)) {
    if (shape.nsa.used())
      return usage_error(
          "this model's attention is sparse as trained: sparse verification has nothing to choose (--verify-ratio 1)");
    out.attention = BlockBudget{
        .ratio = s.ratio,
        .dense_len = s.dense_len,
        .block = s.block,
        .sinks = s.sink_blocks,
        .recent = s.recent_blocks,
        .joint = s.scope == "joint",
        .max_of_group = s.group == "max",
    };
    if (s.reuse_layers) {
      if (known && known->anchors.empty())
        return usage_error(
            "--verify-reuse calibrated: the calibration has no anchors: no text of it was longer than --verify-dense");
      if (!known) return needs_calibration("--verify-reuse calibrated");
      out.anchors.assign(shape.layers, 0);
      for (const int layer : known->anchors) out.anchors[layer] = 1;
      // The first layer that chooses at all is one: nobody before it chose.
      for (int layer = 0; layer < shape.layers; ++layer)
        if (shape.window_of(layer) == 0) {
          out.anchors[layer] = 1;
          break;
        }
    }
  }
  if (thins_channels(s)) {
    if (shape.num_experts > 0)
      return usage_error(
          "sparse verification: channels inside experts are not left out yet; leave out experts (--verify-experts N)");
    if (s.channel_share > 0 && (!known || known->channel_sizes.empty())) return needs_calibration("--verify-channel-share");
    for (int layer = 0; layer < shape.layers; ++layer)
      out.thresholds.push_back(
          s.channel_share > 0 ? known->channel_threshold(layer, s.channel_share) : float(s.channel_threshold));
  }
  if (s.skip_experts > 0) {
    if (shape.num_experts == 0)
      return usage_error("sparse verification: {} has no experts to leave out (--verify-experts {})", shape.name, s.skip_experts);
    if (s.skip_experts >= shape.experts_per_token)
      return usage_error("sparse verification: a row goes to {} experts; at most {} may be left out, not {}",
          shape.experts_per_token, shape.experts_per_token - 1, s.skip_experts);
    ExpertRule rule{
        .mode = *expert_skip_named(s.expert_mode),
        .most = s.skip_experts,
        .mass = float(s.expert_mass),
        .renorm = s.expert_renorm,
    };
    if (rule.mode == ExpertSkip::Literal || rule.mode == ExpertSkip::Graded) {
      if (!known || known->expert_betas.empty()) return needs_calibration("--verify-expert-mode " + s.expert_mode);
      rule.betas = known->expert_betas;
      for (int layer = 0; layer < shape.layers; ++layer)
        if (shape.has_experts(layer) && int(rule.betas[layer].size()) < s.skip_experts)
          return needs_calibration(fmt::format("--verify-experts {}", s.skip_experts));
    }
    out.experts = std::move(rule);
  }
  return out;
}

std::unique_ptr<SparseCheck> make_check(const EngineParts& parts, CheckOptions options) {
  const ModelShape& shape = parts.model->shape();
  SparseCheck::Setup setup{.backend = parts.backend.get(), .geometry = parts.geometry};
  for (int layer = 0; layer < shape.layers; ++layer) setup.window.push_back(shape.window_of(layer));
  setup.max_rows = int(parts.limits.verify_rows);
  setup.options = std::move(options);
  return std::make_unique<SparseCheck>(std::move(setup));
}

void describe(const SparseCheck& check, const SparseVerification& asked, Approximation& out) {
  const SparseCheck::Counts& c = check.counts();
  out.passes = c.passes, out.rows = c.rows, out.entries = c.entries, out.entries_read = c.entries_read;
  out.channels = c.channels, out.channels_skipped = c.channels_skipped;
  out.channel_rows = c.channel_rows, out.channel_rows_below = c.channel_rows_below;
  out.experts = c.experts, out.experts_skipped = c.experts_skipped;
  out.reuse_layers = c.entries > 0 ? check.reuse_layers() : std::vector<int>();
  out.asked = asked;
}

}
