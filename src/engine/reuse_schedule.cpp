#include "engine/reuse_schedule.h"

#include <nlohmann/json.hpp>

#include "engine/token_run.h"

namespace hunch {
namespace {

using nlohmann::json;
constexpr int kVersion = 1;
constexpr std::string_view kAgain = "hunch tune --reuse-layers";
constexpr size_t kHashed = 4096;  // bytes at either end of a tensor

void mix(uint64_t& hash, const void* data, size_t bytes) {  // FNV-1a
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001b3u;
}

bool is_number(const json& object, const char* key) {
  return object.is_object() && object.contains(key) && object[key].is_number() && std::isfinite(object[key].get<double>());
}

}

std::string ModelIdentity::text() const {
  return fmt::format("{} ({} layers, {} bytes, {})", name.empty() ? "a model without a name" : name, layers, bytes, hash);
}

ModelIdentity identity_of(const Checkpoint& model) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const Tensor& tensor : model.tensors()) {
    mix(hash, tensor.name.data(), tensor.name.size());
    mix(hash, &tensor.dtype, sizeof tensor.dtype), mix(hash, &tensor.seed, sizeof tensor.seed);
    mix(hash, tensor.shape.data(), tensor.shape.size() * sizeof(int64_t));
    if (!tensor.data) continue;
    const size_t part = std::min(kHashed, tensor.bytes);
    mix(hash, tensor.data, part), mix(hash, tensor.data + tensor.bytes - part, part);
  }
  return {model.shape().name, fmt::format("{:016x}", hash), int64_t(model.file_bytes()), model.shape().layers};
}

json identity_json(const ModelIdentity& m) {
  const json name = json::parse(json(m.name).dump(-1, ' ', false, json::error_handler_t::replace));
  return {{"name", name}, {"hash", m.hash}, {"bytes", m.bytes}, {"layers", m.layers}};
}

Status check_identity(const json& file, const ModelIdentity& model, std::string_view again) {
  const Error damaged{fmt::format("it is damaged; {} makes a new one", again)};
  if (!file.is_object() || !file.contains("version") || file["version"] != kVersion || !file.contains("model")) return damaged;
  const json& of = file["model"];
  if (!is_number(of, "bytes") || !is_number(of, "layers") || !of.contains("hash") || !of["hash"].is_string() ||
      !of.contains("name") || !of["name"].is_string())
    return damaged;
  const ModelIdentity theirs{of["name"].get<std::string>(), of["hash"].get<std::string>(), int64_t(of["bytes"].get<double>()),
      int(of["layers"].get<double>())};
  if (theirs == model) return {};
  return usage_error("it was made for {}, loaded is {}: make one for this model by {}", theirs.text(), model.text(), again);
}

std::vector<int> ReuseSchedule::layers() const {
  size_t kept = 0;
  for (size_t i = 0; i < steps.size(); ++i)
    if (steps[i].loss <= loss * (1 + budget)) kept = i + 1;
  std::vector<int> out;
  for (size_t i = 0; i < kept; ++i) out.push_back(steps[i].layer);
  std::ranges::sort(out);
  return out;
}

std::string ReuseSchedule::to_json() const {
  json out = {{"version", kVersion}, {"model", identity_json(model)}, {"tokens", tokens}, {"loss", loss}, {"budget", budget},
      {"reuse_layers", layers()}, {"steps", json::array()}};
  for (const Step& s : steps) out["steps"].push_back({{"layer", s.layer}, {"loss", s.loss}});
  return out.dump();
}

Result<ReuseSchedule> ReuseSchedule::from_json(std::string_view text, const ModelIdentity& model) {
  const json in = json::parse(text, nullptr, /*allow_exceptions=*/false);
  HUNCH_OK(check_identity(in, model, kAgain));
  const Error damaged{fmt::format("it is damaged; {} makes a new one", kAgain)};
  if (!is_number(in, "tokens") || !is_number(in, "loss") || !is_number(in, "budget") || !in.contains("steps") ||
      !in["steps"].is_array())
    return damaged;
  ReuseSchedule out{
      .model = model,
      .tokens = int64_t(in["tokens"].get<double>()),
      .loss = in["loss"].get<double>(),
      .budget = in["budget"].get<double>(),
  };
  std::vector<uint8_t> seen(model.layers, 0);
  for (const json& s : in["steps"]) {
    if (!is_number(s, "layer") || !is_number(s, "loss")) return damaged;
    const double layer = s["layer"].get<double>();
    if (layer < 1 || layer >= model.layers || layer != std::floor(layer) || std::exchange(seen[layer], uint8_t(1)))
      return damaged;
    out.steps.push_back({int(layer), s["loss"].get<double>()});
  }
  return out;
}

Result<ReuseSchedule> ReuseSchedule::load(const std::string& path, const ModelIdentity& model) {
  return load_of_model<ReuseSchedule>(path, model, kAgain);
}

Result<ReuseSchedule> calibrate_reuse(
    EngineParts& parts, std::span<const Tokens> texts, int64_t scored, const std::function<bool(int, int)>& progress) {
  const int layers = parts.model->shape().layers;
  if (!parts.model->shape().nsa.used())
    return usage_error("reuse layers are for models with natively trained sparse attention, and this one ({}) has none",
        parts.model->shape().family);
  int64_t most = 0, tokens = 0;
  for (const auto& text : texts) {
    if (std::ssize(text) < scored + 2)
      return usage_error("a text of {} tokens is too short to score {} of them", text.size(), scored);
    most = std::max(most, std::ssize(text)), tokens += scored;
  }
  if (tokens == 0) return usage_error("no texts to calibrate with");
  HUNCH_TRY(const auto run, TokenRun::make(parts, most));
  IndexSharing sharing{.reused = std::vector<uint8_t>(layers, 0)};
  const int rows = parts.options.chunk_len, total = 1 + layers * (layers - 1) / 2;
  int done = 0;

  // Nats a token of each candidate, a layer that is flipped besides those that are (-1: none). A text's beginning is read once,
  // exactly, as prompts are; its end as rows that decode.
  const auto losses = [&](const std::vector<int>& candidates) -> Result<std::vector<double>> {
    std::vector<double> sums(candidates.size(), 0);
    for (const auto& text : texts) {
      const auto begun = std::span(text).first(text.size() - scored - 1), end = std::span(text).subspan(begun.size());
      run->rewind(0), run->share(nullptr);
      run->feed(begun, rows, TokenRun::Logits::None);
      run->share(&sharing);
      for (size_t c = 0; c < candidates.size(); ++c) {
        if (candidates[c] >= 0) sharing.reused[candidates[c]] = 1;
        run->rewind(std::ssize(begun));
        run->feed(end.first(scored), rows, TokenRun::Logits::All, [&](int64_t first, View<const float, 2> logits) {
          for (int64_t row = 0; row < logits.extent[0]; ++row)
            sums[c] -= log_probability(logits[row], end[first + row + 1]) / tokens;
        });
        if (candidates[c] >= 0) sharing.reused[candidates[c]] = 0;
        done += &text == &texts.back();
        if (!progress(done, total)) return Error{"interrupted: nothing is stored"};
      }
    }
    HUNCH_OK(run->status());
    return sums;
  };
  ReuseSchedule out{.model = identity_of(*parts.checkpoint), .tokens = tokens};
  HUNCH_TRY(const auto base, losses({-1}));
  out.loss = base[0];
  while (int(out.steps.size()) < layers - 1) {
    std::vector<int> candidates;
    for (int layer = 1; layer < layers; ++layer)
      if (!sharing.reused[layer]) candidates.push_back(layer);
    HUNCH_TRY(const auto loss, losses(candidates));
    const auto least = std::ranges::min_element(loss);
    const int layer = candidates[least - loss.begin()];
    sharing.reused[layer] = 1;
    out.steps.push_back({layer, *least});
  }
  return out;
}

}
