// HttpServer: accepts connections and keeps them, with a bound for all and for each address. Called by Server, on the loop's
// thread.
#pragma once

#include "server/http.h"
#include "server/loop.h"
#include "server/options.h"

namespace hunch {

class HttpServer {
 public:
  // `handler`, `limits` and `loop` outlive it.
  HttpServer(Loop& loop, HttpHandler& handler, const ServerLimits& limits);
  ~HttpServer();

  void listen(int fd);  // takes the descriptor
  void stop_listening();
  int num_connections() const;
  int num_busy() const;  // with a request in the works or an answer on its way

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}
