// The table of limits: one line makes a flag, a line of --print-limits and a line of the documentation.
#include "server/options.h"

#include <fmt/format.h>

namespace hunch {

std::span<const Limit> limits() {
  using L = ServerLimits;
  constexpr double kDay = 86400, kGiB = 0x1p30;
  static const std::vector<Limit> table{
      {"--max-header-bytes", "bytes", "headers of a request; more: 431", &L::max_header_bytes, 1024, 1 << 22,
          {"--h11-max-incomplete-event-size"}},
      {"--max-headers", "headers", "of a request; more: 431", &L::max_headers, 8, 10000, {"--h11-max-header-count"}},
      {"--max-body-bytes", "bytes", "body of a request; more: 413", &L::max_body_bytes, 1024, 4 * kGiB, {}},
      {"--max-connections", "connections", "open at once; more: 503", &L::max_connections, 1, 1e6, {}},
      {"--max-connections-per-address", "connections", "of one address; more: 503", &L::max_connections_per_address, 1, 1e6, {}},
      {"--max-num-queued-reqs", "requests", "that wait, per model; more: 429", &L::max_queued, 1, 1e6, {"--max-queue"}},
      {"--max-pending-bytes", "bytes", "of bodies that wait to be read, together; more: 429", &L::max_pending_bytes, 1024, 1e12,
          {}},
      {"--max-unsent-bytes", "bytes", "of an answer its client has not taken, then its request pauses", &L::max_unsent_bytes,
          1024, kGiB, {}},
      {"--read-ahead-bytes", "bytes", "of requests behind the one that is being answered", &L::read_ahead_bytes, 1024, kGiB, {}},
      {"--min-body-rate", "bytes/s", "of a body once the header time-out is over; less: 408", &L::min_body_rate, 0, kGiB, {}},
      {"--header-timeout", "s", "until the headers are complete; more: 408", &L::header_timeout, 0.1, kDay, {}},
      {"--idle-timeout", "s", "between two requests of a connection", &L::idle_timeout, 0.1, kDay, {"--timeout-keep-alive"}},
      {"--stall-timeout", "s", "in which a client takes nothing of its answer, then it is cancelled", &L::stall_timeout, 0.1,
          kDay, {}},
      {"--timeout", "s", "for one request; more: 504", &L::request_timeout, 0.1, 30 * kDay, {"-to"}},
      {"--sse-ping-interval", "s", "of silence in a stream before a comment line; 0 or -1: none", &L::ping_interval, -1, kDay,
          {}},
      {"--shutdown-timeout", "s", "that running requests may still take after SIGTERM", &L::shutdown_timeout, 0, kDay, {}},
      {"--stuck-after", "s", "without a sign of life of a busy engine, then /health says 503", &L::stuck_after, 1, kDay, {}},
      {"--watchdog", "s", "without a sign of life, then the process ends with exit code 70; 0: never", &L::watchdog, 0, kDay, {}},
  };
  return table;
}

std::string limits_text(const ServerLimits& values) {
  std::string out;
  for (const Limit& limit : limits()) {
    const double value = std::visit([&](auto member) { return double(values.*member); }, limit.member);
    out += fmt::format("{:<31} {:>9} {:<12} {}\n", limit.flag, value, limit.unit, limit.about);
  }
  return out;
}

}
