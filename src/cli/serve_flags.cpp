#include "cli/serve_flags.h"

namespace hunch {
namespace {

// "a,b", or vLLM's ["a","b"]; of a repeated flag all.
FlagSet::Set list_into(std::vector<std::string>& target) {
  return [&target](std::string_view flag, std::string_view text) -> Status {
    const auto json = nlohmann::json::parse(text, nullptr, false);
    if (json.is_array()) {
      for (const auto& entry : json) {
        if (!entry.is_string()) return usage_error("{}: {} is no string", flag, entry.dump());
        target.push_back(entry.get<std::string>());
      }
      return {};
    }
    return each_item(text, [&](auto item) {
      if (!item.empty()) target.emplace_back(item);
      return Status();
    });
  };
}

void add_limit(FlagSet& set, const Limit& limit, ServerLimits& values) {
  std::vector<std::string_view> names{limit.flag};
  names.insert(names.end(), limit.aliases.begin(), limit.aliases.end());
  const double now = std::visit([&](auto member) { return double(values.*member); }, limit.member);
  const auto store = [&limit, &values](auto flag, auto text) -> Status {
    HUNCH_TRY(const double value, parse_number(flag, text, {limit.least, limit.most}));
    std::visit([&](auto member) { values.*member = std::remove_reference_t<decltype(values.*member)>(value); }, limit.member);
    return {};
  };
  set.value(std::move(names), "X", fmt::format("{}: {} (default: {:.0f})", limit.unit, limit.about, now), store, 1);
}

}

void add_serve_flags(FlagSet& set, ServeFlags& flags) {
  ServerOptions& server = flags.server;
  set.positional("MODEL", false, "the model, as behind -m", flags.model);
  set.group("Server");
  set.text({"--host", "--uds"}, "HOST", "address to listen on, or the path of a .sock (default: 127.0.0.1, this machine only)",
      server.host, 1);
  set.whole({"--port"}, "port (default: 8000); 0: any free one", {0, 65535}, flags.port);
  set.value({"--served-model-name", "-a", "--alias"}, "NAME",
      "name of the model in requests (repeat: further names; with several models: one each)", list_into(flags.names));
  const auto keys_into = [&keys = server.api_keys](auto flag, auto text) -> Status {
    const size_t before = keys.size();
    HUNCH_OK(list_into(keys)(flag, text));
    if (keys.size() == before) return usage_error("--api-key: a key must not be empty");  // all could come in
    return {};
  };
  set.value({"--api-key"}, "KEY", "requests need this key (repeat, or commas: further keys)", keys_into);
  set.text({"--api-key-file"}, "FILE", "keys, one a line; read again at SIGHUP", server.api_key_file);
  set.value({"--cors-origins", "--allowed-origins"}, "LIST", "origins whose pages may use the server (*: all; default: its own)",
      list_into(server.cors_origins), 1);
  set.value({"--allowed-hosts"}, "LIST", "further names of this server in the Host header, where it listens on loopback (*: any)",
      list_into(server.allowed_hosts));
  set.whole_or_default(
      {"--workers", "--threads-http"}, "threads that read and check requests, 1..64 (default: 2)", {1, 64}, flags.workers, 1);
  set.text({"--config"}, "FILE", "settings as JSON or YAML; the environment and the command line win over it", flags.config);
  set.toggle({"--metrics", "--enable-metrics"}, "answer /metrics (default)", server.metrics);
  set.toggle({"--no-metrics"}, "do not", server.metrics, false);
  set.toggle({"--slots"}, "answer /slots (default)", server.slots);
  set.toggle({"--no-slots"}, "do not", server.slots, false);
  set.toggle({"--props"}, "answer /props (default)", server.props);
  set.toggle({"--no-props"}, "do not", server.props, false);
  set.text({"--log-file"}, "FILE", "log there instead of on stderr; opened again at SIGHUP", server.log_file);
  set.toggle({"--log-jsonl", "--log-json"}, "log JSON lines", server.log_json);
  set.value(
      {"--log-level", "--uvicorn-log-level"}, "LEVEL", "debug, info (default), warning or error",
      [&server](auto flag, auto text) -> Status {
        static constexpr std::string_view kLevels[] = {"debug", "info", "warning", "error"};
        HUNCH_TRY(const std::string level, parse_choice(flag, text, kLevels));
        server.log_level = int(std::ranges::find(kLevels, level) - kLevels);
        return {};
      },
      1);
  set.toggle({"--no-core-dumps"}, "what clients say reaches no core dump and no debugger", server.core_dumps, false);
  set.group("Answers");
  set.toggle({"--enable-force-include-usage"}, "every stream ends with its usage", server.api.force_usage);
  set.value({"--per-request-spec-decode-metrics"}, "WHAT", "speculation in answers: none, summary (default) or detailed",
      [&server](auto flag, auto text) -> Status {
        using Wish = ApiLimits::SpeculationMetrics;
        static constexpr std::string_view kWishes[] = {"none", "summary", "detailed"};
        HUNCH_TRY(const std::string wish, parse_choice(flag, text, kWishes));
        server.api.speculation_metrics = wish == "none" ? Wish::None : wish == "summary" ? Wish::Summary : Wish::Detailed;
        return {};
      });
  add_chat_template_flags(set, flags.chat_template);
  set.toggle({"--trust-request-chat-template", "--trust-request-template"}, "requests may bring a chat template of their own",
      flags.trust_request_template);
  set.text({"--tool-call-parser"}, "NAME", "how the model writes tool calls (default: by its template)", flags.tool_parser);
  set.text(
      {"--reasoning-parser"}, "NAME", "how it marks reasoning (default: by its template; none: off)", flags.reasoning_parser);
  // llama-server's: none leaves reasoning in the text.
  set.value(
      {"--reasoning-format"}, "NAME", "",
      [&flags](auto flag, auto text) -> Status {
        static constexpr std::string_view kForms[] = {"auto", "none", "deepseek", "deepseek-legacy"};
        HUNCH_TRY(const std::string form, parse_choice(flag, text, kForms));
        if (form == "none") flags.reasoning_parser = form;
        return {};
      },
      0);
  set.group("Limits");
  for (const Limit& limit : limits()) add_limit(set, limit, server.limits);
  set.toggle({"--print-limits"}, "print all limits as they are and end", flags.print_limits);
}

}
