#include "api/error.h"

#include <nlohmann/json.hpp>

#include "api/json_text.h"

namespace hunch {
namespace {

constexpr double kRetryAfterFullQueue = 1;  // seconds; a seat becomes free about that often

// Words that the engine's messages begin with, and what they are to a client.
constexpr std::pair<std::string_view, int> kEngineWords[] = {
    {"grammar_dead_end", 400}, {"numerical_error", 500}, {"device_lost", 503}};

std::string_view usual_type(int status) {
  switch (status) {
    case 401:
    case 403: return "authentication_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 501: return "not_supported_error";
    case 503: return "unavailable_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
  }
}

}

std::string error_body(const ApiError& error) {
  using json = nlohmann::ordered_json;
  return json_line({{"error",
      {{"message", error.message}, {"type", error.type}, {"param", error.param.empty() ? json() : json(error.param)},
          {"code", error.code.empty() ? json(error.status) : json(error.code)}}}});
}

ApiError api_error(int status, std::string message, std::string code, double retry_after_seconds) {
  return {.status = status,
      .message = std::move(message),
      .type = std::string(usual_type(status)),
      .code = std::move(code),
      .retry_after_seconds = retry_after_seconds};
}

ApiError api_error(const Error& error) {
  if (error.kind == Error::Kind::Usage) return api_error(400, error.message);
  // The engine's own words for a full queue.
  if (error.message.find("requests are waiting, no more are taken") != error.message.npos)
    return api_error(429, error.message, "queue_full", kRetryAfterFullQueue);
  for (const auto& [word, status] : kEngineWords)
    if (error.message.starts_with(word)) return api_error(status, error.message, std::string(word));
  return api_error(500, error.message);
}

}
