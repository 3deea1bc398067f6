// Server: routes requests to what answers them, and knows the state of the whole: loading, ready, draining. `hunch serve` loads
// the models while it already answers /health.
#pragma once

#include <unordered_map>

#include "server/access.h"
#include "server/generating.h"
#include "server/http_server.h"
#include "server/listen.h"
#include "server/router.h"
#include "server/watchdog.h"

namespace hunch {

constexpr int kExitBroken = 70;  // EX_SOFTWARE, of a stuck engine or a lost device: the supervisor is to start it anew

class Server final : private HttpHandler {
 public:
  // `models` is empty until ready(); both outlive the server.
  Server(const ServerOptions& options, const ServedModels& models);
  ~Server() override;

  // Opens the socket and answers from then on, on a thread of its own: 503 until ready(). Signals are the server's too.
  Status start();
  const std::string& url() const { return socket_.url; }
  // The models are there and will not change.
  void ready();
  // Until a signal or a lost device has ended it. The exit code: 0 after SIGTERM, 130 after SIGINT, 70 after a loss.
  int wait();

 private:
  enum class State { Loading, Ready, Draining };

  bool refuse_early(const HttpRequest& head, HttpReply& reply) override;
  void handle(std::shared_ptr<Exchange> exchange) override;
  void refused(std::string_view reason, int status) override;
  void refuse_full(Exchange& exchange);
  bool draining() const override { return state_ == State::Draining; }

  std::optional<HttpReply> refusal(const HttpRequest& request, const RouteMatch& match);
  HttpReply answer(const RouteMatch& match);
  void compute(std::shared_ptr<Exchange> exchange, Route route);
  void generate(std::shared_ptr<Exchange> exchange, Route route, const std::string& request_id);
  HttpReply health() const;
  HttpReply metrics_text();
  bool overloaded() const;
  void tick();
  void on_signal(int signal);
  void drain(int exit_code);
  void stop_at_once(int signal);
  bool device_lost() const;
  void dump_state();
  void dump_threads();
  void leave(int code);

  const ServerOptions& options_;
  const ServedModels& models_;
  Log log_;
  Loop loop_;
  WorkerPool workers_, text_workers_{1};  // for generations; for what is tokenized alone
  Access access_;
  ListenSocket socket_;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<Watchdog> watchdog_;
  std::unique_ptr<Generating::World> world_;
  std::unordered_map<Generating*, std::shared_ptr<Generating>> requests_;
  State state_ = State::Loading;
  Clock::time_point drain_began_;
  bool cut_off_ = false;  // what ran when the time to drain was over has been told so
  std::atomic<uint64_t> ticks_{0};
  std::atomic<int64_t> pending_bytes_{0};
  uint64_t next_id_ = 0;
  int exit_code_ = 0;
  std::thread thread_;
};

}
