#include "server/http.h"

#include <fmt/format.h>

#include <cmath>

namespace hunch {
namespace {

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; };
  for (size_t i = 0; i < a.size(); ++i)
    if (lower(a[i]) != lower(b[i])) return false;
  return true;
}

}

const std::string* HttpRequest::header(std::string_view name) const {
  for (const auto& [key, value] : headers)
    if (equal_ignoring_case(key, name)) return &value;
  return nullptr;
}

HttpReply error_reply(const ApiError& error) {
  HttpReply reply{.status = error.status, .body = error_body(error)};
  if (error.retry_after_seconds > 0)
    reply.headers.emplace_back("Retry-After", fmt::format("{:.0f}", std::ceil(error.retry_after_seconds)));
  return reply;
}

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200: return "OK";
    case 204: return "No Content";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 403: return "Forbidden";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Content Too Large";
    case 415: return "Unsupported Media Type";
    case 429: return "Too Many Requests";
    case 431: return "Request Header Fields Too Large";
    case 500: return "Internal Server Error";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    default: return status < 500 ? "Error" : "Server Error";
  }
}

}
