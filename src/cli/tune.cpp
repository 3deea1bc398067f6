// hunch tune FILE: the search of the Vegas paper (section 3.4) on a sample of the user's prompts: the kept ratio from which the
// acceptance of long drafts no longer grows; the draft length with the most tokens a second at it; then the ratio once more, by
// speed. The result is stored as a profile.
#include "cli/tune.h"
#include "cli/bench.h"
#include "cli/calibrate.h"
#include "cli/generating.h"
#include "cli/report.h"
#include "engine/engine_costs.h"
#include "engine/profile.h"

namespace hunch {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// Acceptance counts as stable at this share of the best: less is within the noise of a few prompts.
constexpr double kStable = 0.97;
constexpr double kRatios[] = {0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.25};
constexpr int kGammas[] = {2, 3, 4, 5, 6, 7, 8, 10, 12, 15};
constexpr int kLong = 15;

// Every prompt with one setting: what it accepted and how long it took.
struct Trial {
  int64_t rounds = 0, accepted = 0, tokens = 0;
  double ms = 0;
  std::map<int64_t, Profile::Seen> seen;  // by prompt length
  double accepted_per_round() const { return rounds > 0 ? double(accepted) / rounds : 0; }
  double speed() const { return ms > 0 ? tokens * 1e3 / ms : 0; }
};

struct Setting {
  double ratio = 0;
  int gamma = 0;  // 0: plain decoding
};

class Tune : Measurement<TuneFlags> {
 public:
  using Measurement::Measurement;

  Result<int> run() {
    const Status status = flags_.calibration ? calibrate() : search();
    progress_.clear();
    if (interrupts_.stopped()) return complain("interrupted: nothing is stored"), interrupts_.exit_code();
    if (!status.ok()) return status.error();
    if (flags_.json) return print_json_and_exit_code(out_);
    return print_and_exit_code(text_);
  }

 private:
  Status calibrate() {
    HUNCH_OK(read_prompts());
    HUNCH_TRY(out_,
        calibrate_verify(engine_.parts(), prompts_, speculation_.sparse, int(flags_.rows.value_or(8)),
            int(flags_.anchors.value_or(0)), *flags_.calibration, interrupts_.flag()));
    say("stored: {}\n{}", *flags_.calibration, out_.dump());
    return {};
  }

  Status search() {
    HUNCH_OK(read_prompts());
    HUNCH_TRY(const std::vector<Trial> first, trials(std::vector<Setting>(2)));  // the first warms up
    if (interrupts_.stopped()) return {};
    const Trial& plain = first[1];
    say("{} prompts; plain decoding {:.1f} tokens/s\n", prompts_.size(), plain.speed());
    out_["prompts"] = prompts_.size();
    out_["plain_tokens_per_second"] = plain.speed();

    say("1. Kept ratio by acceptance, {} drafts a round\n   ratio  accepted a round", longest_);
    std::map<double, Trial> by_ratio;
    double most = 0;
    std::vector<Setting> settings;
    for (const double ratio : kRatios) settings.push_back({ratio, longest_});
    HUNCH_TRY(const std::vector<Trial> long_drafts, trials(settings));
    if (interrupts_.stopped()) return {};
    for (size_t i = 0; i < settings.size(); ++i) {
      const Trial& t = long_drafts[i];
      const double ratio = settings[i].ratio;
      by_ratio[ratio] = t;
      most = std::max(most, t.accepted_per_round());
      say("  {:6.3f}  {:.2f}", ratio, t.accepted_per_round());
      out_["ratios"].push_back({{"ratio", ratio}, {"gamma", longest_}, {"accepted_per_round", t.accepted_per_round()}});
    }
    double ratio = kRatios[0];
    for (const auto& [r, t] : by_ratio)
      if (t.accepted_per_round() >= kStable * most) {
        ratio = r;
        break;
      }
    say("   stable from {}\n", ratio);

    say("2. Drafts a round by speed, ratio {}\n   gamma  tokens/s  over plain", ratio);
    settings.clear();
    for (const int g : kGammas)
      if (g <= longest_) settings.push_back({ratio, g});
    HUNCH_TRY(const Fastest length,
        fastest("gammas", ratio, settings, plain, [](Setting s) { return fmt::format("  {:6}", s.gamma); }));
    if (interrupts_.stopped()) return {};
    const int gamma = length.gamma;
    say("   best {}\n", gamma);

    say("3. Kept ratio by speed, {} drafts a round\n   ratio  tokens/s  over plain", gamma);
    settings.clear();
    for (const double r : kRatios) settings.push_back({r, gamma});
    HUNCH_TRY(const Fastest kept,
        fastest("ratios_by_speed", ratio, settings, plain, [](Setting s) { return fmt::format("  {:6.3f}", s.ratio); }));
    if (interrupts_.stopped()) return {};
    ratio = kept.ratio;
    say("   best {}\n", ratio);
    say("--draft {} --ratio {}: {:.2f} times plain decoding", gamma, ratio, kept.speed / std::max(1e-9, plain.speed()));
    out_["gamma"] = gamma, out_["ratio"] = ratio;
    return store(ratio, gamma, by_ratio[ratio]);
  }

  struct Fastest : Setting {
    double speed = 0;
  };
  Result<Fastest> fastest(
      const char* name, double ratio, const std::vector<Setting>& settings, const Trial& plain, std::string (*label)(Setting)) {
    HUNCH_TRY(const std::vector<Trial> all, trials(settings));
    Fastest best{{ratio, 1}};
    for (size_t i = 0; i < settings.size() && !interrupts_.stopped(); ++i) {
      const Setting& s = settings[i];
      if (all[i].speed() > best.speed) best = {s, all[i].speed()};
      row(name, s.ratio, s.gamma, all[i], plain, label(s));
    }
    return best;
  }

  Status read_prompts() {
    HUNCH_TRY(auto texts, sample_texts(engine_, *flags_.file, flags_.most));
    for (Tokens& ids : texts) {
      const int64_t room = engine_.context_len() - *flags_.sampling.max_tokens - kLong - 1;
      if (room < 1) return usage_error("the context has no room for a prompt: lower -n or raise -c");
      if (std::ssize(ids) > room) ids.erase(ids.begin(), ids.end() - room);  // the end is what is continued
      if (!ids.empty()) prompts_.push_back(std::move(ids));
    }
    longest_ = std::min(kLong, engine_.parts().options.max_draft);
    return prompts_.empty() ? Status(Error{"no prompts in the file"}) : Status();
  }

  // Prompts outside, settings inside: a prompt is prefilled once. One Trial a setting.
  Result<std::vector<Trial>> trials(const std::vector<Setting>& settings) {
    std::vector<Trial> out(settings.size());
    for (const auto& prompt : prompts_)
      for (size_t i = 0; i < settings.size(); ++i) {
        SpeculationOptions speculation = settings[i].gamma > 0 ? speculation_ : SpeculationOptions{};
        speculation.proposer = settings[i].gamma > 0 ? "self" : "none";
        speculation.num_tokens = settings[i].gamma, speculation.ratio = settings[i].ratio;
        Request request = request_of(flags_.sampling, speculation);
        request.prompt = prompt;
        request.ignore_eos = true;
        if (!request.sampling.seed) request.sampling.seed = 1;
        HUNCH_TRY(const Generation g,
            engine_.generate(
                request, [&](const TokenEvent&) { return progress_.clear(), true; }, interrupts_.flag()));
        if (interrupts_.stopped()) return out;
        Trial& trial = out[i];
        trial.rounds += g.rounds, trial.accepted += g.accepted;
        trial.tokens += std::ssize(g.tokens) - 1, trial.ms += g.milliseconds.first_to_last_token;
        add(g, trial.seen[g.prompt_tokens]);
      }
    return out;
  }

  // Rounds that drafted, and the conditional acceptance by position: a mean over runs of one length, weighted by rounds.
  static void add(const Generation& g, Profile::Seen& seen) {
    seen.context_len = g.prompt_tokens;
    const double before = seen.rounds, now = double(g.rounds);
    if (now <= 0) return;
    seen.acceptance.resize(std::max(seen.acceptance.size(), g.drafted_by_position.size()));
    for (size_t i = 0; i < g.drafted_by_position.size(); ++i) {
      const double reached =
          double(i == 0 ? g.drafted_by_position[0] : std::min(g.accepted_by_position[i - 1], g.drafted_by_position[i]));
      if (reached <= 0) break;
      const double a = double(g.accepted_by_position[i]) / reached;
      seen.acceptance[i] = (seen.acceptance[i] * before + a * now) / (before + now);
    }
    seen.rounds += now;
  }

  Status store(double ratio, int gamma, const Trial& deepest) {
    Profile profile{.ratio = ratio, .gamma = gamma};
    for (const auto& [length, seen] : deepest.seen) profile.seen.push_back(seen);
    const CostKey key = cost_key(engine_.parts());
    const std::string path = cache_path("profile", key);
    HUNCH_OK(profile.save(path, key));
    out_["profile"] = path;
    say("stored for later runs: {}", path);
    return {};
  }

  void row(const char* name, double ratio, int gamma, const Trial& t, const Trial& plain, const std::string& label) {
    const double over = plain.speed() > 0 ? t.speed() / plain.speed() : 0;
    say("{}  {:8.1f}  {:.2f}", label, t.speed(), over);
    out_[name].push_back({
        {"ratio", ratio},
        {"gamma", gamma},
        {"tokens_per_second", t.speed()},
        {"over_plain", over},
        {"accepted_per_round", t.accepted_per_round()},
    });
  }
  template <class... T>
  void say(fmt::format_string<T...> line, T&&... values) {
    text_ += fmt::format(line, std::forward<T>(values)...) + "\n";
  }

  std::vector<Tokens> prompts_;
  int longest_ = kLong;
  std::string text_;
  ordered_json out_;
};

}

Result<std::vector<Tokens>> sample_texts(Engine& engine, const std::string& path, int64_t most) {
  HUNCH_TRY(const std::string text, read_text_file(path));
  std::vector<std::string> texts;
  for (size_t at = 0; at < text.size() && std::ssize(texts) < most;) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const json object = json::parse(text.begin() + at, text.begin() + end, nullptr, false);
    at = end + 1;
    if (!object.is_object() || !object.contains("text") || !object["text"].is_string()) continue;
    texts.push_back(object["text"].get<std::string>());
  }
  if (texts.empty()) texts.push_back(text);
  std::vector<Tokens> out;
  for (const std::string& t : texts) { HUNCH_TRY(out.emplace_back(), engine.tokenizer().encode(t)); }
  return out;
}

Result<int> tune_command(Arguments arguments) {
  TuneFlags flags;
  flags.sampling.max_tokens = 96;
  FlagSet set("hunch tune FILE [flags]",
      "Finds the kept ratio and the number of drafts a round that suit a sample of your prompts (FILE: a JSON object a line "
      "with \"text\", or one plain text), in the three steps of the Vegas paper, and stores them with the acceptance that "
      "was seen, for this model on this machine.");
  set.positional("FILE", true, "the sample", flags.file);
  set.group("Tuning");
  set.whole({"--prompts"}, "prompts of the file to use, 1..1000 (default 4)", {1, 1000}, flags.most);
  set.text({"--calibrate-verify"}, "OUT",
      "instead: what --verify sparse wants to know of the model (anchor layers, sizes of channels, thresholds of experts), "
      "to OUT",
      flags.calibration);
  set.whole({"--anchors"}, "layers that may choose blocks when calibrating (default: half)", {1, 4096}, flags.anchors);
  set.whole({"--rows-per-check"}, "rows of a check when calibrating (default 8)", {1, 64}, flags.rows);
  set.toggle({"--json"}, "print one JSON object and nothing else on stdout", flags.json);
  set.group("Models with natively trained sparse attention");
  set.toggle({"--reuse-layers"}, "instead: find the layers that may reuse the choice of the one before, for --reuse-schedule",
      flags.reuse);
  set.toggle({"--profile"}, "instead: rank strategies by precision class and context, for --strategies", flags.profile);
  set.text({"--out"}, "FILE", "where either goes (default: reuse.json, strategies.json)", flags.out);
  set.whole(
      {"--score"}, "--reuse-layers: tokens at the end of each text that are scored (default 256)", {1, 1 << 20}, flags.scored);
  set.number({"--loss-budget"}, "--reuse-layers: share of the loss that reuse may add (default 0.005)", {0, 10}, flags.budget);
  add_generating_flags(set, flags);
  if (const auto ended = parsed(set, arguments)) return *ended;
  if (flags.sampling.max_tokens.value_or(0) < 8) return usage_error("tuning needs runs of some length: -n 8 or more");
  if (flags.reuse && flags.profile)
    return usage_error("--reuse-layers and --profile are two runs: the first makes a file for the second");
  if (!flags.out) flags.out = flags.reuse ? "reuse.json" : "strategies.json";
  HUNCH_TRY(auto speculation, resolve_speculation(flags.speculation));
  HUNCH_TRY(auto options, engine_options(flags.model, &flags.speculation));
  ProgressLine progress;
  HUNCH_TRY(auto engine, load_engine(options, progress));
  if (flags.reuse) return tune_reuse_layers(*engine, flags, progress);
  if (flags.profile) return tune_strategies(*engine, flags, speculation, progress);
  return Tune(*engine, flags, speculation, progress).run();
}

}
