#include "cli/speculation_flags.h"

#include <fmt/format.h>

namespace hunch {

void add_speculation_flags(FlagSet& set, SpeculationFlags& flags) {
  set.group("Speculation (checked also where --spec is none)");
  const auto& settings = speculation_settings();
  for (size_t i = 0; i < settings.size(); ++i) {
    const SpeculationSetting& setting = settings[i];
    std::vector<std::string_view> names{setting.flag};
    if (setting.flag == "--draft")  // what llama.cpp called it over the years
      names.insert(names.end(), {"--draft-max", "--draft-n", "--spec-draft-n-max", "--num-speculative-tokens"});
    if (setting.flag == "--spec") names.push_back("--spec-type");
    if (setting.flag == "--tree-top-k") names.push_back("--speculative-eagle-topk");
    auto store = [&flags, &setting, i](std::string_view flag, std::string_view value) -> Status {
      HUNCH_TRY(SettingValue parsed, parse_setting(setting, flag, value));
      flags.flags[i] = std::move(parsed);
      return {};
    };
    set.value(names, setting.value_name, std::string(setting.about), store, 1);
  }
  set.value(
      {"-md", "--model-draft", "--spec-model", "--spec-draft-model", "--speculative-draft-model-path"}, "PATH",
      "a drafter to load (a folder, or a file of hunch quantize): draft_model, medusa, eagle, eagle3 or mtp; may be repeated",
      [&flags](std::string_view flag, std::string_view path) -> Status {
        if (path.empty()) return usage_error(fmt::format("{} needs the path of a folder or file", flag));
        flags.drafters.emplace_back(path);
        return {};
      },
      2);
  set.toggle({"--unverified"},
             "LOSSY: print what the guesser says without checking it; with --spec self --policy streamingllm only",
             [&flags] { flags.unverified = true; });
  set.text(
      {"--speculative-config"}, "JSON",
      "the same as an object with vLLM's keys: method, num_speculative_tokens, sparse_attn_algorithm, sparse_attn_ratio, ...",
      flags.config);
}

}  // namespace hunch
