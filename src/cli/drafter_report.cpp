#include "cli/drafter_report.h"

#include <fmt/ranges.h>

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
  out.update({{"file_bytes", file.file_bytes()}, {"parameters", parameters}, {"weight_bytes", bytes}});
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
  ordered_json out = {{"path", path}, {"format", file->format()}, {"method", shape.method}};
  add_tensors(*file, out);
  // What the file does not say is null.
  const auto known = [](int64_t value) { return value > 0 ? ordered_json(value) : ordered_json(); };
  out.update({{"hidden", known(shape.hidden)}, {"target_hidden", known(shape.target_hidden)},
      {"vocab_size", known(shape.vocab_size)}, {"draft_vocab", known(shape.draft_vocab)}});
  if (shape.layer) {
    const ModelShape& s = *shape.layer;
    out.update({{"layers", s.layers}, {"ffn", s.ffn}, {"heads", s.heads}, {"kv_heads", s.kv_heads}, {"head_dim", s.head_dim},
        {"context_len", s.context_len}, {"rope_theta", s.rope_theta}});
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
  NamedLines line{18};
  const auto whole = [&](const char* key) { return j[key].is_null() ? "?" : fmt::format("{}", j[key].get<int64_t>()); };
  const std::string method = j["method"];
  line("drafter", "{} ({})", method, j["path"].get<std::string>());
  line("format", j["format"]);
  if (method == "medusa") line("shape", "{} heads of {} residual layers", whole("medusa_heads"), whole("medusa_layers"));
  if (j.contains("layers"))
    line("shape", "{} layers, hidden {}, ffn {}, {} heads, {} KV heads of {}", whole("layers"), whole("hidden"), whole("ffn"),
        whole("heads"), whole("kv_heads"), whole("head_dim"));
  line("target", "hidden {}, {} tokens", whole("target_hidden"), whole("vocab_size"));
  line("draft vocabulary", "{} tokens", whole("draft_vocab"));
  if (j.contains("taps")) {
    const std::string convention = j["taps_convention"];
    line("taps",
        convention == "default" ? "not said: the outputs of layers 1, N/2 - 1 and N - 4 of the target's N"
                                : fmt::format("outputs of layers {} (the file lists {})",
                                      fmt::join(j["taps"].get<std::vector<int>>(), ", "), convention));
  }
  if (j.contains("context_len"))
    line("context", "{} tokens, rope theta {:g}", whole("context_len"), j["rope_theta"].get<double>());
  line.weights(j, 9);
  return line.text;
}

}
