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
  set.group("Limits");
  for (const Limit& limit : limits()) add_limit(set, limit, server.limits);
  set.toggle({"--print-limits"}, "print all limits as they are and end", flags.print_limits);
}

void add_foreign_server_flags(FlagSet& set) {
  using A = FlagSet::Arity;
  set.ignore({"--block-size", "--swap-space", "--dtype", "--generation-config", "--max-logprobs", "--prefix-caching-hash-algo",
                 "--fingerprint-mode", "--max-log-len", "--distributed-executor-backend", "--load-format", "--tokenizer-mode",
                 "--scheduling-policy", "-cram", "--cache-ram", "-ctxcp", "--ctx-checkpoints", "--log-verbosity", "--log-colors",
                 "--reasoning-format", "--reasoning-budget", "--max-num-queued-tokens", "--model-impl", "--revision",
                 "--cache-reuse", "--defrag-thold", "-dt", "--slot-prompt-similarity", "-sps", "--n-cpu-moe", "-ncmoe",
                 "--compilation-config", "--max-seq-len-to-capture", "--chat-template-content-format", "--limit-mm-per-prompt",
                 "--cpu-offload-gb", "--api-server-count", "--download-dir", "--stream-interval", "--guided-decoding-backend",
                 "--structured-outputs-config"},
      A::One);
  set.ignore({"--enforce-eager", "--no-enforce-eager", "--enable-chunked-prefill", "--no-enable-chunked-prefill",
                 "--disable-log-requests", "--disable-log-stats", "--enable-log-requests", "--no-enable-log-requests",
                 "--disable-uvicorn-access-log", "--enable-auto-tool-choice", "--enable-request-id-headers",
                 "--enable-per-request-metrics", "--enable-prompt-tokens-details", "--cache-prompt", "-cb", "--cont-batching",
                 "--no-webui", "--log-prefix", "--log-timestamps", "--async-scheduling", "--no-cache-prompt",
                 "--disable-fastapi-docs", "--enable-server-load-tracking", "--trust-remote-code", "--swa-full", "--repack",
                 "--no-repack", "--no-op-offload", "--cpu-moe", "-cmoe", "--no-mmproj"},
      A::None);
  const auto only_one = [&set](std::vector<std::string_view> names) {
    set.value(
        std::move(names), "N", "",
        [](auto flag, auto text) -> Status {
          if (text == "1") return {};
          return usage_error("{}: one device runs a model here; leave it out or at 1", flag);
        },
        0);
  };
  only_one({"--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp", "--data-parallel-size", "-dp"});
  set.refuse({"--ssl-keyfile", "--ssl-certfile", "--ssl-key-file", "--ssl-cert-file"},
      "the server speaks plain HTTP; put a proxy in front of it for TLS");
  set.refuse({"--quantization", "-q"}, "weights are served as the file has them; hunch quantize makes another file");
  set.refuse(
      {"--kv-offloading-size", "--slot-save-path", "--embedding", "--embeddings", "--rerank", "--reranking"}, "not available");
}

}
