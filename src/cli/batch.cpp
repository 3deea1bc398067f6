// hunch batch: a file of requests, many at once, to a file of answers. Interrupted runs go on where they stopped.

#include "cli/batch_run.h"
#include "cli/chat_form.h"
#include "cli/commands.h"
#include "cli/generating.h"
#include "cli/serving_flags.h"
#include "engine/parts.h"

namespace hunch {
namespace {

constexpr int kInFlightPerSeat = 4;  // enough that a seat never waits for the reader

struct BatchFlags {
  std::optional<std::string> input, output;
  ChatTemplateFlags chat_template;
  ModelFlags model;
  ServingFlags serving;
  SamplingFlags sampling;
  SpeculationFlags speculation;
  bool stats = false;
};

void print_stats(const Engine& engine, const BatchCounts& counts, double seconds) {
  const EngineStats s = engine.stats();
  const double rounds = double(std::max<int64_t>(1, s.rounds));
  tell(fmt::format(
      "\nstatistics\n  lines       {} answered, {} with an error, {} were there\n  tokens      {} written, {:.1f} tokens/s "
      "altogether, prompts {} ({:.0f} % of them reused)\n  guesses     {:.2f} tokens a round, {} dropped for want of room\n"
      "  requests    {} preempted\n",
      counts.answered, counts.failed, counts.skipped, s.generated_tokens, seconds > 0 ? double(s.generated_tokens) / seconds : 0,
      s.prompt_tokens, 100 * s.prefix_hit_rate(), 1 + double(s.accepted) / rounds, s.drafts_dropped, s.preemptions));
}

Result<int> conclude(const BatchRun& run, const BatchFlags& flags, const BatchInput& input, const BatchOutput& output,
    const InterruptScope& interrupts) {
  const BatchCounts& counts = run.counts();
  HUNCH_OK(output.status());
  if (interrupts.stopped()) {
    complain(*flags.output == "-" ? fmt::format("stopped after {} answers", counts.answered + counts.failed)
                                  : fmt::format("stopped; {} answers are in {}, the same command goes on from there",
                                        counts.answered + counts.failed + counts.skipped, *flags.output));
    return interrupts.exit_code();
  }
  HUNCH_OK(input.status());
  const int64_t failed = counts.failed + output.earlier_errors();
  if (failed == 0) return 0;
  complain(fmt::format("{} of {} lines have an error as their answer{}", failed, counts.answered + counts.failed + counts.skipped,
      output.earlier_errors() > 0 ? "; delete those answers to try their lines again" : ""));
  return 1;
}

Result<int> batch(const BatchFlags& flags, const FlagSet& set) {
  if (!flags.output) return usage_error("no output: name the file for the answers with -o (-: the standard output)");
  std::vector<std::string> notes;
  HUNCH_TRY(auto speculation, resolve_speculation(flags.speculation, &notes));
  HUNCH_TRY(auto options, engine_options(flags.model, &flags.speculation));
  apply_serving_flags(flags.serving, options);
  options.max_waiting = 1 << 30;  // BatchRun has a bound of its own
  for (const std::string& remark : notes) note(remark);
  note_ignored(set);
  HUNCH_TRY(const auto chat_template, chat_template_text(flags.chat_template));
  HUNCH_TRY(auto kwargs, chat_template_kwargs(flags.chat_template));
  HUNCH_TRY(auto input, BatchInput::open(*flags.input));
  HUNCH_TRY(auto output, BatchOutput::open(*flags.output, *input));

  ProgressLine progress;
  std::atomic<bool> loaded{false};  // later reports come from the engine's thread, and one prompt's progress is not the file's
  options.progress = [&](std::string_view what, int64_t done, int64_t total) {
    if (!loaded) progress.show(what, done, total);
  };
  HUNCH_TRY(auto engine, load_engine(options, &progress));
  loaded = true;

  const Request defaults = request_of(flags.sampling, speculation);
  HUNCH_OK(check_defaults(engine->parts(), defaults));
  const InterruptScope interrupts;
  const auto start = Clock::now();
  BatchRun run(*engine, *input, *output, defaults, ChatPrompts(*engine, chat_template, std::move(kwargs)),
      kInFlightPerSeat * engine->parts().limits.max_seqs);
  run.run(interrupts, progress);
  const Result<int> code = conclude(run, flags, *input, *output, interrupts);
  if (flags.stats) print_stats(*engine, run.counts(), ms_since(start) / 1000);
  return code;
}

}

Result<int> batch_command(Arguments arguments) {
  BatchFlags flags;
  FlagSet set("hunch batch [flags] IN.jsonl -o OUT.jsonl",
      "Answers a file of requests, many at once: a JSON object a line with \"id\", \"prompt\" (a text or token ids) or "
      "\"messages\", and OpenAI's names for the rest. Answers come in the order in which they are done. The same command "
      "again skips what OUT.jsonl answers already.");
  set.positional("IN.jsonl", true, "the requests (-: the standard input)", flags.input);
  set.group("Batch");
  set.text({"-o", "--output", "--output-file"}, "FILE", "where the answers go (-: the standard output)", flags.output);
  set.toggle({"--stats"}, "end with statistics on stderr", flags.stats);
  add_chat_template_flags(set, flags.chat_template);
  add_serving_flags(set, flags.serving);
  add_generating_flags(set, flags);
  add_foreign_flags(set);
  if (const auto ended = parsed(set, arguments, true)) return *ended;
  return batch(flags, set);
}

}
