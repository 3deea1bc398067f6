// Inside an InterruptScope the first SIGINT or SIGTERM asks the work to stop between passes; the second, or the first outside of
// any scope, ends the program at once with 128 + the signal's number. SIGPIPE is ignored: writes report it.
#pragma once

#include <atomic>

namespace hunch {

// Called once by main.
void install_signal_handlers();

// While set, an abrupt end switches the colour of stdout off first.
void set_color_open(bool open);

class InterruptScope {
 public:
  InterruptScope();
  ~InterruptScope();
  InterruptScope(const InterruptScope&) = delete;
  InterruptScope& operator=(const InterruptScope&) = delete;

  const std::atomic<bool>* flag() const;  // for Engine::generate
  bool stopped() const;
  int exit_code() const;  // 130 or 143 where stopped, else 0
};

}
