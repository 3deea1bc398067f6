// The server's life: start, ready, drain, end. What it answers is in answers.cpp.
#include "server/server.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>

#include "base/failure.h"
#include "server/notify.h"
#include "server/stacks.h"

namespace hunch {
namespace {

constexpr double kTickSeconds = 0.2, kIntervalSeconds = 10;
constexpr double kUnwind = 10;  // seconds that requests which were cut off may take to let go of the engine

double seconds_since(Clock::time_point then) { return ms_since(then) / 1e3; }

}

Server::Server(const ServerOptions& options, const ServedModels& models)
    : options_(options),
      models_(models),
      log_(options.log_file, options.log_json, options.log_level),
      workers_(options.workers),
      access_(options),
      metrics_(std::make_unique<Metrics>(std::vector<std::string>())) {}

Server::~Server() {
  watchdog_.reset();
  loop_.stop();
  if (thread_.joinable()) thread_.join();
  workers_.stop();
  text_workers_.stop();
  requests_.clear();
  http_.reset();
}

Status Server::start() {
  if (const std::string& path = options_.log_file; !path.empty()) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
    if (fd < 0) return usage_error("--log-file: cannot write to {}: {}", path, std::strerror(errno));
    ::close(fd);
  }
  HUNCH_TRY(socket_, open_listen_socket(options_.host, options_.port));
  access_.set_loopback(socket_.loopback);
  if (const Status status = access_.load_keys(); !status.ok()) {
    close(socket_.fd);
    return status;
  }
  std::signal(SIGPIPE, SIG_IGN);
  prepare_thread_stacks();
  if (!options_.core_dumps) prctl(PR_SET_DUMPABLE, 0);
  HttpHandler& handler = *this;
  loop_.on_signals({SIGTERM, SIGINT, SIGHUP, SIGUSR1}, [this](int signal) { on_signal(signal); });
  http_ = std::make_unique<HttpServer>(loop_, handler, options_.limits);
  http_->listen(socket_.fd);
  loop_.every(kTickSeconds, [this] { tick(); });
  thread_ = std::thread([this] { loop_.run(); });
  if (!socket_.loopback && !access_.needs_key())
    log_.write(Log::Warning, "whoever reaches this address may use the server: --api-key-file would change that",
        {{"address", socket_.url}});
  log_.write(Log::Info, "loading", {{"address", socket_.url}});
  return {};
}

void Server::ready() {
  std::vector<std::string> names;
  std::vector<Watchdog::Look> looks;
  for (size_t i = 0; i < models_.size(); ++i) {
    names.push_back(models_.at(i).id);
    looks.push_back([engine = models_.at(i).engine] { return engine->heartbeat(); });
  }
  looks.push_back([this] { return Heartbeat{ticks_, true}; });  // and the loop itself
  // The service manager hears of life only while the engines show some.
  const double period = service_manager_watchdog_seconds() / 2;
  auto on_alive = [period, last = Clock::now()]() mutable {
    if (period <= 0 || seconds_since(last) < period) return;
    last = Clock::now();
    notify_service_manager("WATCHDOG=1");
  };
  auto on_dead = [this](double stuck) {
    log_.write(Log::Failure, "an engine shows no sign of life: the process ends for its supervisor to start it anew",
        {{"seconds", stuck}, {"exit_code", int64_t(kExitBroken)}});
    dump_threads();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // for the log
    _exit(kExitBroken);
  };
  loop_.post([this, names = std::move(names), looks = std::move(looks), on_alive, on_dead] {
    if (state_ != State::Loading) return;
    metrics_ = std::make_unique<Metrics>(names);
    world_ = std::make_unique<Generating::World>(Generating::World{loop_, workers_, *metrics_, log_, options_, models_,
        pending_bytes_, [this](std::string_view reason, int status) { refused(reason, status); },
        [this](Generating& request) { requests_.erase(&request); }});
    watchdog_ = std::make_unique<Watchdog>(looks, options_.limits.stuck_after, options_.limits.watchdog, on_alive, on_dead);
    state_ = State::Ready;
    log_.write(Log::Info, "ready", {{"address", socket_.url}, {"models", std::ssize(models_)}});
    notify_service_manager("READY=1\nSTATUS=" + socket_.url);
  });
}

int Server::wait() {
  if (thread_.joinable()) thread_.join();
  return exit_code_;
}

void Server::on_signal(int signal) {
  if (signal == SIGHUP) {
    log_.reopen();
    if (const Status status = access_.load_keys(); !status.ok())
      log_.write(Log::Failure, "the keys stay as they were", {{"error", status.error().message}});
    else log_.write(Log::Info, "log and keys opened again");
  } else if (signal == SIGUSR1) {
    dump_state();
    if (state_ != State::Loading) dump_threads();
  } else if (state_ == State::Ready) {
    log_.write(Log::Info, "draining: no new requests; a second signal ends at once",
        {{"requests", std::ssize(requests_)}, {"seconds", options_.limits.shutdown_timeout}});
    drain(signal == SIGTERM ? 0 : 128 + signal);
  } else {
    stop_at_once(signal);
  }
}

void Server::drain(int exit_code) {
  state_ = State::Draining;
  drain_began_ = Clock::now();
  exit_code_ = exit_code;
  notify_service_manager("STOPPING=1");
  tick();
}

void Server::stop_at_once(int signal) {
  // A second signal, or one while the models load, which nothing can interrupt.
  log_.write(Log::Warning, "stopped at once", {{"signal", int64_t(signal)}});
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // for the log
  _exit(128 + signal);
}

void Server::tick() {
  ++ticks_;
  const auto now = Clock::now();
  std::vector<std::shared_ptr<Generating>> all;
  for (const auto& [key, request] : requests_) all.push_back(request);
  for (const auto& request : all) request->tick(now);
  if (state_ == State::Ready && double(ticks_ % uint64_t(kIntervalSeconds / kTickSeconds)) == 0)
    for (size_t i = 0; i < models_.size(); ++i) metrics_->interval_over(i, models_.at(i).engine->stats());
  if (state_ == State::Ready && device_lost()) {
    log_.write(Log::Failure, "a device was lost: the process ends for its supervisor to start it anew",
        {{"exit_code", int64_t(kExitBroken)}});
    return drain(kExitBroken);
  }
  if (state_ != State::Draining) return;
  const double since = seconds_since(drain_began_);
  if (since >= options_.limits.shutdown_timeout && !std::exchange(cut_off_, true))
    for (const auto& request : all) {
      refused("server_shutdown", 503);
      request->stop(api_error(503, "the server is being shut down", "server_shutdown", 1), "server_shutdown");
    }
  if (requests_.empty() && http_->num_busy() == 0) return leave(exit_code_);
  if (since >= options_.limits.shutdown_timeout + kUnwind) leave(exit_code_);
}

bool Server::device_lost() const {
  for (size_t i = 0; i < models_.size(); ++i)
    if (models_.at(i).engine->heartbeat().lost) return true;
  return false;
}

void Server::leave(int code) {
  exit_code_ = code;
  log_.write(Log::Info, "stopped", {{"exit_code", int64_t(code)}});
  http_->stop_listening();
  loop_.stop();
}

// From any thread, also where an engine holds what others wait for.
void Server::dump_threads() {
  for (size_t i = 0; i < models_.size(); ++i) {
    const Heartbeat now = models_.at(i).engine->heartbeat();
    log_.write(Log::Info, "heartbeat",
        {{"model", models_.at(i).id}, {"busy", int64_t(now.busy)}, {"doing", now.doing}, {"beats", int64_t(now.beats)}});
  }
  for (const ThreadStack& thread : thread_stacks())
    log_.write(Log::Info, "thread", {{"id", int64_t(thread.id)}, {"name", thread.name}, {"frames", thread.frames}});
}

void Server::dump_state() {
  log_.write(Log::Info, "state",
      {{"requests", std::ssize(requests_)}, {"connections", int64_t(http_->num_connections())},
          {"reading", int64_t(workers_.waiting())}, {"stuck_seconds", watchdog_ ? watchdog_->stuck_seconds() : 0.0},
          {"draining", int64_t(draining())}});
  for (size_t i = 0; state_ != State::Loading && i < models_.size(); ++i) {
    const EngineStats s = models_.at(i).engine->stats();
    log_.write(Log::Info, "engine",
        {{"model", models_.at(i).id}, {"running", int64_t(s.running)}, {"waiting", int64_t(s.waiting)},
            {"kv_pages_used", s.kv_pages_used}, {"kv_pages_total", s.kv_pages_total}, {"passes", s.passes}});
  }
}

}
