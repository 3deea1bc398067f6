// ServerOptions: what `hunch serve` can be told about the server itself, its limits with their defaults among it. Models and how
// they run are the command line's and the engine's business.
#pragma once

#include <span>

#include "api/call.h"

namespace hunch {

// Bounds on what clients may take; each is a flag of its name (see limits()), in bytes, seconds or pieces.
struct ServerLimits {
  int64_t max_header_bytes = 32 << 10;
  int64_t max_headers = 100;
  int64_t max_body_bytes = int64_t(32) << 20;
  int64_t max_connections = 4096;
  int64_t max_connections_per_address = 256;
  int64_t max_queued = 1024;                       // requests that wait for a seat, per model; also those that wait to be read
  int64_t max_pending_bytes = int64_t(256) << 20;  // bodies that wait to be read, together
  int64_t max_unsent_bytes = 256 << 10;            // of one answer, before its request pauses
  int64_t read_ahead_bytes = 16 << 10;             // of requests behind the one that is answered
  int64_t min_body_rate = 1024;                    // bytes a second, after header_timeout
  double header_timeout = 10;                      // from the first byte to the end of the headers
  double idle_timeout = 75;                        // between two requests of a connection
  double stall_timeout = 30;                       // without a byte taken by a client that has some to take
  double request_timeout = 3600;                   // from the request to the end of its answer
  double ping_interval = 30;                       // of silence in a stream, then a comment line; 0: none
  double shutdown_timeout = 30;                    // that running requests may take after SIGTERM
  double stuck_after = 10;                         // without a heartbeat of a busy engine: /health says 503
  double watchdog = 60;                            // ... and the process ends with exit code 70; 0: never
};

struct Limit {
  std::string_view flag, unit, about;
  std::variant<int64_t ServerLimits::*, double ServerLimits::*> member;
  double least, most;
  std::vector<std::string_view> aliases;  // other servers' names
};
std::span<const Limit> limits();
// What --print-limits prints: a line each, with flag, value and meaning.
std::string limits_text(const ServerLimits& values);

struct ServerOptions {
  std::string version;             // of the program, for /version and /props
  std::string host = "127.0.0.1";  // an address, localhost, or a path that ends in .sock
  int port = 8000;                 // 0: any free one
  std::vector<std::string> api_keys;
  std::string api_key_file;                // a key a line; read again at SIGHUP
  std::vector<std::string> cors_origins;   // besides the same origin; "*": all
  std::vector<std::string> allowed_hosts;  // besides this machine's own names, where the server is bound to loopback
  int workers = 2;                         // threads that read and check requests
  bool core_dumps = true;                  // false: neither dumps nor debuggers see what clients said
  bool metrics = true, slots = true, props = true;
  std::string log_file;  // empty: stderr
  bool log_json = false;
  int log_level = 1;  // 0 debug, 1 info, 2 warnings, 3 errors
  ServerLimits limits;
  ApiLimits api;
};

}
