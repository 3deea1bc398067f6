#include "cli/speculation_flags.h"

namespace hunch {
namespace {

// SGLang's words for methods; any other text stays as it is.
std::string_view sglang_method(std::string_view text) {
  static constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"EAGLE", "eagle"}, {"EAGLE3", "eagle3"}, {"NEXTN", "mtp"}, {"STANDALONE", "draft_model"}, {"NGRAM", "ngram"}};
  for (const auto& [word, method] : kWords)
    if (text == word) return method;
  return text;
}

}

FlagSet::Set append_path(std::vector<std::string>& paths) {
  return [&paths](auto flag, auto path) -> Status {
    if (path.empty()) return usage_error("{} needs the path of a folder or file", flag);
    paths.emplace_back(path);
    return {};
  };
}

void add_speculation_flags(FlagSet& set, SpeculationFlags& flags) {
  set.group("Speculation (checked also where --spec is none)");
  const auto& settings = speculation_settings();
  for (size_t i = 0; i < settings.size(); ++i) {
    const SpeculationSetting& setting = settings[i];
    std::vector<std::string_view> names{setting.flag};
    if (setting.flag == "--draft")  // what llama.cpp called it over the years
      names.insert(
          names.end(), {"--draft-max", "--draft-n", "--spec-draft-n-max", "--num-speculative-tokens", "--speculative-num-steps"});
    if (setting.flag == "--spec") names.insert(names.end(), {"--spec-type", "--speculative-algorithm"});
    if (setting.flag == "--tree-top-k") names.push_back("--speculative-eagle-topk");
    auto store = [&flags, &setting, i](auto flag, auto value) -> Status {
      HUNCH_TRY(flags.flags[i], parse_setting(setting, flag, sglang_method(value)));
      return {};
    };
    set.value(names, setting.value_name, std::string(setting.about), store, 1);
  }
  set.value({"-md", "--model-draft", "--spec-model", "--spec-draft-model", "--speculative-draft-model-path"}, "PATH",
      "a drafter to load (a folder, or a file of hunch quantize): draft_model, medusa, eagle, eagle3 or mtp; may be repeated",
      append_path(flags.drafters), 2);
  set.text({"--reuse-schedule"}, "FILE", "what hunch tune --reuse-layers wrote: the layers of --precision-class reuse",
      flags.reuse_schedule);
  set.text(
      {"--strategies"}, "FILE", "what hunch tune --profile wrote: the ranked strategies of --spec profile", flags.strategies);
  set.toggle({"--unverified"},
      "LOSSY: print what the guesser says without checking it; with --spec self --policy streamingllm only", flags.unverified);
  set.text({"--speculative-config"}, "JSON",
      "the same as an object with vLLM's keys: method, num_speculative_tokens, sparse_attn_algorithm, sparse_attn_ratio, ...",
      flags.config);
}

}
