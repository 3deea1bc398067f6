// The program `hunch`. Everything of it that can be tested lives in commands.cpp and the files of the subcommands.
#include <fcntl.h>
#include <unistd.h>

#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/terminal.h"

int main(int argc, char** argv) {
  // A stream that is closed must not become the next file that is opened.
  for (int fd = 0; fd <= 2; ++fd)
    if (fcntl(fd, F_GETFD) < 0) (void)open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
  hunch::install_signal_handlers();
  const std::vector<std::string> arguments(argv + (argc > 0), argv + argc);
  const int code = hunch::dispatch(arguments);
  const hunch::Status written = hunch::output_error();
  return code == 0 && !written.ok() ? hunch::fail(written.error()) : code;
}
