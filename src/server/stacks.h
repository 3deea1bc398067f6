// What every thread of the process is doing right now, for the log of a server whose engine does not come back.
#pragma once

#include <string>
#include <vector>

namespace hunch {

struct ThreadStack {
  int id = 0;
  std::string name;
  std::string frames;  // innermost first, as backtrace_symbols(3) writes them; empty: the thread did not answer in time
};

// Once, before thread_stacks(): takes the signal (the fifth real-time one) by which threads are asked.
void prepare_thread_stacks();
// Asks one thread after the other and waits for each at most a tenth of a second. One caller at a time.
std::vector<ThreadStack> thread_stacks();

}
