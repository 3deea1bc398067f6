#include "server/connection.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <boost/asio/post.hpp>
#include <boost/beast/http/error.hpp>
#include <cerrno>

#include "server/answer_text.h"

namespace hunch {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using Wait = asio::posix::descriptor_base;

constexpr size_t kReadBytes = 64 << 10;
constexpr size_t kCrumbs = 8192;  // of framing, beyond which chunks must carry a quarter of what they cost
constexpr std::chrono::seconds kLinger{2};
constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
constexpr std::string_view kHttp2 = "PRI * HTTP/2.0";

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}

class Connection::Answer final : public Exchange {
 public:
  Answer(std::shared_ptr<Connection> connection, HttpRequest request, bool keep_alive)
      : connection_(connection), request_(std::move(request)), keep_alive_(keep_alive) {}

  const HttpRequest& request() const override { return request_; }
  std::string take_body() override { return std::move(request_.body); }
  size_t unsent_bytes() const override {
    const auto connection = connection_.lock();
    return connection ? connection->unsent() : 0;
  }
  bool over() const override { return over_; }
  bool begun() const { return begun_; }

  void reply(HttpReply reply) override {
    const auto connection = connection_.lock();
    if (over_ || !connection) return;
    keep_alive_ = keep_alive_ && !reply.close;
    std::string bytes = answer_head(reply, extra, Framing::Length, reply.body.size(), keep_alive_);
    if (request_.method != "HEAD" && reply.status != 204) bytes += reply.body;
    status_ = reply.status;
    over_ = true;
    connection->write(bytes);
    finish(*connection);
  }

  void begin(HttpReply head) override {
    const auto connection = connection_.lock();
    if (over_ || !connection) return;
    chunked_ = request_.version == 11;
    keep_alive_ = keep_alive_ && chunked_;
    begun_ = true;
    status_ = head.status;
    connection->write(answer_head(head, extra, chunked_ ? Framing::Chunked : Framing::UntilClose, 0, keep_alive_));
  }

  void send(std::string_view part) override {
    const auto connection = connection_.lock();
    if (over_ || !connection || part.empty()) return;
    if (chunked_) connection->write(fmt::format("{:x}\r\n{}\r\n", part.size(), part));
    else connection->write(part);
  }

  void end() override {
    const auto connection = connection_.lock();
    if (over_ || !connection) return;
    over_ = true;
    if (chunked_) connection->write("0\r\n\r\n");
    finish(*connection);
  }

  // The connection went away under it.
  void lost(std::string_view why) {
    if (std::exchange(over_, true)) return;
    // Moved out: what they do may end with this object.
    const auto gone = std::move(on_gone);
    const auto ended = std::move(on_over);
    release();
    if (gone) gone(why);
    if (ended) ended(499);
  }

 private:
  void finish(Connection& connection) {
    const auto ended = std::move(on_over);
    release();
    if (ended) ended(status_);
    connection.exchange_ended(keep_alive_);
  }
  // Callbacks hold whoever answers, which holds this.
  void release() { on_gone = nullptr, on_room = nullptr, on_over = nullptr; }

  std::weak_ptr<Connection> connection_;
  HttpRequest request_;
  bool keep_alive_, chunked_ = false, begun_ = false, over_ = false;
  int status_ = 0;
};

Connection::Connection(
    asio::io_context& context, int fd, std::string address, Owner& owner, HttpHandler& handler, const ServerLimits& limits)
    : descriptor_(context, fd),
      address_(std::move(address)),
      owner_(owner),
      handler_(handler),
      limits_(limits),
      since_(Clock::now()) {
  next_request();
}

void Connection::next_request() {
  parser_.emplace();
  parser_->eager(true);
  parser_->header_limit(uint32_t(limits_.max_header_bytes));
  parser_->body_limit(uint64_t(limits_.max_body_bytes));
  head_ = {};
  head_known_ = began_ = false;
  body_wire_bytes_ = 0, head_bytes_ = 0;
  since_ = Clock::now();
}

void Connection::close(std::string_view why) {
  if (!open()) return;
  error_code ignored;
  descriptor_.close(ignored);
  const auto self = shared_from_this();
  owner_.closed(*this);
  if (auto exchange = std::move(exchange_)) exchange->lost(why);
}

// --- reading

void Connection::want_input() {
  // Behind a request in the works a little is read ahead: the rest waits in the kernel. The read also tells that a client left.
  if (reading_ || !open() || peer_finished_ || (exchange_ && unread() >= size_t(limits_.read_ahead_bytes))) return;
  reading_ = true;
  descriptor_.async_wait(Wait::wait_read, [self = shared_from_this()](const error_code& error) {
    self->reading_ = false;
    if (!error && self->open()) self->read_some();
  });
}

void Connection::read_some() {
  std::array<char, kReadBytes> buffer;
  const ssize_t n = recv(descriptor_.native_handle(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return want_input();
  if (n < 0) return close("client_gone");
  if (n == 0) return peer_finished();
  if (!lingering_ && !closing_) {
    in_.erase(0, std::exchange(in_at_, 0));
    in_.append(buffer.data(), n);
    if (!exchange_) parse();
  }
  want_input();
}

// No more will come. Whether the client still reads cannot be seen, only tried: what is sent to one that is gone is refused.
void Connection::peer_finished() {
  peer_finished_ = true;
  if (!exchange_ && !closing_) return close("closed");
  if (lingering_) return close("closed");
  if (!exchange_) return;
  if (exchange_->begun()) exchange_->send(": still there?\n\n");
  else if (exchange_->request().version == 11) write(kContinue);
}

void Connection::parse() {
  while (unread() > 0 && !exchange_ && !closing_) {
    if (!began_) {
      if (in_.compare(in_at_, 2, "\r\n") == 0) {  // some clients end a body with a line of their own
        in_at_ += 2;
        continue;
      }
      if (unread() == 1 && in_[in_at_] == '\r') break;
      began_ = true, watched_since_ = Clock::now(), body_seen_ = 0;
    }
    const std::string_view seen = std::string_view(in_).substr(in_at_);
    if (!head_known_ && seen[0] == 0x16) return handler_.refused("tls", 0), close("tls");
    if (!head_known_ && seen.starts_with(kHttp2)) return handler_.refused("http2", 0), close("http2");
    error_code error;
    const size_t used = parser_->put(asio::buffer(seen), error);
    in_at_ += used;
    body_wire_bytes_ += used;
    if (error == http::error::need_more) error = {};
    if (error) return protocol_error(error);
    if (parser_->is_header_done() && !head_known_ && !head_complete()) return;
    if (body_wire_bytes_ > 4 * parser_->get().body().size() + kCrumbs + head_bytes_)
      return refuse(
          "tiny_chunks", 400, "the body comes in chunks of a few bytes: send it in larger ones, or with Content-Length");
    if (parser_->is_done()) return dispatch();
    if (used == 0) break;
  }
  if (!head_known_ && unread() > size_t(limits_.max_header_bytes)) protocol_error(http::error::header_limit);
}

// False: it was refused.
bool Connection::head_complete() {
  const auto& message = parser_->get();
  head_.method = std::string(message.method_string());
  head_.target = std::string(message.target());
  head_.version = int(message.version());
  head_.address = address_;
  int lengths = 0, encodings = 0, hosts = 0;
  head_bytes_ = head_.method.size() + head_.target.size();
  for (const auto& field : message) {
    head_bytes_ += field.name_string().size() + field.value().size() + 4;
    if (field.name() == http::field::content_length) lengths += field.value().contains(',') ? 2 : 1;
    encodings += field.name() == http::field::transfer_encoding;
    hosts += field.name() == http::field::host;
    head_.headers.emplace_back(field.name_string(), field.value());
  }
  head_known_ = true;
  const auto bad = [&](std::string_view reason, int status, std::string message) {
    refuse(reason, status, std::move(message));
    return false;
  };
  if (std::ssize(head_.headers) > limits_.max_headers)
    return bad("too_many_headers", 431, fmt::format("more than {} headers", limits_.max_headers));
  // Whoever stands before us may read an ambiguous length otherwise than we do.
  const bool chunked = encodings == 1 && boost::beast::iequals(message[http::field::transfer_encoding], "chunked");
  if (lengths > 1 || encodings > 1 || (lengths > 0 && encodings > 0) || (encodings > 0 && (!chunked || head_.version == 10)))
    return bad("ambiguous_length", 400, "the body's length is ambiguous: send one Content-Length, or Transfer-Encoding: chunked");
  if (hosts > 1 || (hosts == 0 && head_.version == 11)) return bad("bad_host", 400, "a request needs exactly one Host header");
  if (parser_->is_done()) return true;
  HttpReply reply;
  if (handler_.refuse_early(head_, reply)) {
    reply.close = true;
    refuse("", std::move(reply));
    return false;
  }
  const std::string* expect = head_.header("expect");
  if (expect && head_.version == 11 && parser_->get().body().empty() && unread() == 0) write(kContinue);
  return true;
}

void Connection::dispatch() {
  HttpRequest request = std::move(head_);
  const bool keep_alive = parser_->get().keep_alive() && !handler_.draining();
  request.body = std::move(parser_->get().body());
  fresh_ = false;
  exchange_ = std::make_shared<Answer>(shared_from_this(), std::move(request), keep_alive);
  handler_.handle(exchange_);
}

void Connection::protocol_error(const error_code& error) {
  if (error == http::error::header_limit)
    return refuse("headers_too_large", 431, fmt::format("the headers are longer than {} bytes", limits_.max_header_bytes));
  if (error == http::error::body_limit)
    return refuse("body_too_large", 413, fmt::format("the body is longer than {} bytes", limits_.max_body_bytes));
  refuse("bad_request", 400, fmt::format("this is no HTTP/1.1 request: {}", error.message()));
}

void Connection::refuse(std::string_view reason, int status, std::string message) {
  HttpReply reply = error_reply(api_error(status, std::move(message)));
  refuse(reason, std::move(reply));
}

void Connection::refuse(std::string_view reason, HttpReply reply) {
  if (!reason.empty()) handler_.refused(reason, reply.status);
  std::string bytes = answer_head(reply, {}, Framing::Length, reply.body.size(), false);
  if (head_.method != "HEAD") bytes += reply.body;
  write(bytes);
  exchange_ended(false);
}

// --- writing

void Connection::write(std::string_view bytes) {
  if (!open()) return;
  if (out_.empty()) progress_at_ = Clock::now();
  out_ += bytes;
  if (writing_) crowded_ |= unsent() >= size_t(limits_.max_unsent_bytes);
  else flush();
}

void Connection::flush() {
  while (open() && unsent() > 0) {
    const ssize_t n = ::send(descriptor_.native_handle(), out_.data() + out_at_, unsent(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      out_at_ += n;
      progress_at_ = Clock::now();
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN) return close("client_gone");
    if (!writing_) {
      writing_ = true;
      descriptor_.async_wait(Wait::wait_write, [self = shared_from_this()](const error_code& error) {
        self->writing_ = false;
        if (!error) self->flush();
      });
    }
    break;
  }
  if (!open()) return;
  if (unsent() == 0) {
    since_ = Clock::now();
    out_at_ = 0;
    if (out_.capacity() > kReadBytes) out_ = {};
    else out_.clear();
    if (closing_ && !lingering_) {
      // Closing with input unread would reset the connection, and the answer with it.
      ::shutdown(descriptor_.native_handle(), SHUT_WR);
      if (peer_finished_) return close("closed");
      lingering_ = true, since_ = Clock::now();
      in_.clear(), in_at_ = 0;
      want_input();
    }
  } else if (out_at_ > kReadBytes) {
    out_.erase(0, std::exchange(out_at_, 0));
  }
  const size_t limit = limits_.max_unsent_bytes;
  if (unsent() >= limit) {
    crowded_ = true;
  } else if (unsent() < limit / 2 && std::exchange(crowded_, false) && exchange_) {
    const auto room = exchange_->on_room;  // a copy: the answer may end in it
    if (room) room();
  }
}

void Connection::exchange_ended(bool keep_alive) {
  exchange_.reset();
  if (!open()) return;
  if (!keep_alive || (peer_finished_ && unread() == 0)) {
    closing_ = true;
    if (!writing_) flush();
    return;
  }
  next_request();
  // Not at once: the handler of the request that just ended is still on the stack.
  if (unread() > 0)
    asio::post(descriptor_.get_executor(), [self = shared_from_this()] {
      if (!self->exchange_ && self->open()) self->parse();
      // What is left is no whole request; where one was answered at once, the next has its own turn.
      if (self->peer_finished_ && !self->exchange_ && !self->closing_ && (self->began_ || self->unread() < 2))
        self->close("closed");
      self->want_input();
    });
  want_input();
}

// --- time

void Connection::tick(Clock::time_point now) {
  if (!open()) return;
  if (lingering_) {
    if (now - since_ > kLinger) close("closed");
    return;
  }
  if (unsent() > 0 && seconds(now - progress_at_) > limits_.stall_timeout) {
    handler_.refused("client_stalled", 0);
    return close("client_stalled");
  }
  if (exchange_) {
    if (!peer_finished_ && reading_) return;  // the read will tell
    pollfd state{descriptor_.native_handle(), POLLRDHUP, 0};
    if (::poll(&state, 1, 0) < 1) return;
    if (state.revents & (POLLERR | POLLHUP)) return close("client_gone");
    if (!peer_finished_ && (state.revents & POLLRDHUP)) peer_finished();
    return;
  }
  if (closing_) return;
  if (!began_) {
    const bool unused = fresh_ && seconds(now - since_) > limits_.header_timeout;
    const bool idle = !fresh_ && unsent() == 0 && (seconds(now - since_) > limits_.idle_timeout || handler_.draining());
    if (unused) handler_.refused("silent_connection", 0);
    if (unused || idle) close("closed");
    return;
  }
  // Looked at again and again: what came at first buys no silence later.
  const double watched = seconds(now - watched_since_);
  if (watched < limits_.header_timeout) return;
  if (!head_known_) return refuse("slow_headers", 408, "the headers did not come in time");
  const size_t came = parser_->get().body().size() - std::exchange(body_seen_, parser_->get().body().size());
  watched_since_ = now;
  if (double(came) < watched * limits_.min_body_rate) refuse("slow_body", 408, "the body comes too slowly");
}

}
