#include "cli/drafter_info.h"

#include "draft/drafter_shape.h"

namespace hunch {
namespace {

constexpr int64_t kMostWidth = 1 << 20, kMostVocab = 1 << 24, kMostLayer = 1024;

const DrafterFile::Item* tensor_ending(const DrafterFile& file, std::string_view name) {
  for (const auto& item : file.items()) {
    const std::string& full = item.tensor.name;
    if (full == name || (full.ends_with(name) && full[full.size() - name.size() - 1] == '.')) return &item;
  }
  return nullptr;
}

// The object that describes the drafter's own layers: speculators and vLLM nest it.
std::string layer_prefix(const JsonConfig& config) {
  for (const std::string_view outer : {"transformer_layer_config", "model", "text_config"})
    if (config.has(fmt::format("{}.hidden_size", outer))) return std::string(outer);
  return {};
}

Result<FeatureTaps> taps_of(const JsonConfig& config) {
  constexpr std::string_view kOutputs = "eagle_config.eagle_aux_hidden_state_layer_ids",
                             kInputs = "eagle_aux_hidden_state_layer_ids";
  HUNCH_TRY(const auto outputs, config.integers(kOutputs));
  HUNCH_TRY(const auto inputs, config.integers(kInputs));
  FeatureTaps out;
  const auto read = [&](std::string_view key, const std::vector<int64_t>& ids, int64_t least) -> Result<std::vector<int>> {
    std::vector<int> layers;
    if (ids.empty()) return config.wrong(key, "must name at least one layer");
    for (const int64_t id : ids) {
      if (id < least || id > kMostLayer)
        return config.wrong(key, fmt::format("layer {} is out of range, {} to {} are possible", id, least, kMostLayer));
      layers.push_back(int(id - least));
    }
    return layers;
  };
  if (outputs) {
    out.convention = FeatureTaps::Convention::Outputs;
    HUNCH_TRY(out.outputs, read(kOutputs, *outputs, 0));
  }
  if (inputs) {
    HUNCH_TRY(std::vector<int> layers, read(kInputs, *inputs, 1));  // the input of layer 0 is no layer's output
    if (outputs && layers != out.outputs)
      return config.wrong(kInputs, fmt::format("names other layers than {} (it lists inputs, one more)", kOutputs));
    if (!outputs) out.convention = FeatureTaps::Convention::Inputs, out.outputs = std::move(layers);
  }
  return out;
}

Result<int64_t> first_of(const JsonConfig& config, std::initializer_list<std::string_view> keys, int64_t most) {
  for (const std::string_view key : keys) {
    HUNCH_TRY(const auto value, config.integer(key, 0, most));
    if (value) return *value;
  }
  return int64_t(0);
}

Status read_medusa(const DrafterFile& file, DrafterInfo& out) {
  const JsonConfig& config = file.config();
  HUNCH_TRY(const int64_t heads, first_of(config, {"medusa_num_heads", "num_heads"}, 64));
  HUNCH_TRY(const int64_t layers, first_of(config, {"medusa_num_layers", "num_hidden_layers"}, 64));
  out.heads = int(heads), out.head_layers = int(layers);
  HUNCH_TRY(out.hidden, first_of(config, {"hidden_size"}, kMostWidth));
  HUNCH_TRY(out.vocab_size, first_of(config, {"vocab_size"}, kMostVocab));
  HUNCH_TRY(out.draft_vocab, first_of(config, {"truncated_vocab_size"}, kMostVocab));
  // The first publisher's configuration says no sizes: a head's first matrix is [hidden, hidden].
  const auto* block = tensor_ending(file, "0.0.linear.weight");
  if (out.hidden == 0 && block) out.hidden = block->tensor.shape.back();
  const auto* head = tensor_ending(file, fmt::format("0.{}.weight", out.head_layers));
  if (out.vocab_size == 0 && head && head->tensor.shape.size() == 2) out.vocab_size = head->tensor.shape[0];
  out.target_hidden = out.hidden;
  if (out.draft_vocab == 0) out.draft_vocab = out.vocab_size;
  return {};
}

}

Result<DrafterInfo> describe_drafter(const DrafterFile& file) {
  const JsonConfig& config = file.config();
  DrafterInfo out;
  out.method = file.method();
  if (out.method == "medusa") {
    HUNCH_OK(read_medusa(file, out));
    return out;
  }
  const std::string inside = layer_prefix(config);
  if (config.has(inside.empty() ? "hidden_size" : inside + ".hidden_size")) {
    HUNCH_TRY(out.layer, drafter_shape(config, inside, ModelShape{}));
  }
  if (out.layer) out.hidden = out.layer->hidden, out.vocab_size = out.layer->vocab_size;
  HUNCH_TRY(out.draft_vocab, first_of(config, {"draft_vocab_size"}, kMostVocab));
  if (out.draft_vocab == 0) out.draft_vocab = out.vocab_size;
  HUNCH_TRY(out.target_hidden, first_of(config, {"target_hidden_size"}, kMostWidth));
  const auto* fc = tensor_ending(file, "fc.weight");
  // One feature beside the embedding (eagle, mtp), or three side by side.
  if (out.target_hidden == 0 && fc && fc->tensor.shape.size() == 2)
    out.target_hidden = out.method == "eagle3" ? fc->tensor.shape[1] / 3 : fc->tensor.shape[1] - out.hidden;
  out.fusion_bias = tensor_ending(file, "fc.bias") != nullptr;
  if (out.method != "eagle3") return out;
  HUNCH_TRY(out.taps, taps_of(config));
  HUNCH_TRY(const auto speculators, config.text("speculators_model_type"));
  HUNCH_TRY(const auto before, config.boolean("norm_before_residual"));
  out.norm_before_residual = before.value_or(speculators.has_value());
  return out;
}

}
