// The program `hunch`. Everything of it that can be tested lives in commands.cpp and the files of the subcommands.
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/interrupt.h"

int main(int argc, char** argv) {
  hunch::install_signal_handlers();
  const std::vector<std::string> arguments(argv + (argc > 0), argv + argc);
  return hunch::dispatch(arguments);
}
