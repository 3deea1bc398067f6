// Routes: which path and method mean what. Pure functions of the request line.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hunch {

enum class Route : uint8_t {
  None,
  Page,
  PageStyle,
  PageScript,
  Health,
  Metrics,
  Version,
  Models,
  Model,
  Props,
  Slots,
  OpenApi,
  Completions,
  ChatCompletions,
  Tokenize,
  Detokenize
};

struct RouteMatch {
  Route route = Route::None;
  std::string argument;        // of Model: its name
  std::string_view name;       // of the route, for logs: never what the client wrote
  int status = 0;              // 0: go on; 204: a pre-flight; else an error with this message
  std::string message, allow;  // allow: the methods that there are (405, 204)
};

// `target`: as the client sent it. HEAD counts as GET.
RouteMatch match_route(std::string_view method, std::string_view target);

}
