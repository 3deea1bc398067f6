// Errors as the HTTP API speaks them: OpenAI's object, with the status it goes with. Made by the request parser and by the
// server; read by clients that look at `type`, `param` and `code`.
#pragma once

#include "base/result.h"

namespace hunch {

struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param = {};          // the key at fault; empty: null
  std::string code = {};           // a word for programs, such as "context_length_exceeded"; empty: the status as a number
  double retry_after_seconds = 0;  // > 0: for the header Retry-After
};

// What such refusals are counted under.
inline std::string_view reason_of(const ApiError& error) {
  return error.code.empty() ? std::string_view("bad_request_body") : error.code;
}

// {"error":{"message":...,"type":...,"param":...,"code":...}}, no newline.
std::string error_body(const ApiError& error);

// What the engine said of a request: usage errors are 400, too many waiting 429 (with a time to wait), others 500.
ApiError api_error(const Error& error);

// The error of a status with its usual type: 401 authentication_error, 404 not_found_error, 429 rate_limit_error, 501
// not_supported_error, 503 unavailable_error, other 5xx server_error, the rest invalid_request_error.
ApiError api_error(int status, std::string message, std::string code = {}, double retry_after_seconds = 0);

}
