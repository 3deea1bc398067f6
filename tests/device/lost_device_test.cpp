// A device that is lost amid requests: each ends with its message, so does every later one, and nobody waits forever.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../conformance/equality.h"
#include "../conformance/methods.h"
#include "engine/token_run.h"
#include "late_backend.h"
#include "server/server.h"

namespace hunch {
namespace {

using namespace test;

constexpr const char* kLost = "the device was lost";

EngineOptions tiny(int seqs) {
  return {.model = tiny_path("qwen3-tied"), .device = "late", .context_len = 256, .chunk_len = 40, .max_num_seqs = seqs};
}

TEST(LostDevice, EndsARequestOfEveryMethodWithItsMessage) {
  int turn = 0;
  for (const auto& method : kMethods)
    for (const int64_t waits : {0, 1, 2, 5, 11}) {
      auto engine = load(tiny(2));
      auto request = ask(phrases(100, 40, 3), 100);
      set_method(request, method, 1 + turn++ % 5);
      lose_late_device(*engine->parts().backend, waits);
      SCOPED_TRACE(fmt::format("{} after {}", name_of(method), waits));
      for (int again = 0; again < 2; ++again) expect_error(engine->generate(request), kLost);
    }
}

TEST(LostDevice, EndsACrowdAndWhoComesLater) {
  for (const int64_t waits : {0, 3, 12, 40}) {
    auto engine = load(tiny(3));
    std::vector<Request> requests;
    for (int i = 0; i < 8; ++i) {  // more than run at once: some wait
      requests.push_back(request_of_kind(*engine, i, phrases(90 + 5 * i, 40, i), 40));
      set_method(requests.back(), kMethods[i % kNumMethods], 3);
    }
    lose_late_device(*engine->parts().backend, waits);
    int failed = 0;
    for (auto& stream : submit(*engine, requests)) {
      const auto done = stream->result();
      if (done.ok()) continue;  // had ended before
      expect_error(done, kLost);
      ++failed;
    }
    EXPECT_GT(failed, 0) << waits;
    expect_error(engine->generate(ask(random_prompt(20, 256, 1), 5)), kLost);
  }
}

// Sends a request to a port of this machine; everything that comes until the server closes is behind it.
class Client {
 public:
  Client(int port, const std::string& request) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in to{};
    to.sin_family = AF_INET, to.sin_port = htons(uint16_t(port)), to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const timeval patience{
        .tv_sec = 20, .tv_usec = 0};  // a server that has stopped may leave a socket open until it is destroyed
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    connected_ = connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0;
    if (connected_) (void)!write(fd_, request.data(), request.size());
  }
  ~Client() { close(fd_); }
  std::string answer() {
    std::string all;
    char piece[4096];
    for (ssize_t n; connected_ && (n = read(fd_, piece, sizeof piece)) > 0;) all.append(piece, size_t(n));
    return all;
  }

 private:
  int fd_;
  bool connected_ = false;
};

TEST(LostDevice, EndsTheServerWhichSaysSoToAllBefore) {
  auto engine = load(tiny(2));
  ServedModels models;
  ASSERT_TRUE(models.add({.id = "m", .engine = engine.get()}).ok());
  ServerOptions options;
  options.port = 0, options.log_level = Log::Failure + 1;
  Server server(options, models);
  ASSERT_TRUE(server.start().ok());
  server.ready();
  const int port = std::stoi(server.url().substr(server.url().rfind(':') + 1));
  const auto health = [&] {
    return Client(port, "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").answer();
  };
  while (health().find(" 200 ") == std::string::npos) std::this_thread::yield();
  const auto ask = [&](bool stream) {
    const auto body = fmt::format(R"({{"prompt":[5,6,7],"max_tokens":200,"ignore_eos":true,"stream":{}}})", stream);
    return Client(port,
        fmt::format("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n"
                    "Connection: close\r\n\r\n{}",
            body.size(), body));
  };
  Client streaming = ask(true), whole = ask(false);
  while (engine->stats().generated_tokens < 6 || engine->stats().running < 2) std::this_thread::yield();
  lose_late_device(*engine->parts().backend, 2);
  EXPECT_NE(streaming.answer().find(R"("code":"device_lost")"), std::string::npos);
  EXPECT_EQ(health().find(" 200 "), std::string::npos) << "from then on until it is gone it never says that all is well";
  const std::string refused = whole.answer();
  EXPECT_NE(refused.find(" 503 "), std::string::npos) << refused;
  EXPECT_NE(refused.find("device_lost"), std::string::npos) << refused;
  EXPECT_EQ(server.wait(), kExitBroken);
}

TEST(LostDevice, ShowsInTheStatusOfARunOfTokens) {
  auto engine = load(tiny(1));
  const auto run = good(TokenRun::make(engine->parts(), 100));
  const auto ids = random_prompt(90, 256, 1);
  run->feed(std::span(ids).first(30), 10, TokenRun::Logits::All);
  EXPECT_TRUE(run->status().ok());
  lose_late_device(*engine->parts().backend, 2);
  run->feed(std::span(ids).subspan(30), 10, TokenRun::Logits::All);
  expect_error(run->status(), kLost);
}

}
}
