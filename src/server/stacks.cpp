#include "server/stacks.h"

#include <execinfo.h>
#include <semaphore.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace hunch {
namespace {

constexpr int kMostFrames = 48;

// Where a thread that is asked leaves its answer. One that comes too late finds that nobody asks it any more.
std::atomic<int> asked{0};
void* frames[kMostFrames];
int num_frames = 0;
sem_t answered;

int signal_number() { return SIGRTMIN + 5; }

void answer(int) {
  const int error = errno;
  int self = int(syscall(SYS_gettid));
  if (asked.compare_exchange_strong(self, -1)) {
    num_frames = backtrace(frames, kMostFrames);
    sem_post(&answered);
  }
  errno = error;
}

}

void prepare_thread_stacks() {
  void* one[1];
  (void)backtrace(one, 1);  // loads what it needs, which a signal handler must not
  sem_init(&answered, 0, 0);
  struct sigaction action {};
  action.sa_handler = answer;
  action.sa_flags = SA_RESTART;
  sigaction(signal_number(), &action, nullptr);
}

std::vector<ThreadStack> thread_stacks() {
  std::vector<ThreadStack> out;
  std::error_code error;
  for (std::filesystem::directory_iterator at("/proc/self/task", error), end; !error && at != end; at.increment(error)) {
    ThreadStack& thread = out.emplace_back();
    thread.id = std::atoi(at->path().filename().c_str());
    std::getline(std::ifstream(at->path() / "comm"), thread.name);
    asked = thread.id;
    if (syscall(SYS_tgkill, getpid(), thread.id, signal_number()) != 0) continue;
    timespec until{};
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 100'000'000;
    until.tv_sec += until.tv_nsec / 1'000'000'000, until.tv_nsec %= 1'000'000'000;
    int waited;
    while ((waited = sem_timedwait(&answered, &until)) != 0 && errno == EINTR) {}
    int expected = thread.id;
    if (waited != 0 && asked.compare_exchange_strong(expected, 0)) continue;  // it has not begun to answer
    if (waited != 0) sem_wait(&answered);                                     // it has: the frames are being written
    if (char** names = backtrace_symbols(frames, num_frames)) {
      // The first two are the handler and the way into it.
      for (int i = 2; i < num_frames; ++i) thread.frames += std::string(thread.frames.empty() ? "" : " < ") + names[i];
      std::free(names);
    }
  }
  asked = 0;
  return out;
}

}
