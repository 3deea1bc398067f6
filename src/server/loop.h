// Loop: the server's thread of events: sockets, timers, signals, work of other threads. A cover of Boost.Asio, whose headers cost
// seconds a file; loop_asio.h opens it for the files that wait on sockets.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>

namespace hunch {

class Loop {
 public:
  Loop();
  ~Loop();
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  void post(std::function<void()> work);                   // from any thread; runs on the loop's
  void every(double seconds, std::function<void()> work);  // from now until the loop stops
  void on_signals(std::initializer_list<int> signals, std::function<void(int)> work);
  void run();   // until stop()
  void stop();  // from any thread

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}
