// Sections of hunch bench passes that time single passes over a cache filled to a depth.

#include "cli/bench.h"
#include "engine/bench.h"

namespace hunch {
namespace {

using nlohmann::ordered_json;

Result<std::unique_ptr<DepthBench>> bench_at(Engine& engine, int64_t depth, const SpeculationOptions& speculation, int gamma) {
  HUNCH_TRY(const RequestPlan plan, plan_for(engine, speculation, gamma));
  return DepthBench::make(engine.parts(), depth, plan);
}

// Depths that fit the context; a note on the others belongs to the caller.
std::vector<int64_t> fitting(const Engine& engine, const std::vector<int64_t>& depths, int gamma) {
  std::vector<int64_t> out;
  for (int64_t depth : depths)
    if (depth + gamma + 1 <= engine.context_len()) out.push_back(depth);
  return out;
}

// A tree of so many guesses: the best one where the likeliest token behind a node is right six times of ten and every next one
// half as often.
StaticTree usual_tree(int nodes) {
  constexpr int kDepth = 8, kRanks = 10;
  std::vector<float> accuracies;
  for (int level = 0; level < kDepth; ++level)
    for (int rank = 0; rank < kRanks; ++rank) accuracies.push_back(rank == 0 ? 0.6f : 0.4f / float(1 << rank));
  StaticTree tree;
  tree.reserve(nodes, kDepth);
  tree.grow(View<const float, 2>(accuracies.data(), kDepth, kRanks), nodes);
  return tree;
}

double megabytes(uint64_t bytes) { return double(bytes) / 1e6; }

// Distinct experts that a pass reads, over all layers; models without have no such column.
void add_experts(ordered_json& row, const PassCost& cost) {
  if (cost.bytes.experts_read > 0) row["experts"] = cost.bytes.experts_read;
}

}

Result<RequestPlan> plan_for(Engine& engine, SpeculationOptions speculation, int gamma) {
  Request request;
  request.prompt = {0};
  request.sampling.temperature = 0.8, request.sampling.seed = 1;
  speculation.proposer = "self", speculation.num_tokens = gamma;
  request.speculation = speculation;
  return plan_request(request, engine.parts().checkpoint->sampling(), engine.parts().options.max_draft,
      engine.parts().model->shape().layers, engine.parts().bits_per_weight());
}

Result<BenchTable> bench_plain(Engine& engine, const BenchFlags& flags, double ceiling) {
  BenchTable table{"plain", "Plain decoding", {}, "share: (weights + KV) bytes / time over the streaming read of this run"};
  for (int64_t depth : fitting(engine, flags.depths, 1)) {
    HUNCH_TRY(const auto bench, bench_at(engine, depth, {}, 1));
    const PassCost cost = bench->plain(int(flags.repeats));
    const uint64_t bytes = cost.bytes.weight_bytes + cost.bytes.kv_bytes;
    const double rate = double(bytes) / (cost.ms * 1e-3);
    table.rows.push_back({{"context", depth}, {"ms", cost.ms}, {"tokens_per_s", 1e3 / cost.ms},
        {"weights_MB", megabytes(cost.bytes.weight_bytes)}, {"kv_MB", megabytes(cost.bytes.kv_bytes)}, {"GB_per_s", rate / 1e9},
        {"share_of_ceiling", ceiling > 0 ? ordered_json(rate / ceiling) : ordered_json()}});
    add_experts(table.rows.back(), cost);
  }
  return table;
}

Result<BenchTable> bench_verify(Engine& engine, const BenchFlags& flags, const SpeculationOptions& speculation) {
  int most = 1;
  for (const int64_t rows : flags.rows) most = std::max(most, int(rows));
  for (const int64_t nodes : flags.trees) most = std::max(most, int(nodes) + 1);
  BenchTable table{"verify", "Verify passes", {},
      "times_plain: against a plain step of this run; the scores come on top of the KV that a plain step reads; rows of "
      "a tree: its guesses and the pending token"};
  const auto depths = fitting(engine, flags.depths, most);
  if (depths.empty()) return table;
  const int64_t depth = std::ranges::max(depths);
  HUNCH_TRY(const auto bench, bench_at(engine, depth, speculation, std::max(1, most - 1)));
  const PassCost plain = bench->plain(int(flags.repeats));
  const auto row = [&](int rows, const char* kind, const PassCost& c) {
    table.rows.push_back({{"context", depth}, {"rows", rows}, {"pass", kind}, {"ms", c.ms}, {"times_plain", c.ms / plain.ms},
        {"select_ms", c.select_ms}, {"weights_MB", megabytes(c.bytes.weight_bytes)}, {"kv_MB", megabytes(c.bytes.kv_bytes)},
        {"scores_MB", megabytes(c.bytes.score_bytes)}, {"copied_MB", megabytes(c.bytes.gather_bytes)}});
    add_experts(table.rows.back(), c);
  };
  row(1, "plain", plain);
  for (int64_t rows : flags.rows) {
    row(int(rows), "bare", bench->verify(int(rows), int(flags.repeats), false));
    row(int(rows), "selecting", bench->verify(int(rows), int(flags.repeats), true));
  }
  for (int64_t nodes : flags.trees) row(int(nodes) + 1, "tree", bench->verify(usual_tree(int(nodes)), int(flags.repeats)));
  return table;
}

Result<BenchTable> bench_draft(Engine& engine, const BenchFlags& flags, const SpeculationOptions& speculation) {
  const int gamma = speculation.num_tokens > 0 ? speculation.num_tokens : 7;
  BenchTable table{
      "draft",
      "Draft steps, and the selection they read",
      {},
      fmt::format("with_guess_ms: a step of {} rows, as --self-lookup runs where a look-up found something", gamma),
  };
  for (int64_t depth : fitting(engine, flags.depths, gamma)) {
    if (depth < 1024) continue;  // the least budget would be most of the context
    HUNCH_TRY(const auto bench, bench_at(engine, depth, speculation, gamma));
    const PassCost plain = bench->plain(int(flags.repeats)), draft = bench->draft(int(flags.repeats));
    const PassCost verify = bench->verify(gamma + 1, int(flags.repeats), true);
    table.rows.push_back({{"context", depth}, {"draft_ms", draft.ms}, {"share_of_plain", draft.ms / plain.ms},
        {"with_guess_ms", bench->draft(int(flags.repeats), gamma).ms}, {"weights_MB", megabytes(draft.bytes.weight_bytes)},
        {"kv_MB", megabytes(draft.bytes.kv_bytes)}, {"select_ms_per_round", verify.select_ms},
        {"copied_MB_per_round", megabytes(verify.bytes.gather_bytes)}});
  }
  return table;
}

}
