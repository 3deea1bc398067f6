#include "server/loop.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>

#include "server/loop_asio.h"

namespace hunch {
namespace {

namespace asio = boost::asio;

void repeat(asio::steady_timer& timer, std::chrono::nanoseconds period, const std::shared_ptr<std::function<void()>>& work) {
  timer.expires_after(period);
  timer.async_wait([&timer, period, work](const boost::system::error_code& error) {
    if (error) return;
    (*work)();
    repeat(timer, period, work);
  });
}

void listen(asio::signal_set& set, const std::shared_ptr<std::function<void(int)>>& work) {
  set.async_wait([&set, work](const boost::system::error_code& error, int signal) {
    if (error) return;
    (*work)(signal);
    listen(set, work);
  });
}

}

Loop::Loop() : impl_(std::make_unique<Impl>()) {}
Loop::~Loop() {
  impl_->timers.clear();
  impl_->signals.clear();
}

void Loop::post(std::function<void()> work) { asio::post(impl_->context, std::move(work)); }

void Loop::every(double seconds, std::function<void()> work) {
  const auto period = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
  impl_->timers.push_back(std::make_unique<asio::steady_timer>(impl_->context));
  repeat(*impl_->timers.back(), period, std::make_shared<std::function<void()>>(std::move(work)));
}

void Loop::on_signals(std::initializer_list<int> signals, std::function<void(int)> work) {
  impl_->signals.push_back(std::make_unique<asio::signal_set>(impl_->context));
  for (int signal : signals) {
    boost::system::error_code ignored;  // an unknown signal's number would be a bug here, not of the user's
    impl_->signals.back()->add(signal, ignored);
  }
  listen(*impl_->signals.back(), std::make_shared<std::function<void(int)>>(std::move(work)));
}

void Loop::run() {
  const auto guard = asio::make_work_guard(impl_->context);
  impl_->context.run();
}

void Loop::stop() { impl_->context.stop(); }

}
