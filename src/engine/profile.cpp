#include "engine/profile.h"

#include <nlohmann/json.hpp>

#include "base/failure.h"

namespace hunch {
namespace {

using nlohmann::json;
constexpr int kVersion = 1;
// A sample of prompts says what such texts are like, not what the next one is: it counts for as many rounds at most.
constexpr double kMostRounds = 40;

bool in_range(const json& object, const char* key, double low, double high) {
  if (!object.contains(key) || !object[key].is_number()) return false;
  const double value = object[key].get<double>();
  return std::isfinite(value) && value >= low && value <= high;
}

// As it reads back: what is no UTF-8 is replaced.
std::string written(const CostKey& key) {
  const json text = json::parse(json(key.text()).dump(-1, ' ', false, json::error_handler_t::replace));
  return text.get<std::string>();
}

}

std::string Profile::to_json(const CostKey& key) const {
  json out = {{"version", kVersion}, {"key", written(key)}, {"ratio", ratio}, {"gamma", gamma}, {"seen", json::array()}};
  for (const Seen& s : seen)
    out["seen"].push_back({{"context", s.context_len}, {"rounds", s.rounds}, {"acceptance", s.acceptance}});
  return out.dump();
}

Result<Profile> Profile::from_json(std::string_view text, const CostKey& key) {
  const Error damaged{"it is damaged"};
  const json in = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!in.is_object() || !in.contains("version") || in["version"] != kVersion) return damaged;
  if (!in.contains("key") || in["key"] != written(key)) return Error{"it is of another machine, build or model"};
  if (!in_range(in, "ratio", 0, 1) || !in_range(in, "gamma", 0, 1024) || !in.contains("seen") || !in["seen"].is_array())
    return damaged;
  Profile out;
  out.ratio = in["ratio"].get<double>(), out.gamma = int(in["gamma"].get<double>());
  for (const json& s : in["seen"]) {
    if (!s.is_object() || !in_range(s, "context", 0, 1e12) || !in_range(s, "rounds", 0, 1e12) || !s.contains("acceptance") ||
        !s["acceptance"].is_array())
      return damaged;
    Seen seen{.context_len = int64_t(s["context"].get<double>()), .rounds = s["rounds"].get<double>()};
    for (const json& a : s["acceptance"]) {
      if (!a.is_number() || !(a.get<double>() >= 0 && a.get<double>() <= 1)) return damaged;
      seen.acceptance.push_back(a.get<double>());
    }
    out.seen.push_back(std::move(seen));
  }
  return out;
}

Status Profile::load(const std::string& path, const CostKey& key, Profile& out, bool& found) {
  std::string text;
  HUNCH_OK(read_cache_file(path, text, found));
  if (!found) return {};
  auto read = from_json(text, key);
  if (!read.ok()) {
    found = false;
    return failure("the profile is ignored, {}; hunch tune makes a new one: {}", read.error().message, path);
  }
  out = std::move(*read);
  return {};
}

void Profile::apply(Planner& planner, int arm) const {
  for (const Seen& s : seen)
    planner.seed(
        arm, s.context_len, s.acceptance, std::min(s.rounds, kMostRounds), int(std::min<int64_t>(s.context_len, kQualities)));
}

Profile Profile::of(const Planner& planner, int arm) {
  Profile out;
  for (int bucket = 0; bucket < kQualities; ++bucket) {
    const int64_t context = planner.options().arms[arm].passes ? int64_t(512) << bucket : bucket;
    const double rounds = planner.rounds_seen(arm, context, bucket);
    const auto acceptance = planner.acceptance(arm, context, bucket);
    if (rounds > 0) out.seen.push_back({context, rounds, {acceptance.begin(), acceptance.end()}});
  }
  return out;
}

}
