// The subcommands. A new one is a file with its function, a line here and a line in commands.cpp.
#pragma once

#include <span>
#include <string_view>

#include "base/result.h"

namespace hunch {

class FlagSet;
using Arguments = std::span<const std::string>;  // behind the subcommand's name

struct Command {
  std::string_view name, about;
  Result<int> (*run)(Arguments);  // the exit code: 0, 1 failure, 2 usage, 130 and 143 interrupted; an Error is printed for it
};

std::span<const Command> commands();

Result<int> run_command(Arguments);
Result<int> chat_command(Arguments);
Result<int> batch_command(Arguments);
Result<int> serve_command(Arguments);
Result<int> demo_command(Arguments);
Result<int> audit_command(Arguments);
Result<int> bench_command(Arguments);
Result<int> tune_command(Arguments);
Result<int> eval_command(Arguments);
Result<int> report_command(Arguments);
Result<int> info_command(Arguments);
Result<int> quantize_command(Arguments);
Result<int> tokenize_command(Arguments);
Result<int> detokenize_command(Arguments);
Result<int> doctor_command(Arguments);
Result<int> completion_command(Arguments);
Result<int> man_command(Arguments);

// Parses; what a command ends with at once: an error, or the exit code of its printed help. Nothing: it goes on.
std::optional<Result<int>> parsed(FlagSet& set, Arguments arguments);

std::string_view program_version();  // "0.1.0"
std::string_view build_commit();     // "0c1e570", or "unknown"
std::string version_line();          // without the end of the line

// The whole program: finds the subcommand; prints help and version. main() adds the signal handlers.
int dispatch(Arguments arguments);

}
