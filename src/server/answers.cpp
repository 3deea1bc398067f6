// Server, the other half: what it answers to whom.
#include <fmt/format.h>

#include "api/info_bodies.h"
#include "backend/ops/kv.h"
#include "server/page_text.h"
#include "server/server.h"

namespace hunch {
namespace {

constexpr size_t kMostRequestId = 128;

// What a client calls its request, where that can be repeated to it and written to a log; else nothing.
std::string printable_id(const HttpRequest& request) {
  const std::string* given = request.header("x-request-id");
  if (!given || given->empty() || given->size() > kMostRequestId) return {};
  for (const char c : *given)
    if (c < 0x21 || c > 0x7e) return {};
  return *given;
}

HttpReply reply_of(const std::variant<std::string, ApiError>& outcome) {
  if (const auto* error = std::get_if<ApiError>(&outcome)) return error_reply(*error);
  return {.body = std::get<std::string>(outcome)};
}

// The page may load its own files and ask its own server, and nobody may put it into a frame.
HttpReply page_reply(PageFile file, std::string type) {
  return {.body = std::string(page_text(file)),
      .type = std::move(type),
      .headers = {{"Content-Security-Policy", "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'"},
          {"X-Content-Type-Options", "nosniff"}, {"Cache-Control", "no-cache"}}};
}

// Needs no key: health for whoever watches, the page because it asks for the key itself.
bool open_to_all(Route route) {
  return route == Route::Health || route == Route::Page || route == Route::PageStyle || route == Route::PageScript;
}

bool generates(Route route) { return route == Route::Completions || route == Route::ChatCompletions; }
bool has_body(Route route) { return generates(route) || route == Route::Tokenize || route == Route::Detokenize; }

}

// Everything that can be said without the body. What costs least comes first.
std::optional<HttpReply> Server::refusal(const HttpRequest& request, const RouteMatch& match) {
  const auto refuse = [&](std::string_view reason, const ApiError& error) {
    refused(reason, error.status);
    return error_reply(error);
  };
  if (match.status == 400) return refuse("bad_path", api_error(400, match.message));
  if (const auto error = access_.check(request, open_to_all(match.route) || match.status == 204))
    return refuse(error->code, *error);
  if (match.status == 204) {
    HttpReply reply{.status = 204, .headers = access_.cors_headers(request, true)};
    reply.headers.emplace_back("Allow", match.allow);
    return reply;
  }
  if (match.status == 404) return refuse("unknown_route", api_error(404, match.message));
  if (match.status == 405) {
    HttpReply reply = refuse("wrong_method", api_error(405, match.message));
    reply.headers.emplace_back("Allow", match.allow);
    return reply;
  }
  const bool off = (match.route == Route::Metrics && !options_.metrics) || (match.route == Route::Slots && !options_.slots) ||
      (match.route == Route::Props && !options_.props);
  if (off) return refuse("route_off", api_error(501, "this server was started without this route"));
  const bool needs_models = !open_to_all(match.route) && match.route != Route::Metrics && match.route != Route::Version &&
      match.route != Route::OpenApi;
  if (needs_models && state_ == State::Loading)
    return refuse("loading", api_error(503, "the models are being loaded", "loading", 1));
  if (!has_body(match.route)) return {};
  const std::string* type = request.header("content-type");
  if (type && (type->starts_with("multipart/") || type->starts_with("image/") || type->starts_with("audio/")))
    return refuse("content_type", api_error(415, "the body must be JSON: Content-Type: application/json"));
  const std::string* encoding = request.header("content-encoding");
  if (encoding && *encoding != "identity") return refuse("content_encoding", api_error(415, "the body must not be compressed"));
  if (state_ == State::Draining)
    return refuse("server_shutdown", api_error(503, "the server is being shut down", "server_shutdown", 1));
  if (overloaded())
    return refuse("queue_full", api_error(429, "too many requests are waiting: try again later", "queue_full", 1));
  return {};
}

bool Server::overloaded() const {
  const int64_t most = options_.limits.max_queued;
  if (int64_t(workers_.waiting()) >= most) return true;
  for (size_t i = 0; i < models_.size(); ++i)
    if (models_.at(i).engine->stats().waiting < most) return false;
  return models_.size() > 0;
}

bool Server::refuse_early(const HttpRequest& head, HttpReply& reply) {
  auto refused = refusal(head, match_route(head.method, head.target));
  if (!refused) return false;
  reply = std::move(*refused);
  if (std::string id = printable_id(head); !id.empty()) reply.headers.emplace_back("X-Request-Id", std::move(id));
  for (auto& header : access_.cors_headers(head, false)) reply.headers.push_back(std::move(header));
  metrics_->answered(reply.status);
  return true;
}

void Server::handle(std::shared_ptr<Exchange> exchange) {
  const HttpRequest& request = exchange->request();
  const RouteMatch match = match_route(request.method, request.target);
  const std::string given = printable_id(request);
  // Ours are for our logs only where the client has one of its own: two clients may choose the same.
  const std::string id = given.empty() ? fmt::format("{:08x}", ++next_id_) : given;
  exchange->extra = {{"X-Request-Id", id}};
  if (match.status != 204)
    for (auto& header : access_.cors_headers(request, false)) exchange->extra.push_back(std::move(header));
  const bool quiet = match.route == Route::Health || match.route == Route::Metrics;
  exchange->on_over = [this, id, quiet, name = match.name, address = request.address, since = Clock::now()](int status) {
    metrics_->answered(status);
    log_.write(quiet ? Log::Debug : Log::Info, "answered",
        {{"route", name.empty() ? std::string_view("?") : name}, {"status", int64_t(status)}, {"seconds", ms_since(since) / 1e3},
            {"client", address}, {"request_id", id}});
  };
  if (auto refused = refusal(request, match)) return exchange->reply(std::move(*refused));
  if (generates(match.route)) return generate(std::move(exchange), match.route, given);
  if (has_body(match.route)) return compute(std::move(exchange), match.route);
  exchange->reply(answer(match));
}

void Server::refused(std::string_view reason, int status) {
  metrics_->refused(reason);
  log_.write_seldom(Log::Info, reason, "refused", {{"reason", reason}, {"status", int64_t(status)}});
}

void Server::refuse_full(Exchange& exchange) {
  refused("queue_full", 429);
  exchange.reply(error_reply(api_error(429, "too many requests are waiting to be read: try again later", "queue_full", 1)));
}

void Server::generate(std::shared_ptr<Exchange> exchange, Route route, const std::string& request_id) {
  const Endpoint endpoint = route == Route::Completions ? Endpoint::Completions : Endpoint::ChatCompletions;
  auto request = std::make_shared<Generating>(*world_, exchange, endpoint, request_id);
  if (!request->start()) { return refuse_full(*exchange); }
  requests_.emplace(request.get(), std::move(request));
}

HttpReply Server::answer(const RouteMatch& match) {
  using enum Route;
  switch (match.route) {
    case Page: return page_reply(PageFile::Page, "text/html; charset=utf-8");
    case PageStyle: return page_reply(PageFile::Style, "text/css; charset=utf-8");
    case PageScript: return page_reply(PageFile::Script, "text/javascript; charset=utf-8");
    case Health: return health();
    case Metrics: return metrics_text();
    case Models: return {.body = models_body(models_)};
    case Model: return reply_of(model_body(models_, match.argument));
    case Props: return reply_of(props_body(models_, "", options_.version));
    case Slots: return {.body = slots_body(models_)};
    case OpenApi: return {.body = openapi_body(options_.version)};
    default: return {.body = version_body(options_.version)};
  }
}

// Tokenizing and the like: an answer that costs CPU but needs no engine.
void Server::compute(std::shared_ptr<Exchange> exchange, Route route) {
  std::string body = exchange->take_body();
  const int64_t bytes = std::ssize(body);
  const bool room = (pending_bytes_ += bytes) <= std::max(options_.limits.max_pending_bytes, bytes);
  const auto work = [this, exchange, route, bytes, body = std::move(body)] {
    auto outcome =
        route == Route::Tokenize ? tokenize_answer(body, models_, options_.api) : detokenize_answer(body, models_, options_.api);
    pending_bytes_ -= bytes;
    loop_.post([this, exchange, outcome = std::move(outcome)] {
      if (const auto* error = std::get_if<ApiError>(&outcome)) refused(reason_of(*error), error->status);
      exchange->reply(reply_of(outcome));
    });
  };
  if (room && text_workers_.submit(work, options_.limits.max_queued)) return;
  pending_bytes_ -= bytes;
  refuse_full(*exchange);
}

HttpReply Server::health() const {
  const auto bad = [](std::string message, std::string code) {
    return error_reply(api_error(503, std::move(message), std::move(code), 1));
  };
  if (state_ == State::Loading) return bad("the models are being loaded", "loading");
  if (device_lost()) return bad("a device was lost: the server ends to be started anew", "device_lost");
  if (state_ == State::Draining) return bad("the server is being shut down", "server_shutdown");
  const double stuck = watchdog_->stuck_seconds();
  if (stuck >= options_.limits.stuck_after)
    return bad(fmt::format("an engine has shown no sign of life for {:.0f} s", stuck), "engine_stuck");
  return {.body = R"({"status":"ok"})"};
}

HttpReply Server::metrics_text() {
  std::vector<Metrics::EngineNow> engines;
  for (size_t i = 0; state_ != State::Loading && i < models_.size(); ++i) {
    const ServedModel& model = models_.at(i);
    engines.push_back(
        {.stats = model.engine->stats(), .page_entries = kPageLen, .lossless = model.defaults.speculation.lossless()});
  }
  const Metrics::ServerNow server{
      .connections = http_->num_connections(),
      .reading = int(workers_.waiting()),
      .log_lines_dropped = log_.dropped(),
      .stuck_seconds = watchdog_ ? watchdog_->stuck_seconds() : 0,
      .ready = state_ == State::Ready,
  };
  return {.body = metrics_->text(engines, server), .type = "text/plain; version=0.0.4; charset=utf-8"};
}

}
