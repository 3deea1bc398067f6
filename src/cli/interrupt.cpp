// The handler does nothing but set flags: the engine looks at them between passes. Everything here is async-signal-safe.
#include "cli/interrupt.h"

#include <unistd.h>
#include <csignal>

namespace hunch {
namespace {

// A signal handler can reach nothing but statics: these four are the only ones of the command line.
std::atomic<bool> g_stop{false};
std::atomic<bool> g_in_scope{false};
std::atomic<bool> g_color_open{false};
std::atomic<int> g_signal{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

void on_signal(int signal) {
  if (g_in_scope && !g_stop) {
    g_signal = signal;
    g_stop = true;
    return;
  }
  if (g_color_open) (void)!write(STDOUT_FILENO, "\033[0m\n", 5);
  _exit(128 + signal);
}

}

void install_signal_handlers() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

void set_color_open(bool open) { g_color_open = open; }

InterruptScope::InterruptScope() {
  g_stop = false, g_signal = 0;
  g_in_scope = true;
}
InterruptScope::~InterruptScope() { g_in_scope = false; }
const std::atomic<bool>* InterruptScope::flag() const { return &g_stop; }
bool InterruptScope::stopped() const { return g_stop; }
int InterruptScope::exit_code() const { return g_stop ? 128 + g_signal : 0; }

}
