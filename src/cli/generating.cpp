// Loading and streaming. Escape codes are written where the colour changes, not around every token: logs stay readable.
#include "cli/generating.h"

#include "cli/interrupt.h"
#include "engine/parts.h"
#include "engine/plan.h"

namespace hunch {

Result<std::unique_ptr<Engine>> load_engine(const EngineOptions& options, ProgressLine* progress) {
  auto engine = Engine::load(options);
  if (progress) progress->clear();  // before anybody prints the error
  if (!engine.ok() && is_learned_drafter(options.model))
    return failure("{} drafts for another model: name that with -m, and this with --model-draft", options.model);
  if (!engine.ok()) return engine;
  if (const int64_t trained = (*engine)->parts().model->shape().context_len; options.context_len > trained)
    note(fmt::format(
        "a context of {}: the model was trained for {} tokens and may fail behind them", options.context_len, trained));
  return engine;
}

Result<std::unique_ptr<Engine>> load_engine(EngineOptions options, ProgressLine& progress) {
  options.progress = progress.callback();
  return load_engine(options, &progress);
}

double kv_bytes_per_entry(Engine& engine) {
  const KvGeometry& g = engine.parts().geometry;
  return 2.0 * g.layers * g.kv_heads * double(kv_row_bytes(g.dtype, g.head_dim));
}

bool TokenPrinter::take(const TokenEvent& event) {
  print(event.text, event.from == TokenEvent::From::Draft);
  return !lost_;
}

void TokenPrinter::finish(std::string_view whole) {
  print(whole.substr(std::min(taken_, whole.size())), green_);
  if (green_ && !lost_) write_stdout("\033[0m");
  green_ = false;
  set_color_open(false);
}

void TokenPrinter::print(std::string_view piece, bool guessed) {
  taken_ += piece.size();
  if (piece.empty() || !stream_ || lost_) return;  // the colour of a character is that of the token that completes it
  std::string out;
  if (paint_.on && guessed != green_) {
    out = guessed ? "\033[32m" : "\033[0m";
    green_ = guessed;
    set_color_open(guessed);
  }
  lost_ = !write_stdout(out.append(piece));
}

Status check_defaults(EngineParts& parts, const Request& request) {
  HUNCH_OK(plan_on(parts, request));
  if (request.structured.kind == StructuredOutput::Kind::None) return {};
  HUNCH_TRY(GrammarCompiler * compiler, parts.grammars());
  if (const auto compiled = compiler->compile(request.structured); !compiled.ok()) return usage_error(compiled.error().message);
  return {};
}

}
