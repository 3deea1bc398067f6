#include "server/http_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <unordered_map>

#include "server/answer_text.h"
#include "server/connection.h"
#include "server/loop_asio.h"

namespace hunch {
namespace {

namespace asio = boost::asio;
using Wait = asio::posix::descriptor_base;

constexpr double kTickSeconds = 0.05;   // so soon at the latest a client that left is noticed
constexpr int kAcceptsAtOnce = 64;      // before others have their turn
constexpr int kSendBuffer = 128 << 10;  // what the kernel may hold besides max_unsent_bytes

std::string address_of(const sockaddr_storage& peer) {
  char text[INET6_ADDRSTRLEN] = "local";
  if (peer.ss_family == AF_INET) inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(peer).sin_addr, text, sizeof text);
  if (peer.ss_family == AF_INET6) inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr, text, sizeof text);
  return text;
}

// All that a connection too many hears. It has not said anything yet, and is not waited for.
void turn_away(int fd) {
  HttpReply reply = error_reply(api_error(503, "too many connections: try again later", "too_many_connections", 1));
  const std::string bytes = answer_head(reply, {}, Framing::Length, reply.body.size(), false) + reply.body;
  (void)!::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ::shutdown(fd, SHUT_WR);
  char unread[4096];  // closing on top of input would reset the connection before the answer is read
  while (recv(fd, unread, sizeof unread, MSG_DONTWAIT) > 0) {}
  ::close(fd);
}

}

struct HttpServer::Impl final : Connection::Owner, std::enable_shared_from_this<HttpServer::Impl> {
  Impl(Loop& loop, HttpHandler& handler, const ServerLimits& limits)
      : context(loop.impl().context), handler(handler), limits(limits), reserve(open_reserve()) {}
  ~Impl() override {
    if (reserve >= 0) ::close(reserve);
  }

  static int open_reserve() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }

  void wait() {
    listener->async_wait(Wait::wait_read, [self = shared_from_this()](const boost::system::error_code& error) {
      if (error || !self->listener) return;
      const bool out_of_descriptors = !self->accept_some();
      if (!self->listener) return;
      if (out_of_descriptors) self->paused = true;  // the next tick tries again, rather than this thread forever
      else self->wait();
    });
  }

  bool accept_some() {
    for (int i = 0; i < kAcceptsAtOnce; ++i) {
      sockaddr_storage peer = {};
      socklen_t length = sizeof peer;
      const int fd =
          accept4(listener->native_handle(), reinterpret_cast<sockaddr*>(&peer), &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd >= 0) {
        admit(fd, address_of(peer));
        continue;
      }
      if (errno == EMFILE || errno == ENFILE) {
        // One descriptor is kept to say so; without it the client would wait for nothing, and this thread spin.
        handler.refused("no_descriptors", 503);
        if (reserve >= 0) ::close(std::exchange(reserve, -1));
        const int last = accept4(listener->native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (last >= 0) turn_away(last);
        reserve = open_reserve();
        if (last < 0) return false;
        continue;
      }
      return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR || errno == ECONNABORTED;
    }
    return true;
  }

  void admit(int fd, std::string address) {
    const bool local = address == "local";
    if (std::ssize(connections) >= limits.max_connections) {
      handler.refused("too_many_connections", 503);
      return turn_away(fd);
    }
    if (!local && per_address[address] >= limits.max_connections_per_address) {
      handler.refused("too_many_of_one_address", 503);
      return turn_away(fd);
    }
    ++per_address[address];
    const int on = 1;
    if (!local) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof kSendBuffer);
    auto connection = std::make_shared<Connection>(context, fd, std::move(address), *this, handler, limits);
    connections.emplace(connection.get(), connection);
    connection->start();
  }

  void closed(Connection& connection) override {
    const auto count = per_address.find(connection.address());
    if (count != per_address.end() && --count->second <= 0) per_address.erase(count);
    connections.erase(&connection);
  }

  void tick() {
    scratch.clear();
    for (const auto& [key, connection] : connections) scratch.push_back(connection);
    const auto now = Clock::now();
    for (const auto& connection : scratch) connection->tick(now);
    scratch.clear();
    if (listener && std::exchange(paused, false)) wait();
  }

  asio::io_context& context;
  HttpHandler& handler;
  const ServerLimits& limits;
  int reserve;
  bool paused = false;
  std::optional<asio::posix::stream_descriptor> listener;
  std::unordered_map<Connection*, std::shared_ptr<Connection>> connections;
  std::map<std::string, int64_t> per_address;
  std::vector<std::shared_ptr<Connection>> scratch;
};

HttpServer::HttpServer(Loop& loop, HttpHandler& handler, const ServerLimits& limits)
    : impl_(std::make_shared<Impl>(loop, handler, limits)) {
  loop.every(kTickSeconds, [impl = impl_] { impl->tick(); });
}

HttpServer::~HttpServer() {
  stop_listening();
  auto connections = std::move(impl_->connections);
  impl_->connections.clear();
  for (const auto& [key, connection] : connections) connection->close("shutdown");
}

void HttpServer::listen(int fd) {
  impl_->listener.emplace(impl_->context, fd);
  impl_->wait();
}

void HttpServer::stop_listening() { impl_->listener.reset(); }

int HttpServer::num_connections() const { return int(impl_->connections.size()); }

int HttpServer::num_busy() const {
  int busy = 0;
  for (const auto& [key, connection] : impl_->connections) busy += connection->busy();
  return busy;
}

}
