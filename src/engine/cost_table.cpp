#include "engine/cost_table.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/failure.h"

namespace hunch {
namespace {

using nlohmann::json;

// Standard deviations of logarithms. The bytes of a pass are known and its bandwidth within a factor; arithmetic less so.
constexpr double kTermDeviation[] = {0.7, 0.7, 0.5, 0.7, 0.5, 0.7, 0.3};
constexpr double kNodeDeviation = 0.25;  // what the terms miss: tiles, caches, barriers
constexpr double kNoise = 0.06;          // of one pass on a machine that does other things too
// Variance that estimates regain per pass, so that they follow neighbours who take bandwidth and give it back.
constexpr double kTermDrift = 1e-5, kSpeedDrift = 1e-4, kNodeDrift = 5e-5;
constexpr double kClip = 2.5;       // deviations beyond which a time counts as an outlier
constexpr double kLimit = 30;       // |log| of an estimate; a device reads an entry in 1e-6 ms, exp(-14)
constexpr double kEntryUnit = 512;  // the entry axis is log2(1 + entries / this): its first node is "no cache to speak of"
constexpr int kVersion = 3;

// (x^4 + y^4)^(1/4): within 19 % of the maximum where both are equal, as overlapping work is.
double either(double x, double y) {
  const double x2 = x * x, y2 = y * y;
  return std::sqrt(std::sqrt(x2 * x2 + y2 * y2));
}

bool sane(const json& value, double low, double high) {
  return value.is_number() && std::isfinite(value.get<double>()) && value.get<double>() >= low && value.get<double>() <= high;
}

}

PassModel::PassModel(const Terms& prior) {
  const double values[] = {prior.fixed, prior.sequence, prior.weights, prior.weight_row, prior.entry, prior.entry_row, 1.0};
  for (int i = 0; i < kTerms; ++i) {
    HUNCH_CHECK(values[i] > 0);
    terms_[i] = {std::log(values[i]), kTermDeviation[i] * kTermDeviation[i]};
  }
  nodes_.fill({0, kNodeDeviation * kNodeDeviation});
  take_powers();
}

PassModel::Parts PassModel::parts(const PassShape& shape) const {
  Parts out;
  const double sequences = std::max(1, shape.sequences), rows = std::max(shape.rows, sequences);
  const double widest = std::max(shape.widest, rows / sequences);
  const auto& t = values_;
  const double wm = t[2], wr = t[3] * rows, em = t[4] * shape.entries, er = t[5] * shape.entries * widest;
  const double w = either(wm, wr), e = either(em, er), sum = t[0] + t[1] * sequences + w + e;
  const auto share = [&](double x, double of) {  // d either / d log x, over the sum
    const double r = of > 0 ? x / of : 0;
    return of * r * r * r * r / sum;
  };
  out.shares = {t[0] / sum, t[1] * sequences / sum, share(wm, w), share(wr, w), share(em, e), share(er, e), 1};
  out.log_ms = std::log(sum) + terms_[kTerms - 1].mean;

  const double axes[] = {std::log2(widest), std::log2(1 + shape.entries / sequences / kEntryUnit), std::log2(sequences)};
  constexpr int kCounts[] = {kRowNodes, kEntryNodes, kSequenceNodes};
  int low[3];
  double part[3];
  for (int i = 0; i < 3; ++i) {
    const double at = std::clamp(axes[i], 0.0, double(kCounts[i] - 1));
    low[i] = std::min(int(at), kCounts[i] - 2);
    part[i] = at - low[i];
  }
  for (int corner = 0; corner < 8; ++corner) {
    const int a = corner & 1, b = corner >> 1 & 1, c = corner >> 2;
    const double weight = (a ? part[0] : 1 - part[0]) * (b ? part[1] : 1 - part[1]) * (c ? part[2] : 1 - part[2]);
    const int node = ((low[2] + c) * kEntryNodes + low[1] + b) * kRowNodes + low[0] + a;
    out.corners[corner] = {node, weight};
    out.log_ms += weight * nodes_[node].mean;
  }
  return out;
}

// A Kalman filter over the logarithms with a diagonal covariance: every estimate moves by its share in the pass and by how little
// is known of it.
void PassModel::record(const PassShape& shape, double ms) {
  if (!std::isfinite(ms) || ms <= 0) return;
  const Parts p = parts(shape);
  double variance = kNoise * kNoise;
  const auto add_drift = [](Estimate& e, double share, double drift, double most) {
    e.variance = std::min(e.variance + drift * share, most);
  };
  for (int i = 0; i < kTerms; ++i) {
    const double deviation = kTermDeviation[i], s = p.shares[i];
    add_drift(terms_[i], s, i == kTerms - 1 ? kSpeedDrift : kTermDrift, deviation * deviation);
    variance += terms_[i].variance * s * s;
  }
  for (const Corner& c : p.corners) {
    add_drift(nodes_[c.node], c.weight, kNodeDrift, kNodeDeviation * kNodeDeviation);
    variance += nodes_[c.node].variance * c.weight * c.weight;
  }
  const double bound = kClip * std::sqrt(variance);
  const double error = std::clamp(std::log(ms) - p.log_ms, -bound, bound);
  const auto update = [&](Estimate& e, double share) {
    const double gain = e.variance * share / variance;
    e.mean = std::clamp(e.mean + gain * error, -kLimit, kLimit);
    e.variance *= 1 - gain * share;
  };
  for (int i = 0; i < kTerms; ++i) update(terms_[i], p.shares[i]);
  for (const Corner& c : p.corners) update(nodes_[c.node], c.weight);
  take_powers();
  ++recorded_;
}

bool PassModel::known(const PassShape& shape) const {
  const Parts p = parts(shape);
  for (const Corner& c : p.corners)
    if (c.weight >= 0.125 && nodes_[c.node].variance < 0.9 * kNodeDeviation * kNodeDeviation) return true;
  return false;
}

json PassModel::to_json() const {
  json out = {{"recorded", recorded_}, {"terms", json::array()}, {"nodes", json::array()}};
  for (const Estimate& e : terms_) out["terms"].push_back({e.mean, e.variance});
  for (int i = 0; i < kNodes; ++i)
    if (const Estimate& e = nodes_[i]; e.mean != 0) out["nodes"].push_back({i, e.mean, e.variance});
  return out;
}

Status PassModel::from_json(const json& in) {
  const Error damaged{"damaged times of passes"};
  if (!in.is_object() || !in.contains("terms") || !in.contains("nodes") || !in.contains("recorded")) return damaged;
  const json &terms = in["terms"], &nodes = in["nodes"];
  if (!terms.is_array() || terms.size() != kTerms || !nodes.is_array() || !sane(in["recorded"], 0, 1e18)) return damaged;
  PassModel read = *this;
  read.nodes_.fill({0, kNodeDeviation * kNodeDeviation});
  const auto estimate = [](const json& pair, size_t at, double deviation, Estimate& out) {
    if (!sane(pair[at], -kLimit, kLimit) || !sane(pair[at + 1], 0, deviation * deviation * 1.0001)) return false;
    out = {pair[at].get<double>(), pair[at + 1].get<double>()};
    return true;
  };
  for (size_t i = 0; i < kTerms; ++i)
    if (!terms[i].is_array() || terms[i].size() != 2 || !estimate(terms[i], 0, kTermDeviation[i], read.terms_[i])) return damaged;
  for (const json& node : nodes)
    if (!node.is_array() || node.size() != 3 || !sane(node[0], 0, kNodes - 1) ||
        !estimate(node, 1, kNodeDeviation, read.nodes_[node[0].get<double>()]))
      return damaged;
  read.recorded_ = int64_t(in["recorded"].get<double>());
  read.take_powers();
  *this = read;
  return {};
}

namespace {

// A pass is read out of memory or, small, the starts of its kernels, a dozen a layer. 160 rows hide behind weights.
PassModel::Terms device_terms(double weights, double entry, int layers) {
  return {
      .fixed = layers * 0.03,
      .sequence = 0.002,
      .weights = weights,
      .weight_row = weights / 160,
      .entry = entry,
      .entry_row = entry / 40,
  };
}

}

CostTable::CostTable(const CostPriors& priors) : verify({}) {
  // Arithmetic is guessed low on purpose (eight rows hide behind the cache they read): what looks cheap is tried and corrected,
  // what looks dear never.
  const double ms_per_byte = 1e3 / priors.bytes_per_second;
  const double weights = priors.weight_bytes * ms_per_byte, entry = priors.kv_bytes_per_token * ms_per_byte;
  if (priors.device_layers > 0) {
    verify = PassModel(device_terms(weights, entry, priors.device_layers));
    for (const CostPriors::Draft& draft : priors.drafts) {
      const double kv = draft.kv_bytes_per_token > 0 ? draft.kv_bytes_per_token * ms_per_byte : entry;
      drafts.push_back({draft.name,
          PassModel(device_terms(draft.weight_bytes * ms_per_byte, kv, draft.layers ? draft.layers : priors.device_layers)),
          PassModel({.fixed = 0.05,
              .sequence = 0.005,
              .weights = 1e-3,
              .weight_row = 1e-4,
              .entry = entry / 10,
              .entry_row = entry / 100})});
    }
    return;
  }
  verify = PassModel(
      {.fixed = 0.02, .sequence = 0.01, .weights = weights, .weight_row = weights / 16, .entry = entry, .entry_row = entry / 7});
  for (const CostPriors::Draft& draft : priors.drafts) {
    const double w = draft.weight_bytes * ms_per_byte;
    const double entry = (draft.kv_bytes_per_token > 0 ? draft.kv_bytes_per_token : priors.kv_bytes_per_token) * ms_per_byte;
    // Selected entries and coarser weights stay in the caches: half of what memory would take. Choosing entries reads scores, a
    // small part of theirs.
    drafts.push_back({
        draft.name,
        PassModel({
            .fixed = 0.02,
            .sequence = 0.005,
            .weights = w / 2,
            .weight_row = w / 16,
            .entry = entry / 2,
            .entry_row = entry / 8,
        }),
        PassModel(
            {.fixed = 0.01, .sequence = 0.03, .weights = 1e-3, .weight_row = 1e-4, .entry = entry / 6, .entry_row = entry / 32}),
    });
  }
}

double ChainStart::steps() const {
  constexpr double kPrior = 0.05;  // weight of: a step takes a step, the start nothing
  const auto [one, x, xx, y, xy] = sums_;
  const double a = one + kPrior, b = xx + kPrior, c = xy + kPrior, slope = a * c - x * y, start = y * b - x * c;
  return slope > 0 ? std::clamp(start / slope, 0.0, 20.0) : 0;
}

void ChainStart::record(double steps, double took) {
  constexpr double kKeep = 0.98, kOutlier = 3;
  took = std::min(took, kOutlier * (steps + this->steps()));
  const double weight = 1 / ((1 + steps) * (1 + steps));  // errors are shares of the whole
  const double terms[] = {1, steps, steps * steps, took, took * steps};
  for (size_t i = 0; i < sums_.size(); ++i) sums_[i] = kKeep * sums_[i] + weight * terms[i];
}

json ChainStart::to_json() const { return sums_; }

Status ChainStart::from_json(const json& in) {
  if (!in.is_array() || in.size() != sums_.size()) return Error{"damaged times of chains"};
  for (size_t i = 0; i < sums_.size(); ++i) {
    if (!sane(in[i], 0, 1e9)) return Error{"damaged times of chains"};
    sums_[i] = in[i].get<double>();
  }
  return {};
}

void CostTable::Draft::record_chain(const PassShape& shape, double steps, double ms) {
  if (!std::isfinite(ms) || ms <= 0 || steps <= 0) return;
  start.record(steps, ms / step.ms(shape));
  step.record(shape, ms / (steps + start.steps()));
}

std::string CostKey::text() const {
  return fmt::format("{}; {} threads; {}; {}, {} bytes; kv {}", machine, threads, build, model, model_bytes, kv_type);
}

std::string CostTable::to_json(const CostKey& key) const {
  json out = {{"version", kVersion}, {"key", key.text()}, {"verify", verify.to_json()}, {"drafts", json::object()}};
  for (const Draft& d : drafts)
    out["drafts"][d.name] = {{"step", d.step.to_json()}, {"learn", d.learn.to_json()}, {"start", d.start.to_json()}};
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

Status CostTable::from_json(std::string_view text, const CostKey& key) {
  const json in = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!in.is_object() || !in.contains("verify") || !in.contains("drafts") || !in["drafts"].is_object())
    return Error{"it is damaged"};
  if (!in.contains("version") || in["version"] != kVersion) return Error{"it is of another version"};
  // Through the same writer, so that a name that is no UTF-8 equals itself.
  if (!in.contains("key") || in["key"] != json::parse(json(key.text()).dump(-1, ' ', false, json::error_handler_t::replace)))
    return Error{"it is of another machine, build or model"};
  CostTable read = *this;
  HUNCH_OK(read.verify.from_json(in["verify"]));
  for (Draft& d : read.drafts) {
    if (!in["drafts"].contains(d.name)) continue;
    const json& saved = in["drafts"][d.name];
    if (!saved.is_object() || !saved.contains("step") || !saved.contains("learn") || !saved.contains("start"))
      return Error{"it is damaged"};
    HUNCH_OK(d.step.from_json(saved["step"]));
    HUNCH_OK(d.learn.from_json(saved["learn"]));
    HUNCH_OK(d.start.from_json(saved["start"]));
  }
  *this = std::move(read);
  return {};
}

Status CostTable::load(const std::string& path, const CostKey& key, bool* found) {
  std::string text;
  bool there = false;
  HUNCH_OK(read_cache_file(path, text, there));
  if (found) *found = there;
  if (!there) return {};
  if (const Status status = from_json(text, key); !status.ok())
    return failure("the table of costs is ignored, {}: {}", status.error().message, path);
  return {};
}

Status CostTable::save(const std::string& path, const CostKey& key) const { return write_atomically(path, to_json(key)); }

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name") && line.find(": ") != line.npos) return line.substr(line.find(": ") + 2);
  return "unknown";
}

std::string cache_path(std::string_view kind, const CostKey& key) {
  std::string folder;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache && cache[0] == '/') folder = cache;
  else if (const char* home = std::getenv("HOME"); home && home[0] == '/') folder = std::string(home) + "/.cache";
  else return {};
  uint64_t hash = 14695981039346656037u;  // FNV-1a; the file states its key in full, so a collision is noticed
  for (const char c : key.text()) hash = (hash ^ uint8_t(c)) * 1099511628211u;
  return fmt::format("{}/hunch/{}-{:016x}.json", folder, kind, hash);
}

Status write_atomically(const std::string& path, std::string_view text) {
  if (path.empty()) return Error{"no folder for caches: set XDG_CACHE_HOME or HOME"};
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), error);
  const std::filesystem::path found = std::filesystem::canonical(path, error);
  const std::string to = error ? path : found.string();                        // behind links
  const bool replaces = error || std::filesystem::is_regular_file(to, error);  // a device is written to
  static std::atomic<int> nth = 0;  // two engines may end at once, in one process or two
  const std::string temporary = replaces ? fmt::format("{}.{}.{}", to, getpid(), ++nth) : to;
  {
    std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
    file.write(text.data(), std::streamsize(text.size()));
    file.flush();
    if (!file) {
      if (replaces) std::filesystem::remove(temporary, error);
      return failure("cannot write {}: is the folder writable, and is there space?", temporary);
    }
  }
  if (!replaces) return {};
  std::filesystem::rename(temporary, to, error);
  if (!error) return {};
  const std::string why = error.message();
  std::filesystem::remove(temporary, error);
  return failure("cannot replace {}: {}", path, why);
}

Status read_cache_file(const std::string& path, std::string& text, bool& found) {
  constexpr std::streamoff kMost = 16 << 20;
  found = false;
  if (path.empty()) return {};
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return {};
  if (!std::filesystem::is_regular_file(path, error)) return failure("not a file: {}", path);
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file ? std::streamoff(file.tellg()) : -1;
  if (size < 0 || size > kMost) return failure("cannot be read, or above 16 MiB: {}", path);
  text.resize(size);
  file.seekg(0);
  file.read(text.data(), size);
  if (!file) return failure("cannot be read: {}", path);
  found = true;
  return {};
}

}
