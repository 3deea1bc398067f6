// What flags of speculation come to, for tests.
#pragma once

#include "base/test_results.h"
#include "cli/speculation_flags.h"

namespace hunch::test {

struct Outcome {
  SpeculationOptions options;
  std::vector<DrafterOptions> drafters;
  std::vector<std::string> notes;
  std::string message;  // of the error; empty where there is none
};

inline Outcome resolve(std::vector<std::string> arguments, const std::vector<DrafterOptions>* loaded = nullptr) {
  FlagSet set("hunch run", "Runs.");
  SpeculationFlags flags;
  add_speculation_flags(set, flags);
  if (const Status status = set.parse(arguments); !status.ok()) return {.message = status.error().message};
  flags.loaded = loaded;
  Outcome out;
  auto options = resolve_speculation(flags, &out.notes);
  if (!options.ok()) return {.message = options.error().message};
  out.options = *options;
  auto drafters = resolve_drafters(flags);
  if (drafters.ok()) out.drafters = *drafters;
  else out.message = drafters.error().message;
  return out;
}

}
