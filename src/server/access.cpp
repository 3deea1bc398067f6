#include "server/access.h"

#include <algorithm>
#include <boost/beast/core/string.hpp>

namespace hunch {
namespace {

bool contains(const std::vector<std::string>& list, std::string_view word) { return std::ranges::find(list, word) != list.end(); }

}

std::string_view host_name(std::string_view host) {
  if (host.starts_with('[')) return host.substr(1, std::min(host.find(']'), host.size()) - 1);
  return host.substr(0, host.rfind(':'));
}

// A page in a browser can make its own name mean 127.0.0.1 and then ask as if it were this machine; its name gives it away.
bool Access::host_allowed(std::string_view host) const {
  if (!loopback_ || contains(options_.allowed_hosts, "*")) return true;
  const std::string_view name = host_name(host);
  const bool number = name.starts_with("127.") && name.find_first_not_of("0123456789.") == name.npos;
  return boost::beast::iequals(name, "localhost") || name == "::1" || number || name == options_.host ||
      contains(options_.allowed_hosts, name) || options_.host.ends_with(".sock");
}

bool Access::origin_allowed(std::string_view origin, const HttpRequest& request) const {
  if (contains(options_.cors_origins, "*") || contains(options_.cors_origins, origin)) return true;
  const size_t scheme = origin.find("://");
  const std::string* host = request.header("host");
  return scheme != origin.npos && host && origin.substr(scheme + 3) == *host;
}

std::optional<ApiError> Access::check(const HttpRequest& request, bool open_route) const {
  const std::string* host = request.header("host");
  if (host && !host_allowed(*host))
    return api_error(403, "this server is for this machine only; --allowed-hosts names further hosts", "host_not_allowed");
  const std::string* origin = request.header("origin");
  if (origin && !origin_allowed(*origin, request))
    return api_error(403, "this page's origin may not use the server; --cors-origins names those that may", "origin_not_allowed");
  if (open_route || !keys_.any()) return {};
  std::string_view key;
  if (const std::string* authorization = request.header("authorization")) {
    key = *authorization;
    if (boost::beast::iequals(key.substr(0, 7), "bearer ")) key.remove_prefix(7);
  } else if (const std::string* plain = request.header("x-api-key")) {
    key = *plain;
  }
  if (keys_.accepts(key)) return {};
  return api_error(401, "a valid API key is needed: Authorization: Bearer KEY", "invalid_api_key");
}

Headers Access::cors_headers(const HttpRequest& request, bool preflight) const {
  const std::string* origin = request.header("origin");
  if (!origin || !origin_allowed(*origin, request)) return {};
  // Never "*": an answer to one origin must not be kept for another.
  Headers out{{"Access-Control-Allow-Origin", *origin}, {"Vary", "Origin"},
      {"Access-Control-Expose-Headers", "X-Request-Id, Retry-After"}};
  if (preflight) {
    out.emplace_back("Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS");
    const std::string* wanted = request.header("access-control-request-headers");
    out.emplace_back("Access-Control-Allow-Headers", wanted ? *wanted : "Authorization, Content-Type");
    out.emplace_back("Access-Control-Max-Age", "600");
  }
  return out;
}

}
