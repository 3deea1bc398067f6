// The inside of Loop, for loop.cpp, connection.cpp and http_server.cpp.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <vector>

#include "server/loop.h"

namespace hunch {

struct Loop::Impl {
  boost::asio::io_context context{1};
  std::vector<std::unique_ptr<boost::asio::steady_timer>> timers;
  std::vector<std::unique_ptr<boost::asio::signal_set>> signals;
};

}
