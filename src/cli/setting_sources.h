// Settings of a configuration file and of the environment, both as arguments of the command line's flags. Later ones
// win: file (of hunch serve), environment, command line.
#pragma once

#include "cli/flags.h"

namespace hunch {

// A JSON object, or YAML's `key: value` lines, with lists as `- value` lines below their key. Keys are flags without their
// dashes, with - or _. Lists repeat their flag; objects go behind it as JSON; true and false are switches.
Result<std::vector<std::string>> config_arguments(const FlagSet& set, const std::string& path);
Result<std::vector<std::string>> config_text_arguments(const FlagSet& set, std::string_view text, const std::string& path);

// HUNCH_MAX_NUM_SEQS=4 as --max-num-seqs 4, for every flag; and llama.cpp's LLAMA_ARG_* for those that have one. `environment`:
// of environ, "NAME=value". Names that are no flag's are left alone, and flags of the command line.
std::vector<std::string> environment();
std::vector<std::string> environment_arguments(
    const FlagSet& set, const std::vector<std::string>& environment, std::span<const std::string> arguments);

}
