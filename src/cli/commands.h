// The subcommands. A new one is a file with its function, a line here and a line in commands.cpp.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace hunch {

using Arguments = std::span<const std::string>;  // behind the subcommand's name

struct Command {
  std::string_view name, about;
  int (*run)(Arguments);  // returns the exit code: 0, 1 failure, 2 usage, 130 and 143 interrupted
};

std::span<const Command> commands();

int run_command(Arguments);
int chat_command(Arguments);
int batch_command(Arguments);
int serve_command(Arguments);
int demo_command(Arguments);
int audit_command(Arguments);
int bench_command(Arguments);
int tune_command(Arguments);
int eval_command(Arguments);
int report_command(Arguments);
int info_command(Arguments);
int quantize_command(Arguments);
int tokenize_command(Arguments);
int detokenize_command(Arguments);
int doctor_command(Arguments);
int completion_command(Arguments);
int man_command(Arguments);

std::string_view program_version();  // "0.1.0"
std::string_view build_commit();     // "0c1e570", or "unknown"
std::string version_line();          // without the end of the line

// The whole program: finds the subcommand; prints help and version. main() adds the signal handlers.
int dispatch(Arguments arguments);

}  // namespace hunch
