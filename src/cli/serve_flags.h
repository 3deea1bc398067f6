// The flags of hunch serve that are the server's own, and those of other servers that people bring along. Used by serve.cpp.
#pragma once

#include "cli/request_flags.h"
#include "server/options.h"

namespace hunch {

struct ServeFlags {
  ServerOptions server;
  std::vector<std::string> names;  // --served-model-name
  std::optional<std::string> model, config;
  ChatTemplateFlags chat_template;
  std::string tool_parser, reasoning_parser;
  bool trust_request_template = false;
  std::optional<int64_t> port, workers;
  bool print_limits = false;
};

// `flags` must outlive parse(). To be called before add_foreign_flags(), which refuses some of these names elsewhere.
void add_serve_flags(FlagSet& set, ServeFlags& flags);

}
