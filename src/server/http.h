// Requests and replies as plain values, between the connection (sockets, parser) and what answers them. No sockets here.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "api/error.h"

namespace hunch {

using Headers = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method, target;  // as sent
  Headers headers;
  std::string body;
  int version = 11;     // or 10
  std::string address;  // of the client; "local" on a Unix socket

  // The value of the first header of that name (any case); null: none.
  const std::string* header(std::string_view name) const;
};

struct HttpReply {
  int status = 200;
  std::string body;
  std::string type = "application/json";
  Headers headers = {};
  bool close = false;  // the connection ends behind it
};

HttpReply error_reply(const ApiError& error);
std::string_view reason_phrase(int status);

// The way back to one client. Calls and callbacks happen on the loop's thread.
class Exchange {
 public:
  virtual ~Exchange() = default;
  virtual const HttpRequest& request() const = 0;
  virtual std::string take_body() = 0;

  // The whole answer, or a stream: head, any number of parts, end.
  virtual void reply(HttpReply reply) = 0;
  virtual void begin(HttpReply head) = 0;
  virtual void send(std::string_view part) = 0;
  virtual void end() = 0;

  virtual size_t unsent_bytes() const = 0;  // of what was handed over
  virtual bool over() const = 0;            // answered to the end, or the client is gone
  Headers extra;                            // for every answer: request id, CORS

  // The client is gone, or took nothing for too long; nothing more can be sent.
  std::function<void(std::string_view why)> on_gone;
  // unsent_bytes() has fallen below half the limit after it was above.
  std::function<void()> on_room;
  // Whatever it was, it is over: for logs and counters. `status`: as sent; 499: the client left before.
  std::function<void(int status)> on_over;
};

// What a connection asks of the server.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Looks at a request whose body has not come yet: what would be refused anyway is refused before it costs.
  virtual bool refuse_early(const HttpRequest& head, HttpReply& reply) = 0;
  virtual void handle(std::shared_ptr<Exchange> exchange) = 0;
  // Something was refused below the level of requests.
  virtual void refused(std::string_view reason, int status) = 0;
  virtual bool draining() const = 0;
};

}
