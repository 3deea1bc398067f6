#include "engine/strategy_profile.h"

#include <nlohmann/json.hpp>

namespace hunch {
namespace {

using nlohmann::json;
constexpr std::string_view kAgain = "hunch tune --profile";

// A whole number of an object in [low, high], or -1.
int64_t whole(const json& object, const char* key, int64_t low, int64_t high) {
  if (!object.is_object() || !object.contains(key) || !object[key].is_number_integer()) return -1;
  const int64_t n = object[key].get<int64_t>();
  return n >= low && n <= high ? n : -1;
}

double number(const json& object, const char* key) {
  if (!object.contains(key) || !object[key].is_number()) return -1;
  const double x = object[key].get<double>();
  return std::isfinite(x) ? x : -1;
}

bool read(const json& in, RankedStrategy& out) {
  const int64_t depth = whole(in, "depth", 0, 256), nodes = whole(in, "nodes", depth, 256), top_k = whole(in, "top_k", 1, 16);
  const int64_t group = whole(in, "group_rows", 1, 64);
  if (depth < 0 || nodes < 0 || (nodes > 0) != (depth > 0) || top_k < 0 || group < 0 || !in.contains("traversal")) return false;
  out = {int(depth), int(nodes), int(top_k), int(group), in["traversal"] == "dfs", number(in, "tokens_per_second"),
      number(in, "accepted")};
  return out.tokens_per_second >= 0 && out.accepted >= 0;
}

}

std::vector<int64_t> strategy_regimes(int64_t context_len) {
  std::vector<int64_t> out{4096};
  while (out.back() < context_len) out.push_back(out.back() < 16384 ? out.back() + 4096 : 2 * out.back());
  return out;
}

std::string StrategyProfile::to_json() const {
  json out = {
      {"version", 1},
      {"model", identity_json(model)},
      {"drafter", drafter},
      {"reuse_layers", reuse_layers},
      {"rows", json::array()},
  };
  for (const Row& row : rows) {
    json ranked = json::array();
    for (const RankedStrategy& s : row.ranked)
      ranked.push_back({{"depth", s.depth}, {"nodes", s.nodes}, {"top_k", s.top_k}, {"group_rows", s.group_rows},
          {"traversal", s.depth_first ? "dfs" : "bfs"}, {"tokens_per_second", s.tokens_per_second}, {"accepted", s.accepted}});
    out["rows"].push_back({
        {"precision_class", row.precision_class},
        {"first_len", row.first_len},
        {"last_len", row.last_len},
        {"ranked", std::move(ranked)},
    });
  }
  return out.dump();
}

Result<StrategyProfile> StrategyProfile::from_json(std::string_view text, const ModelIdentity& model) {
  const json in = json::parse(text, nullptr, /*allow_exceptions=*/false);
  HUNCH_OK(check_identity(in, model, kAgain));
  const Error damaged{fmt::format("it is damaged; {} makes a new one", kAgain)};
  if (!in.contains("drafter") || !in["drafter"].is_string() || !in.contains("reuse_layers") || !in["reuse_layers"].is_array() ||
      !in.contains("rows") || !in["rows"].is_array() || in["rows"].empty())
    return damaged;
  StrategyProfile out{.model = model, .drafter = in["drafter"].get<std::string>()};
  for (const json& layer : in["reuse_layers"]) {
    if (!layer.is_number_integer() || layer.get<int64_t>() < 1 || layer.get<int64_t>() >= model.layers) return damaged;
    out.reuse_layers.push_back(int(layer.get<int64_t>()));
  }
  for (const json& r : in["rows"]) {
    Row row{.first_len = whole(r, "first_len", 0, int64_t(1) << 40), .last_len = whole(r, "last_len", 1, int64_t(1) << 40)};
    if (row.first_len < 0 || row.last_len <= row.first_len || !r.contains("precision_class") ||
        !r["precision_class"].is_string() || !r.contains("ranked") || !r["ranked"].is_array())
      return damaged;
    row.precision_class = r["precision_class"].get<std::string>();
    bool plain = false;
    for (const json& s : r["ranked"]) {
      RankedStrategy strategy;
      if (!read(s, strategy) || row.ranked.size() > kRankedStrategies) return damaged;
      plain = plain || strategy.depth == 0;
      row.ranked.push_back(strategy);
    }
    if (!plain ||
        (!out.rows.empty() && out.rows.back().precision_class == row.precision_class && out.rows.back().last_len >= row.last_len))
      return damaged;
    out.rows.push_back(std::move(row));
  }
  return out;
}

Result<StrategyProfile> StrategyProfile::load(const std::string& path, const ModelIdentity& model) {
  return load_of_model<StrategyProfile>(path, model, kAgain);
}

bool StrategyGuard::go_to(size_t at) {
  const bool other = at != at_;
  at_ = at, mean_ = now().accepted, rounds_ = below_ = 0;
  return other;
}

// Below expectation: fewer guesses are accepted than were when it was profiled, or it is slower than plain decoding was then.
bool StrategyGuard::record(int accepted, double ms) {
  Seen& seen = seen_[at_];
  seen.tokens += accepted + 1, seen.ms += ms;
  mean_ += options_.alpha * (accepted - mean_);
  if (settled_ || now().depth == 0 || ++rounds_ <= options_.warm_up) return false;
  const bool slow = seen.ms > 0 && seen.speed() < options_.rho * row_->ranked[plain()].tokens_per_second;
  below_ = mean_ < options_.rho * now().accepted || slow ? below_ + 1 : 0;
  if (below_ < options_.patience) return false;
  if (changes_ < options_.most_changes && at_ + 1 < row_->ranked.size()) {
    ++changes_;
    return go_to(at_ + 1);
  }
  // The best of what this request has seen; plain decoding, if it has not run, by what it was profiled at.
  settled_ = true;
  size_t best = at_;
  const auto speed = [&](size_t i) {
    return i == plain() && seen_[i].ms == 0 ? row_->ranked[i].tokens_per_second : seen_[i].speed();
  };
  for (size_t i = 0; i < seen_.size(); ++i)
    if (speed(i) > speed(best)) best = i;
  return go_to(best);
}

}
