// The order is vLLM's: what names a drafter outright, then keys that only one kind has, then tensors, then a plain model.
#include "checkpoint/drafter_method.h"

#include <fmt/ranges.h>

#include "checkpoint/config.h"

namespace hunch {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  return out;
}

// The method that a class or type name carries: LlamaForCausalLMEagle3, EagleLlamaForCausalLM, DeepSeekMTPModel, medusa. Empty
// for the names of plain models.
std::string_view method_in(std::string_view name) {
  const std::string text = lower(name);
  if (text.find("eagle3") != text.npos) return "eagle3";
  if (text.find("mtp") != text.npos) return "mtp";  // before eagle: EagleDeepSeekMTPModel is DeepSeek's module
  if (text.find("eagle") != text.npos) return "eagle";
  if (text.find("medusa") != text.npos) return "medusa";
  return {};
}

}

bool is_drafter_method(std::string_view name) { return std::ranges::find(kDrafterMethods, name) != kDrafterMethods.end(); }

Result<std::optional<std::string>> detect_drafter_method(
    const JsonConfig& config, const std::vector<std::string_view>& tensor_names) {
  const auto any_tensor = [&](std::string_view part) {
    return std::ranges::any_of(tensor_names, [&](std::string_view name) { return name.find(part) != name.npos; });
  };
  const auto has_tensor = [&](std::string_view name) { return std::ranges::find(tensor_names, name) != tensor_names.end(); };
  HUNCH_TRY(const auto speculators, config.text("speculators_model_type"));
  HUNCH_TRY(const auto architectures, config.texts("architectures"));
  HUNCH_TRY(const auto model_type, config.text("model_type"));
  HUNCH_TRY(const auto medusa_heads, config.integer("medusa_num_heads"));
  HUNCH_TRY(const auto mtp_layers, config.integer("num_nextn_predict_layers"));

  std::vector<std::string_view> names;
  if (speculators) names.push_back(*speculators);
  if (architectures) names.insert(names.end(), architectures->begin(), architectures->end());
  if (model_type) names.push_back(*model_type);
  std::string_view method;
  for (const std::string_view name : names)
    if (method.empty()) method = method_in(name);
  // Another kind of speculators' drafters goes no further: its tensors could pass for one of ours.
  if (!method.empty() || speculators) return method.empty() ? std::nullopt : std::optional(std::string(method));
  if (medusa_heads) method = "medusa";
  else if (config.has("eagle_config") || config.has("draft_vocab_size")) method = "eagle3";
  else if ((mtp_layers && *mtp_layers > 0) || any_tensor("mtp.")) method = "mtp";
  else if (any_tensor("midlayer.")) method = "eagle3";
  else if (has_tensor("fc.weight") || has_tensor("model.fc.weight")) method = "eagle";
  else if (model_type && is_family(*model_type)) method = "draft_model";
  return method.empty() ? std::nullopt : std::optional(std::string(method));
}

Error unknown_drafter(const JsonConfig& config) {
  const auto said = [](const auto& value) { return value.ok() && value.value() ? quote(*value.value()) : "absent"; };
  const auto architectures = config.texts("architectures");
  const std::string listed =
      architectures.ok() && architectures.value() ? quote(fmt::format("{}", fmt::join(*architectures.value(), ", "))) : "absent";
  return {fmt::format(
      "{}: no drafter that is known (speculators_model_type {}, architectures {}, model_type {}; no medusa_num_heads, "
      "eagle_config, draft_vocab_size or num_nextn_predict_layers; no tensors mtp.*, midlayer.* or fc.weight); known are {}: "
      "name "
      "the method",
      config.source(), said(config.text("speculators_model_type")), listed, said(config.text("model_type")),
      fmt::join(kDrafterMethods, ", "))};
}

}
