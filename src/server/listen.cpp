#include "server/listen.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/failure.h"

namespace hunch {
namespace {

namespace fs = std::filesystem;

// The inode of whoever listens on the port, from the kernel's table; empty: not found.
std::string inode_of(int port, const char* table) {
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string number, local, remote, state, queues, timer, retries, user, timeout, inode;
    fields >> number >> local >> remote >> state >> queues >> timer >> retries >> user >> timeout >> inode;
    const size_t colon = local.rfind(':');
    if (state == "0A" && colon != local.npos && local.substr(colon + 1) == fmt::format("{:04X}", port)) return inode;
  }
  return {};
}

// " by pid 4711 (hunch)", or nothing: other users' processes keep their descriptors to themselves.
std::string owner_of(int port) {
  std::string inode = inode_of(port, "/proc/net/tcp");
  if (inode.empty()) inode = inode_of(port, "/proc/net/tcp6");
  if (inode.empty()) return {};
  const std::string wanted = "socket:[" + inode + "]";
  std::error_code ignored;
  for (const auto& process : fs::directory_iterator("/proc", ignored)) {
    const std::string pid = process.path().filename();
    if (pid.find_first_not_of("0123456789") != pid.npos) continue;
    fs::directory_iterator descriptors(process.path() / "fd", ignored);
    if (ignored) continue;
    for (const auto& descriptor : descriptors) {
      if (fs::read_symlink(descriptor.path(), ignored) != wanted) continue;
      std::string name;
      std::getline(std::ifstream(process.path() / "comm"), name);
      return fmt::format(" by pid {} ({})", pid, name);
    }
  }
  return {};
}

Error failed(const std::string& what, int error, int port, int fd) {
  if (fd >= 0) close(fd);
  if (error == EADDRINUSE)
    return failure("address in use{}: {}; choose another {}", port > 0 ? owner_of(port) : "", what, port > 0 ? "--port" : "path");
  if (error == EACCES) return failure("no permission to listen there: {}; ports below 1024 belong to root", what);
  return failure("cannot listen: {}: {}", what, std::strerror(error));
}

Result<ListenSocket> open_unix(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return usage_error("--host: the path is too long for a socket: {}", path);
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return failed(path, errno, 0, fd);
  // A socket that nobody answers on is left from a process that was killed.
  struct stat there = {};
  if (lstat(path.c_str(), &there) == 0 && S_ISSOCK(there.st_mode) &&
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 && errno == ECONNREFUSED)
    unlink(path.c_str());
  if (bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 || ::listen(fd, SOMAXCONN) != 0)
    return failed(path, errno, 0, fd);
  return ListenSocket{fd, "unix:" + path, true};
}

}

Result<ListenSocket> open_listen_socket(const std::string& host, int port) {
  if (host.ends_with(".sock")) return open_unix(host);
  const std::string name = host == "localhost" ? "127.0.0.1" : host == "*" ? "0.0.0.0" : host;
  addrinfo hints = {}, *found = nullptr;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE;
  hints.ai_socktype = SOCK_STREAM;
  if (getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &found) != 0 || !found)
    return usage_error("--host needs a numeric address, localhost or the path of a .sock, not {}", host);
  const addrinfo address = *found;
  sockaddr_storage storage = {};
  std::memcpy(&storage, address.ai_addr, address.ai_addrlen);
  freeaddrinfo(found);

  const bool six = address.ai_family == AF_INET6;
  const auto shown = fmt::format("{}:{}", six ? "[" + name + "]" : name, port);
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return failed(shown, errno, 0, fd);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd, reinterpret_cast<const sockaddr*>(&storage), address.ai_addrlen) != 0 || ::listen(fd, SOMAXCONN) != 0)
    return failed(shown, errno, port, fd);
  socklen_t length = sizeof storage;
  getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length);
  const int bound = ntohs(
      six ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port : reinterpret_cast<const sockaddr_in&>(storage).sin_port);
  const bool loopback = name.starts_with("127.") || name == "::1";
  return ListenSocket{fd, fmt::format("http://{}:{}", six ? "[" + name + "]" : name, bound), loopback};
}

}
