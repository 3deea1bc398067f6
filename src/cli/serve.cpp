// hunch serve: models over HTTP, loaded while the server (src/server) already answers that it is not ready.
#include <unistd.h>

#include <filesystem>

#include "api/chat_prompts.h"
#include "cli/chat_form.h"
#include "cli/commands.h"
#include "cli/generating.h"
#include "cli/serve_flags.h"
#include "cli/serving_flags.h"
#include "cli/setting_sources.h"
#include "engine/parts.h"
#include "engine/plan.h"
#include "server/server.h"

namespace hunch {
namespace {

struct AllFlags {
  ServeFlags serve;
  ModelFlags model;
  ServingFlags serving;
  SamplingFlags sampling;
  SpeculationFlags speculation;
};

std::optional<std::string> config_path(Arguments arguments) {
  std::optional<std::string> path;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--config" && i + 1 < arguments.size()) path = arguments[i + 1];
    else if (arguments[i].starts_with("--config=")) path = arguments[i].substr(9);
  }
  return path;
}

// File, environment, command line: what is named later wins. Lists are not joined across the three.
Status parse_all(FlagSet& set, AllFlags& flags, Arguments arguments) {
  const std::vector<std::string> variables = environment_arguments(set, environment(), arguments);
  std::optional<std::string> path = config_path(arguments);
  if (!path) path = config_path(variables);
  std::vector<std::string> file;
  if (path) { HUNCH_TRY(file, config_arguments(set, *path)); }
  std::vector<std::string>* const lists[] = {&flags.model.models, &flags.serve.names, &flags.serve.server.api_keys,
      &flags.serve.server.cors_origins, &flags.serve.server.allowed_hosts};
  for (const std::span<const std::string> source :
      {std::span<const std::string>(file), std::span<const std::string>(variables), arguments}) {
    std::vector<std::vector<std::string>> before;
    for (auto* list : lists) before.push_back(std::exchange(*list, {}));
    if (const Status parsed = set.parse(source); !parsed.ok() && source.data() != arguments.data())
      return usage_error("{}: {}", source.data() == file.data() ? *path : "the environment", parsed.error().message);
    else HUNCH_OK(parsed);
    if (flags.serve.model) flags.model.models.insert(flags.model.models.begin(), *std::exchange(flags.serve.model, {}));
    for (size_t i = 0; i < std::size(lists); ++i)
      if (lists[i]->empty()) *lists[i] = std::move(before[i]);
  }
  return {};
}

// As vLLM has it, --chat-template may be a file, too.
Result<std::string> template_of(ChatTemplateFlags flags) {
  std::error_code ignored;
  if (flags.name_or_text && !flags.file && std::filesystem::is_regular_file(*flags.name_or_text, ignored))
    flags.file = std::exchange(flags.name_or_text, std::nullopt);
  return chat_template_text(flags);
}

std::string name_of(const std::string& path) {
  std::filesystem::path p(path);
  if (!p.has_filename()) p = p.parent_path();
  return p.extension() == ".gguf" ? p.stem().string() : p.filename().string();
}

struct Loaded {
  std::vector<std::unique_ptr<Engine>> engines;
  ServedModels models;
};

Status load_one(const AllFlags& flags, const SpeculationOptions& speculation, const std::string& path, size_t nth, Loaded& out) {
  ModelFlags of_this = flags.model;
  of_this.model = path;
  if (of_this.trace && nth > 0) *of_this.trace += fmt::format(".{}", nth + 1);  // a file for each model
  HUNCH_TRY(EngineOptions options, engine_options(of_this, &flags.speculation));
  apply_serving_flags(flags.serving, options, double(nth + 1) / double(std::max<size_t>(1, flags.model.models.size())));
  options.max_waiting = int(flags.serve.server.limits.max_queued);
  HUNCH_TRY(auto engine, load_engine(options));
  ServedModel model;
  const bool alone = flags.model.models.size() < 2;
  const std::vector<std::string>& names = flags.serve.names;
  model.id = names.empty() ? name_of(path) : alone ? names[0] : names[nth];
  if (alone && names.size() > 1) model.aliases.assign(names.begin() + 1, names.end());
  model.engine = engine.get();
  model.created = int64_t(std::time(nullptr));
  model.defaults = request_of(flags.sampling, speculation);
  HUNCH_OK(check_defaults(engine->parts(), model.defaults));
  model.fingerprint = "hunch-" + std::string(build_commit());
  model.path = std::filesystem::path(path).filename();  // where it lies is nobody else's business
  HUNCH_TRY(model.chat_template, template_of(flags.serve.chat_template));
  HUNCH_TRY(model.chat_template_kwargs, chat_template_kwargs(flags.serve.chat_template));
  model.trust_request_template = flags.serve.trust_request_template;
  model.tool_parser = flags.serve.tool_parser, model.reasoning_parser = flags.serve.reasoning_parser;
  note(fmt::format("{}: {}", model.id, engine->description()));
  const std::string id = model.id;
  HUNCH_OK(out.models.add(std::move(model)));
  out.engines.push_back(std::move(engine));
  const ServedModel& served = *std::get<const ServedModel*>(out.models.find(id));
  if (const std::string& trouble = out.models.chat(served).trouble(); !trouble.empty())
    note(fmt::format("{}: no chats, only /v1/completions: {}", id, trouble));
  return {};
}

Result<int> serve(AllFlags& flags, const FlagSet& set) {
  ServerOptions& server_options = flags.serve.server;
  server_options.port = int(flags.serve.port.value_or(8000));
  server_options.version = fmt::format("{} ({})", program_version(), build_commit());
  server_options.workers = int(flags.serve.workers.value_or(2));
  server_options.api.max_body_bytes = size_t(server_options.limits.max_body_bytes);
  std::vector<std::string> notes;
  HUNCH_TRY(auto speculation, resolve_speculation(flags.speculation, &notes));
  if (flags.model.models.empty()) {
    HUNCH_TRY(auto path, model_path(flags.model.model));
    flags.model.models.push_back(path);
  }
  const size_t models = flags.model.models.size(), names = flags.serve.names.size();
  if (models > 1 && names != 0 && names != models)
    return usage_error("--served-model-name: {} names for {} models; give one for each", names, models);
  for (const std::string& remark : notes) note(remark);
  note_ignored(set);

  Loaded loaded;
  Server server(server_options, loaded.models);
  HUNCH_OK(server.start());
  for (size_t i = 0; i < models; ++i) HUNCH_OK(load_one(flags, speculation, flags.model.models[i], i, loaded));
  server.ready();
  if (!server_options.api_keys.empty()) note("--api-key is visible to this machine's users; --api-key-file is not");
  if (!write_stdout(fmt::format("listening on {}\n", server.url()))) {
    (void)output_error();  // it serves all the same
    note(fmt::format("listening on {}", server.url()));
  }
  const int code = server.wait();
  if (code == kExitBroken) std::_Exit(code);  // a lost device gives nothing back, and may never answer
  return code;
}

}

Result<int> serve_command(Arguments arguments) {
  AllFlags flags;
  FlagSet set("hunch serve [flags] [MODEL]",
      "Answers over HTTP, with OpenAI's API: /v1/completions, /v1/chat/completions, /v1/models, and /tokenize, /detokenize, "
      "/health, /metrics, /version, /props, /slots. Several models: -m once for each. Every flag can also stand in a "
      "--config file, or in the environment as HUNCH_NAME_OF_FLAG.");
  add_serve_flags(set, flags.serve);
  add_serving_flags(set, flags.serving);
  add_generating_flags(set, flags);
  add_foreign_server_flags(set);
  add_foreign_flags(set);
  HUNCH_OK(parse_all(set, flags, arguments));
  if (set.help_wanted()) return print_and_exit_code(set.help());
  if (flags.serve.print_limits) return print_and_exit_code(limits_text(flags.serve.server.limits));
  return serve(flags, set);
}

}
