// Speculation as the command line takes it: short flags for people and --speculative-config with the keys of vLLM and of the
// Vegas release. Both speak of one table of settings; resolve() makes hunch::SpeculationOptions of them. docs/flags.md explains.
#pragma once

#include <map>
#include <variant>

#include "api/values.h"
#include "base/result.h"
#include "hunch/hunch.h"

namespace hunch {

using SettingValue = std::variant<std::string, double>;  // a choice, or a number (whole ones are exact up to 2^53)

// One thing that can be set, by a flag, by a key of the configuration, or by both if they agree.
struct SpeculationSetting {
  // Layers: a number of them, or a list; LayerList: a list or "none"; Tree: a list of lists of ranks; all kept as text.
  enum class Kind { Choice, Whole, Number, Layers, LayerList, Tree };
  std::string_view flag, key, value_name, about;
  Kind kind;
  std::vector<std::string_view> choices;  // Choice
  Range range;                            // Whole, Number
  void (*apply)(const SettingValue&, SpeculationOptions&);
};

const std::vector<SpeculationSetting>& speculation_settings();

// Values by index into speculation_settings().
using SettingValues = std::map<size_t, SettingValue>;

// What the command line said.
struct SpeculationFlags {
  SettingValues flags;
  std::optional<std::string> config;  // the text behind --speculative-config
  std::vector<std::string> drafters;  // paths behind --model-draft
  // A request for an engine that runs: it can name what was loaded and nothing else. Null: what is named will be loaded.
  const std::vector<DrafterOptions>* loaded = nullptr;
  bool unverified = false;
  std::string reuse_schedule, strategies;  // EngineOptions
};

struct SpeculativeConfig {
  SettingValues values;
  std::optional<std::string> model;  // the path of a drafter
};

// The text of --speculative-config to values. Errors: where the JSON breaks; unknown, misplaced or repeated keys (naming the
// nearest and all valid ones); wrong types and ranges; methods of other engines that hunch does not have (by name).
Result<SpeculativeConfig> parse_speculative_config(std::string_view json);

// Everything, validated, whether or not speculation is on. `notes` receives remarks on settings without effect.
Result<SpeculationOptions> resolve_speculation(const SpeculationFlags& flags, std::vector<std::string>* notes = nullptr);

// The drafters that flags and configuration name, opened and asked for their methods: what an engine shall load. With `loaded`:
// that.
Result<std::vector<DrafterOptions>> resolve_drafters(const SpeculationFlags& flags);

// One value as a flag or a key spells it: aliases of other engines become ours.
Result<SettingValue> parse_setting(const SpeculationSetting& setting, std::string_view spelled_as, std::string_view text);

}
