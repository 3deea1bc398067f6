// Access: who may ask: keys, and what browsers may do for a page of another origin. Looked at before a request's body is read.
#pragma once

#include "server/api_keys.h"
#include "server/http.h"
#include "server/options.h"

namespace hunch {

class Access {
 public:
  explicit Access(const ServerOptions& options) : options_(options) {}

  // Only this machine can reach the server (the default until said otherwise): only its own names are taken for its name.
  void set_loopback(bool loopback) { loopback_ = loopback; }

  Status load_keys() { return keys_.set(options_.api_keys, options_.api_key_file); }

  bool needs_key() const { return keys_.any(); }

  // `open_route`: needs no key.
  std::optional<ApiError> check(const HttpRequest& request, bool open_route) const;
  // What browsers must hear with every answer to this request, and with the one to a pre-flight.
  Headers cors_headers(const HttpRequest& request, bool preflight) const;

 private:
  bool host_allowed(std::string_view host) const;
  bool origin_allowed(std::string_view origin, const HttpRequest& request) const;

  const ServerOptions& options_;
  bool loopback_ = true;
  ApiKeys keys_;
};

// "localhost" of "localhost:8000", "::1" of "[::1]:8000".
std::string_view host_name(std::string_view host);

}
