#include "server/router.h"

#include <fmt/format.h>

#include <optional>

namespace hunch {
namespace {

using enum Route;

struct Entry {
  std::string_view path;
  bool post;
  Route route;
};

constexpr Entry kRoutes[] = {
    {"/", false, Page},
    {"/page.css", false, PageStyle},
    {"/page.js", false, PageScript},
    {"/health", false, Health},
    {"/v1/health", false, Health},
    {"/metrics", false, Metrics},
    {"/version", false, Version},
    {"/v1/models", false, Models},
    {"/models", false, Models},
    {"/props", false, Props},
    {"/slots", false, Slots},
    {"/openapi.json", false, OpenApi},
    {"/v1/completions", true, Completions},
    {"/v1/chat/completions", true, ChatCompletions},
    {"/chat/completions", true, ChatCompletions},
    {"/tokenize", true, Tokenize},
    {"/detokenize", true, Detokenize},
};
constexpr std::string_view kModelPrefix = "/v1/models/";

int hex(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// The path as it is meant, or nothing where two readers could disagree on what is meant: encoded slashes (clients encode those of
// models' names) and dots, empty or dot segments, control characters.
std::optional<std::string> plain_path(std::string_view target) {
  const std::string_view path = target.substr(0, target.find_first_of("?#"));
  if (path.empty() || path[0] != '/') return {};
  std::string out;
  for (size_t i = 0; i < path.size(); ++i) {
    char c = path[i];
    if (c == '%') {
      if (i + 2 >= path.size() || hex(path[i + 1]) < 0 || hex(path[i + 2]) < 0) return {};
      c = char(hex(path[i + 1]) * 16 + hex(path[i + 2]));
      if ((c == '/' && !path.starts_with(kModelPrefix)) || c == '.' || c == '%' || c == '\\') return {};
      i += 2;
    }
    if (uint8_t(c) < 0x20 || c == 0x7f || c == '\\') return {};
    out += c;
  }
  for (size_t at = 0; at < out.size();) {
    const size_t next = std::min(out.find('/', at + 1), out.size());
    const std::string_view segment = std::string_view(out).substr(at + 1, next - at - 1);
    if ((segment.empty() && next != out.size()) || segment == "." || segment == "..") return {};
    at = next;
  }
  return out;
}

}

RouteMatch match_route(std::string_view method, std::string_view target) {
  RouteMatch match;
  if (method == "OPTIONS" && target == "*") {
    match.status = 204, match.allow = "GET, HEAD, POST, OPTIONS";
    return match;
  }
  const auto path = plain_path(target);
  if (!path) {
    match.status = 400,
    match.message = "the path is not in its plain form: no //, no . or .., no encoded / . or control characters";
    return match;
  }
  bool post = false;
  for (const Entry& entry : kRoutes)
    if (entry.path == *path) match.route = entry.route, match.name = entry.path, post = entry.post;
  if (match.route == None && path->starts_with(kModelPrefix) && path->size() > kModelPrefix.size())
    match.route = Model, match.name = "/v1/models/{model}", match.argument = path->substr(kModelPrefix.size());
  if (match.route == None) {
    match.status = 404;
    match.message =
        "there is no such route; there are /v1/completions, /v1/chat/completions, /v1/models, /tokenize, /detokenize, "
        "/health, /metrics, /version, /props, /slots, /openapi.json";
    return match;
  }
  match.allow = post ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
  if (method == "OPTIONS") {
    match.status = 204;
  } else if (post ? method != "POST" : method != "GET" && method != "HEAD") {
    match.status = 405, match.message = fmt::format("this route takes {}", post ? "POST" : "GET");
  }
  return match;
}

}
