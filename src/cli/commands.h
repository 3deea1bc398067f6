// The subcommands. A new one is a file with its function, a line here and a line in commands.cpp.
#pragma once

#include <span>
#include <string_view>

#include "base/result.h"

namespace hunch {

class FlagSet;
using Arguments = std::span<const std::string>;  // behind the subcommand's name

// The exit code: 0, 1 failure, 2 usage, 130 and 143 interrupted; an Error is printed for it.
using CommandFunction = Result<int>(Arguments);

struct Command {
  std::string_view name, about;
  CommandFunction* run;
};

std::span<const Command> commands();

CommandFunction run_command, chat_command, batch_command, serve_command, demo_command, audit_command, bench_command, tune_command,
    eval_command, report_command, info_command, quantize_command, tokenize_command, detokenize_command, doctor_command,
    completion_command, man_command;

// Parses; what a command ends with at once: an error, or the exit code of its printed help. Nothing: it goes on.
// `with_environment`: what stands there (setting_sources.h) comes first.
std::optional<Result<int>> parsed(FlagSet& set, Arguments arguments, bool with_environment = false);

std::string_view program_version();  // "0.1.0"
std::string_view build_commit();     // "0c1e570", or "unknown"
std::string version_line();          // without the end of the line

// The whole program: finds the subcommand; prints help and version. main() adds the signal handlers.
int dispatch(Arguments arguments);

}
