// hunch run: continue a text (or answer it with --chat), streaming to stdout.
#include "cli/commands.h"
#include "cli/generating.h"
#include "cli/interrupt.h"
#include "cli/report.h"
#include "cli/request_flags.h"

namespace hunch {
namespace {

// Flags are settled, in the order that gives the cheapest error first: nothing is loaded for a request that cannot run.
struct Settled {
  Request request;
  std::string text;
  EngineOptions engine;
};

Result<Settled> settle(const RunFlags& flags) {
  Settled out;
  std::vector<std::string> notes;
  HUNCH_TRY(const SpeculationOptions speculation, resolve_speculation(flags.speculation, &notes));
  out.request = request_of(flags, speculation);
  HUNCH_TRY(out.engine, engine_options(flags.model, &flags.speculation));
  out.engine.max_num_seqs = 1;
  HUNCH_TRY(out.text, prompt_text(flags.prompt));
  for (const std::string& remark : notes) note(remark);
  return out;
}

// Prints what belongs behind the text and returns the exit code.
Result<int> conclude(
    Engine& engine, const RunFlags& flags, const Generation& generation, TokenPrinter& printer, int interrupted_code) {
  const Report report{generation, generation.text, engine.model_name(), kv_bytes_per_entry(engine)};
  // A reader that went away is no failure, and there is nobody left to read the statistics for; a full disk is one.
  bool written = !printer.output_lost();
  if (flags.output.json) {
    written = write_stdout(json_line(report_json(report)) + "\n");
  } else if (stdout_is_terminal() && written) {
    written = write_stdout("\n");
  }
  if (!written) { HUNCH_OK(output_error()); }
  if (!generation.warning.empty()) complain(generation.warning);
  if (!generation.lossless) complain(lossless_text(generation) + "; plain decoding may say something else");
  if (flags.output.stats || interrupted_code != 0)
    tell(report_text(report, Paint{color_wanted(flags.output.color, stderr_is_terminal())}));
  return interrupted_code;
}

}

Result<int> run_command(Arguments arguments) {
  RunFlags flags;
  FlagSet set("hunch run [flags] (-p TEXT | -f FILE)",
      "Continues a text as it is, or answers it with --chat. Text goes to stdout, all else to stderr.");
  add_run_flags(set, flags);
  if (const auto ended = parsed(set, arguments, true)) return *ended;

  HUNCH_TRY(auto settled, settle(flags));
  note_ignored(set);
  ProgressLine progress;
  HUNCH_TRY(auto engine, load_engine(settled.engine, progress));
  HUNCH_TRY(auto ids, prompt_ids(*engine, flags.prompt, settled.text));
  settled.request.prompt = std::move(ids);

  const Paint paint{!flags.output.json && color_wanted(flags.output.color, stdout_is_terminal())};
  if (paint.on && settled.request.speculation.proposer != "none")
    tell(fmt::format("{} and accepted; the rest was written by the checking pass\n", paint.green("green: guessed")));
  TokenPrinter printer(!flags.output.json, paint);
  const InterruptScope interrupts;
  auto generation = engine->generate(
      settled.request,
      [&](const TokenEvent& event) {
        progress.clear();
        return printer.take(event);
      },
      interrupts.flag());
  progress.clear();
  printer.finish(generation.ok() ? generation->text : "");
  if (!generation.ok()) return generation.error();
  return conclude(*engine, flags, *generation, printer, interrupts.exit_code());
}

}
