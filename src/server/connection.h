// Connection: one client's socket: reads requests in turn, hands each to the handler, writes the answers in order. Made by
// HttpServer, which drops it when it closes; all on the loop's thread.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>

#include "base/clock.h"
#include "server/http.h"
#include "server/options.h"

namespace hunch {

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  struct Owner {
    virtual ~Owner() = default;
    virtual void closed(Connection&) = 0;  // it may go once its callers hold it no more
  };

  Connection(boost::asio::io_context& context, int fd, std::string address, Owner& owner, HttpHandler& handler,
      const ServerLimits& limits);
  void start() { want_input(); }
  void tick(Clock::time_point now);  // several times a second: time-outs, and clients that are gone
  bool open() const { return descriptor_.is_open(); }
  bool busy() const { return exchange_ || !out_.empty(); }
  void close(std::string_view why);
  const std::string& address() const { return address_; }

 private:
  class Answer;  // the Exchange of this connection
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;

  void want_input();
  void read_some();
  void parse();
  bool head_complete();
  void dispatch();
  void protocol_error(const boost::system::error_code& error);
  void refuse(std::string_view reason, int status, std::string message);
  void refuse(std::string_view reason, HttpReply reply);
  void peer_finished();
  void write(std::string_view bytes);
  void flush();
  void exchange_ended(bool keep_alive);
  void next_request();
  size_t unread() const { return in_.size() - in_at_; }
  size_t unsent() const { return out_.size() - out_at_; }

  boost::asio::posix::stream_descriptor descriptor_;
  std::string address_;
  Owner& owner_;
  HttpHandler& handler_;
  const ServerLimits& limits_;

  std::optional<Parser> parser_;
  HttpRequest head_;  // of the request in the parser
  bool head_known_ = false;
  uint64_t body_wire_bytes_ = 0, head_bytes_ = 0;  // of this request: all that was read; its head
  std::string in_;                                 // read, and from in_at_ on not yet parsed
  size_t in_at_ = 0;
  std::string out_;  // to be written, from out_at_ on
  size_t out_at_ = 0;

  bool reading_ = false, writing_ = false;  // waits for the socket are out
  bool fresh_ = true;                       // no request has come yet
  bool began_ = false;                      // a byte of the next request has
  bool peer_finished_ = false;              // it will send no more; it may still read
  bool closing_ = false;                    // once everything is written
  bool lingering_ = false;                  // written: what still comes is thrown away, so that the client can read the answer
  bool crowded_ = false;                    // too much is unsent
  Clock::time_point since_, watched_since_, progress_at_;
  size_t body_seen_ = 0;  // at watched_since_
  std::shared_ptr<Answer> exchange_;
};

}
