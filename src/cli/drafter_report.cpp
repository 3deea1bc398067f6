#include "cli/drafter_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "checkpoint/drafter_file.h"
#include "cli/drafter_info.h"
#include "cli/report.h"

namespace hunch {
namespace {

using nlohmann::ordered_json;

std::string_view convention_name(FeatureTaps::Convention convention) {
  switch (convention) {
    case FeatureTaps::Convention::Default: return "default";
    case FeatureTaps::Convention::Outputs: return "outputs";
    case FeatureTaps::Convention::Inputs: return "inputs";
  }
  return "?";
}

void add_tensors(const DrafterFile& file, ordered_json& out) {
  struct Share {
    int tensors = 0;
    uint64_t bytes = 0;
  };
  std::array<Share, kNumDTypes> shares{};
  Share whole_numbers;
  int64_t parameters = 0;
  uint64_t bytes = 0;
  for (const DrafterFile::Item& item : file.items()) {
    const bool weights = item.integer == IntegerType::None;
    Share& share = weights ? shares[size_t(item.tensor.dtype)] : whole_numbers;
    share.tensors += 1, share.bytes += item.tensor.bytes;
    if (!weights) continue;
    parameters += elements_of(item.tensor.shape), bytes += item.tensor.bytes;
  }
  out["file_bytes"] = file.file_bytes();
  out["parameters"] = parameters;
  out["weight_bytes"] = bytes;
  for (int i = 0; i < kNumDTypes; ++i)
    if (const Share& share = shares[i]; share.tensors > 0)
      out["encodings"][std::string(dtype_info(DType(i)).name)] = {{"tensors", share.tensors}, {"bytes", share.bytes}};
  if (whole_numbers.tensors > 0)
    out["encodings"]["integers"] = {{"tensors", whole_numbers.tensors}, {"bytes", whole_numbers.bytes}};
}

}

Result<ordered_json> drafter_json(const std::string& path) {
  HUNCH_TRY(const auto file, DrafterFile::open(path));
  HUNCH_TRY(const DrafterInfo shape, describe_drafter(*file));
  ordered_json out;
  out["path"] = path;
  out["format"] = file->format();
  out["method"] = shape.method;
  add_tensors(*file, out);
  // What the file does not say is null.
  const auto known = [](int64_t value) { return value > 0 ? ordered_json(value) : ordered_json(); };
  out["hidden"] = known(shape.hidden);
  out["target_hidden"] = known(shape.target_hidden);
  out["vocab_size"] = known(shape.vocab_size);
  out["draft_vocab"] = known(shape.draft_vocab);
  if (shape.layer) {
    const ModelShape& s = *shape.layer;
    out["layers"] = s.layers;
    out["ffn"] = s.ffn;
    out["heads"] = s.heads;
    out["kv_heads"] = s.kv_heads;
    out["head_dim"] = s.head_dim;
    out["context_len"] = s.context_len;
    out["rope_theta"] = s.rope_theta;
  }
  if (shape.method == "medusa") out["medusa_heads"] = shape.heads, out["medusa_layers"] = shape.head_layers;
  if (shape.method == "eagle3") {
    out["taps"] = shape.taps.outputs;
    out["taps_convention"] = convention_name(shape.taps.convention);
    out["norm_before_residual"] = shape.norm_before_residual;
  }
  if (shape.method != "medusa") out["fusion_bias"] = shape.fusion_bias;
  return out;
}

std::string drafter_text(const ordered_json& j) {
  std::string out;
  const auto line = [&](std::string_view name, const std::string& value) { out += fmt::format("{:<18}{}\n", name, value); };
  const auto whole = [&](const char* key) { return j[key].is_null() ? "?" : fmt::format("{}", j[key].get<int64_t>()); };
  const std::string method = j["method"];
  line("drafter", fmt::format("{} ({})", method, j["path"].get<std::string>()));
  line("format", j["format"].get<std::string>());
  if (method == "medusa")
    line("shape", fmt::format("{} heads of {} residual layers", whole("medusa_heads"), whole("medusa_layers")));
  if (j.contains("layers"))
    line("shape",
        fmt::format("{} layers, hidden {}, ffn {}, {} heads, {} KV heads of {}", whole("layers"), whole("hidden"), whole("ffn"),
            whole("heads"), whole("kv_heads"), whole("head_dim")));
  line("target", fmt::format("hidden {}, {} tokens", whole("target_hidden"), whole("vocab_size")));
  line("draft vocabulary", fmt::format("{} tokens", whole("draft_vocab")));
  if (j.contains("taps")) {
    const std::string convention = j["taps_convention"];
    line("taps",
        convention == "default" ? "not said: the outputs of layers 1, N/2 - 1 and N - 4 of the target's N"
                                : fmt::format("outputs of layers {} (the file lists {})",
                                      fmt::join(j["taps"].get<std::vector<int>>(), ", "), convention));
  }
  if (j.contains("context_len"))
    line("context", fmt::format("{} tokens, rope theta {:g}", whole("context_len"), j["rope_theta"].get<double>()));
  line("weights",
      fmt::format("{} ({:.1f} M parameters)", bytes_text(j["weight_bytes"].get<double>()), j["parameters"].get<double>() / 1e6));
  if (j.contains("encodings"))
    for (const auto& [name, of] : j["encodings"].items())
      line("", fmt::format("{:<9}{:>5} tensors {:>10}", name, of["tensors"].get<int>(), bytes_text(of["bytes"].get<double>())));
  return out;
}

}
