// hunch audit: one request, decoded twice.
#include "cli/bench.h"
#include "cli/generating.h"
#include "cli/report.h"
#include "engine/parts.h"
#include "text/excerpt.h"

namespace hunch {
namespace {

using nlohmann::ordered_json;

struct Both {
  Generation plain, guessed;
  // Index of the first difference, a missing token included; nothing where the streams are equal.
  std::optional<size_t> difference() const {
    const auto& a = plain.tokens;
    const auto& b = guessed.tokens;
    const size_t at = std::ranges::mismatch(a, b).in1 - a.begin();
    if (at == a.size() && at == b.size()) return {};
    return at;
  }
};

Result<Both> run_both(Engine& engine, Request request, const InterruptScope& interrupts) {
  Both both;
  // The plain run first: it draws the seed where none was given, and the other must use the same.
  const SpeculationOptions speculation = request.speculation;
  request.speculation = plain_decoding();
  HUNCH_TRY(both.plain, engine.generate(request, {}, interrupts.flag()));
  request.speculation = speculation;
  request.sampling.seed = both.plain.seed;
  if (interrupts.stopped()) return both;
  HUNCH_TRY(both.guessed, engine.generate(request, {}, interrupts.flag()));
  return both;
}

// What stands at `at` in one of the streams.
ordered_json token_json(const Tokenizer& tokenizer, const Tokens& tokens, size_t at) {
  if (at >= tokens.size()) return nullptr;
  return {{"id", tokens[at]}, {"text", std::string(tokenizer.token_bytes(tokens[at]))}};
}
std::string token_text(const Tokenizer& tokenizer, const Tokens& tokens, size_t at) {
  if (at >= tokens.size()) return "the end";
  return fmt::format("{} {}", tokens[at], excerpt(tokenizer.token_bytes(tokens[at])));
}

bool report_audit(const Engine& engine, const Both& both, bool json) {
  const auto at = both.difference();
  const Generation &plain = both.plain, &guessed = both.guessed;
  if (json) {
    ordered_json difference;
    if (at)
      difference = {
          {"position", *at},
          {"plain", token_json(engine.tokenizer(), plain.tokens, *at)},
          {"speculative", token_json(engine.tokenizer(), guessed.tokens, *at)},
      };
    const ordered_json out = {{"equal", !at}, {"tokens", plain.tokens.size()}, {"first_difference", difference},
        {"prompt_tokens", plain.prompt_tokens}, {"seed", plain.seed}, {"proposer", guessed.proposer}, {"policy", guessed.policy},
        {"ratio", guessed.ratio}, {"gamma", guessed.gamma}, {"rounds", guessed.rounds}, {"drafted", guessed.drafted},
        {"accepted", guessed.accepted}, {"mean_acceptance_length", guessed.mean_acceptance_length()},
        {"decode_tokens_per_second", {{"plain", plain.tokens_per_second()}, {"speculative", guessed.tokens_per_second()}}}};
    return write_stdout(json_line(out) + "\n");
  }
  const std::string verdict = !at
      ? fmt::format("equal, {} tokens", plain.tokens.size())
      : fmt::format("different at token {} of the continuation: plain {}, with speculation {}", *at,
            token_text(engine.tokenizer(), plain.tokens, *at), token_text(engine.tokenizer(), guessed.tokens, *at));
  return write_stdout(
      fmt::format("{}\n{}: {} rounds of {} guesses, {} of {} accepted; seed {}; {:.1f} tokens/s plain, {:.1f} with speculation\n",
          verdict, guessed.proposer, guessed.rounds, guessed.gamma, guessed.accepted, guessed.drafted, plain.seed,
          plain.tokens_per_second(), guessed.tokens_per_second()));
}

Result<Request> audit_request(const RunFlags& flags) {
  HUNCH_TRY(SpeculationOptions speculation, resolve_speculation(flags.speculation));
  if (!speculation.rule.empty() && speculation.rule != "match")
    return usage_error(
        "--rule " + speculation.rule + ": audit compares streams, and only rule match promises equal ones; leave it out");
  if (speculation.precision_class != "strict")
    return usage_error("--precision-class {}: audit compares lossless decoding; leave it out", speculation.precision_class);
  if (!speculation.verify) return usage_error("--unverified: audit compares lossless decoding; leave it out");
  if (speculation.sparse.on) return usage_error("--verify sparse: audit compares lossless decoding; leave it out");
  speculation.rule = "match";
  if (speculation.proposer == "none") return usage_error("--spec none: audit compares speculation with it; name another");
  return request_of(flags, speculation);
}

Result<int> audit(const RunFlags& flags, const FlagSet& set) {
  HUNCH_TRY(auto request, audit_request(flags));
  HUNCH_TRY(auto options, engine_options(flags.model, &flags.speculation));
  options.max_num_seqs = 1;
  HUNCH_TRY(auto text, prompt_text(flags.prompt));
  note_ignored(set);
  ProgressLine progress;
  HUNCH_TRY(auto engine, load_engine(options, progress));
  HUNCH_TRY(auto ids, prompt_ids(*engine, flags.prompt, text));
  request.prompt = std::move(ids);
  // A planner may find that nothing pays: there would be nothing to audit.
  if (std::string& method = request.speculation.proposer; method == "auto") {
    const EngineParts& parts = engine->parts();
    method = !parts.learned.empty() ? parts.learned[0].name : parts.model->shape().nsa.used() ? "suffix" : "self";
  }

  const InterruptScope interrupts;
  auto both = run_both(*engine, request, interrupts);
  progress.clear();
  if (!both.ok()) return both.error();
  if (interrupts.stopped()) {
    complain("interrupted: nothing was compared");
    return interrupts.exit_code();
  }
  if (!report_audit(*engine, *both, flags.output.json)) HUNCH_OK(output_error());
  return both->difference() ? 1 : 0;
}

}

Result<int> audit_command(Arguments arguments) {
  RunFlags flags;
  FlagSet set("hunch audit [flags] (-p TEXT | -f FILE)",
      "Runs a request plainly and with speculation (same seed, rule match) and says whether the token streams are equal, or "
      "which token differs first. Exit code 0: equal; 1: different.");
  add_run_flags(set, flags);
  if (const auto ended = parsed(set, arguments, true)) return *ended;
  return audit(flags, set);
}

}
