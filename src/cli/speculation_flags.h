// The flags of speculation: a flag for each setting of api/speculation_settings.h, and --speculative-config.
#pragma once

#include "api/speculation_settings.h"
#include "cli/flags.h"

namespace hunch {

// In a group "Speculation" of `set`; `flags` must outlive parse().
void add_speculation_flags(FlagSet& set, SpeculationFlags& flags);
// For a flag that may be repeated; not empty.
FlagSet::Set append_path(std::vector<std::string>& paths);

}
