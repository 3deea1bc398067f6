// Opening the socket that the server listens on. Called once at start.
#pragma once

#include "base/result.h"

namespace hunch {

struct ListenSocket {
  int fd = -1;            // non-blocking, closed on exec; the caller's
  std::string url;        // "http://127.0.0.1:8000", "unix:/run/hunch.sock"
  bool loopback = false;  // nobody outside this machine can reach it
};

// `host`: a numeric address, localhost, or the path of a Unix socket (ends in .sock). Errors say who has the port, where that can
// be seen.
Result<ListenSocket> open_listen_socket(const std::string& host, int port);

}
