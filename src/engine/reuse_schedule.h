// ReuseSchedule: which layers of a model with natively trained sparse attention take the choice of the layer before, found by
// greedy calibration (IndexCache, algorithm 1; SSV, section 5.2) and kept in a small file that names its model.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "base/failure.h"
#include "engine/cost_table.h"
#include "engine/parts.h"

namespace hunch {

// What a file that is good for one model alone says of it.
struct ModelIdentity {
  std::string name, hash;  // hash: of every tensor's name, type and shape and of its first and last bytes
  int64_t bytes = 0;       // of the files
  int layers = 0;
  std::string text() const;  // "wren-nsa-8m (8 layers, 8701952 bytes, 1f2e...)"
  bool operator==(const ModelIdentity& o) const { return hash == o.hash && bytes == o.bytes && layers == o.layers; }
};
ModelIdentity identity_of(const Checkpoint&);
// "model" of such a file, and back. Errors: damaged; of another model, naming both and `again`, the command that makes it anew.
nlohmann::json identity_json(const ModelIdentity&);
Status check_identity(const nlohmann::json& file, const ModelIdentity&, std::string_view again);
template <class T>
Result<T> load_of_model(const std::string& path, const ModelIdentity& model, std::string_view again) {
  std::string text;
  bool found = false;
  HUNCH_OK(read_cache_file(path, text, found));
  if (!found) return usage_error("{}: there is no such file; {} makes one", path, again);
  auto read = T::from_json(text, model);
  if (!read.ok()) return usage_error("{}: {}", path, read.error().message);
  return read;
}

struct ReuseSchedule {
  struct Step {
    int layer = 0;    // flipped next
    double loss = 0;  // nats a token with it and all before it reusing
  };
  ModelIdentity model;
  int64_t tokens = 0;       // scored
  double loss = 0;          // nats a token where every layer chooses
  double budget = 0.005;    // of the loss, that reuse may add
  std::vector<Step> steps;  // the whole trace

  // Of the longest part of the trace that ends within the budget, ascending.
  std::vector<int> layers() const;

  std::string to_json() const;
  static Result<ReuseSchedule> from_json(std::string_view, const ModelIdentity&);
  // Errors name the file.
  static Result<ReuseSchedule> load(const std::string& path, const ModelIdentity&);
};

// Greedy: of the layers that still choose, the one is flipped with which the texts' ends (`scored` tokens each) lose least.
// `progress` after every evaluation, false to stop. Errors: no such model, texts too short, stopped, the device.
Result<ReuseSchedule> calibrate_reuse(
    EngineParts&, std::span<const Tokens> texts, int64_t scored, const std::function<bool(int done, int total)>& progress);

}
