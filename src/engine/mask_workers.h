// MaskWorkers: threads that fill the masks of grammars while the engine's own lists a pass for a device: one over 150,000 tokens
// takes up to a millisecond.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

namespace hunch {

class GrammarMask;

class MaskWorkers {
 public:
  explicit MaskWorkers(int threads);
  ~MaskWorkers();

  // A thread fills what it asks for.
  void soon(GrammarMask&);
  // Before it goes: waits for the thread that has it.
  void forget(GrammarMask&);

 private:
  void work(size_t thread);

  std::mutex mutex_;  // guards what follows
  std::condition_variable more_, done_;
  std::deque<GrammarMask*> waiting_;
  std::vector<GrammarMask*> busy_;  // [thread]
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}
