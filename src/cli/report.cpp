// Figures come from Generation; this file only arranges them, so that the text and the JSON of a run always agree.
#include "cli/report.h"

#include "api/answer_json.h"
#include "engine/approximation.h"

namespace hunch {
namespace {

using nlohmann::ordered_json;

std::string share_text(double part, double whole) { return whole > 0 ? fmt::format("{:.0f} %", 100 * part / whole) : "-"; }

}

void NamedLines::weights(const nlohmann::ordered_json& json, int encoding_width) {
  (*this)("weights", "{} ({:.1f} M parameters)", bytes_text(json["weight_bytes"]), json["parameters"].get<double>() / 1e6);
  if (!json.contains("encodings")) return;
  for (const auto& [name, of] : json["encodings"].items())
    (*this)("", "{:<{}}{:>5} tensors {:>10}", name, encoding_width, of["tensors"].get<int>(), bytes_text(of["bytes"]));
}

std::string bytes_text(double bytes) {
  if (bytes >= 1e9) return fmt::format("{:.2f} GB", bytes / 1e9);
  if (bytes >= 1e6) return fmt::format("{:.1f} MB", bytes / 1e6);
  if (bytes >= 1e3) return fmt::format("{:.1f} kB", bytes / 1e3);
  return fmt::format("{:.0f} B", bytes);
}

std::string lossless_text(const Generation& g) {
  if (!g.lossless) return g.approximation.any() ? approximation_text(g.approximation) : "LOSSY: guesses were not checked";
  if (g.proposer == "none" || g.proposer.empty()) return "yes, plain decoding";
  return g.rule == "ratio" ? "yes, the distribution of plain decoding" : "yes, the stream of plain decoding, bit for bit";
}

double Report::plain_kv_bytes_per_token() const {
  // The first token comes out of the prompt's own pass; token i of the rest reads the prompt and the i before it, in whole pages.
  const int64_t steps = std::ssize(generation.tokens) - 1;
  if (steps < 1) return 0;
  double pages = 0;
  for (int64_t i = 1; i <= steps; ++i) pages += double((generation.prompt_tokens + i + kPageLen - 1) / kPageLen);
  return kv_bytes_per_entry * kPageLen * pages / steps;
}

ordered_json report_json(const Report& report) {
  const Generation& g = report.generation;
  ordered_json out = {{"text", report.text}, {"tokens", g.tokens}, {"prompt_tokens", g.prompt_tokens},
      {"decode_tokens_per_second", g.tokens_per_second()}, {"mean_acceptance_length", g.mean_acceptance_length()},
      {"acceptance_by_position", g.acceptance_by_position()}, {"kv_bytes_read_per_token", g.kv_bytes_per_token()}};
  if (g.experts_read > 0) out["experts_read_per_step"] = g.experts_per_step();
  if (!g.warning.empty()) out["warning"] = g.warning;
  out["lossless"] = g.lossless;
  if (g.approximation.any()) out["approx"] = approximation_json(g.approximation);
  if (g.thinned.any()) out["thinned_drafts"] = approximation_json(g.thinned);
  out["milliseconds"] = {{"load", g.milliseconds.load}, {"prefill", g.milliseconds.prefill}, {"draft", g.milliseconds.draft},
      {"verify", g.milliseconds.verify}, {"select", g.milliseconds.select}, {"decode", g.milliseconds.first_to_last_token}};
  out.update({{"finish_reason", finish_name(g.finish)}, {"model", report.model}, {"seed", g.seed}, {"proposer", g.proposer},
      {"policy", g.policy}, {"rule", g.rule}});
  if (g.ratio > 0) out["ratio"] = g.ratio;
  out["gamma"] = g.gamma;
  if (g.proposer == "profile") out["strategy_changes"] = g.strategy_changes;
  out.update({{"rounds", g.rounds}, {"draft_passes", g.draft_passes}, {"drafted", g.drafted}, {"accepted", g.accepted},
      {"drafted_by_position", g.drafted_by_position}, {"accepted_by_position", g.accepted_by_position}});
  if (report.kv_bytes_per_entry > 0) out["kv_bytes_per_token_plain"] = report.plain_kv_bytes_per_token();
  return out;
}

std::string acceptance_picture(const std::vector<double>& acceptance, const Paint& paint) {
  std::string out;
  const bool unicode = locale_is_utf8();
  for (size_t i = 0; i < acceptance.size(); ++i)
    out += fmt::format("  {:>2}  {} {:>4.0f} %\n", i + 1, paint.green(bar(acceptance[i], 40, unicode)), 100 * acceptance[i]);
  return out;
}

std::string report_text(const Report& report, const Paint& paint) {
  const Generation& g = report.generation;
  const Timings& ms = g.milliseconds;
  const bool speculated = g.rounds > 0;
  NamedLines line{24, paint.bold("statistics") + "\n", "  "};
  line("tokens", "{} behind a prompt of {} ({})", g.tokens.size(), g.prompt_tokens, finish_name(g.finish));
  line("speed", "{:.1f} tokens/s", g.tokens_per_second());
  line("load, prefill", "{:.0f} ms, {:.0f} ms", ms.load, ms.prefill);
  if (speculated) {
    const double whole = ms.first_to_last_token, other = std::max(0.0, whole - ms.draft - ms.verify - ms.select);
    line("time", "draft {}, verify {}, select {}, other {}", share_text(ms.draft, whole), share_text(ms.verify, whole),
        share_text(ms.select, whole), share_text(other, whole));
    line("mean acceptance length", "{:.2f} tokens a round, {} rounds of {} guesses", g.mean_acceptance_length(), g.rounds,
        g.gamma);
    line("drafter, rule", "{}{}, {}", g.proposer, g.policy.empty() ? "" : " with " + g.policy, g.rule);
  }
  const double plain = report.plain_kv_bytes_per_token();
  line("KV read per token",
      plain > 0 ? fmt::format("{} (plain decoding: {})", bytes_text(g.kv_bytes_per_token()), bytes_text(plain))
                : bytes_text(g.kv_bytes_per_token()));
  if (g.experts_read > 0) line("experts read per step", "{:.1f}, over all layers", g.experts_per_step());
  line("lossless", g.lossless ? lossless_text(g) : paint.red(lossless_text(g)));
  line("seed", std::to_string(g.seed));
  if (speculated) {
    line.text += "  acceptance by position\n" + acceptance_picture(g.acceptance_by_position(), paint);
    line.text += fmt::format("draft acceptance rate = {:.5f} ({:>5} accepted / {:>5} generated)\n",
        g.drafted > 0 ? double(g.accepted) / g.drafted : 0.0, g.accepted, g.drafted);
  }
  return line.text;
}

}
