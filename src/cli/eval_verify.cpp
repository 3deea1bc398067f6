#include "cli/eval_verify.h"

#include "api/answer_json.h"
#include "cli/calibrate.h"
#include "engine/approximation.h"
#include "engine/token_run.h"
#include "engine/verify_check.h"

namespace hunch {
namespace {

using nlohmann::ordered_json;
using Logits = std::vector<std::vector<float>>;  // log-probabilities of the scored rows

void log_softmax(View<const float, 1> logits, std::vector<float>& out) {
  out.assign(logits.data, logits.data + logits.extent[0]);
  const float most = std::ranges::max(out);
  double sum = 0;
  for (const float x : out) sum += std::exp(double(x) - double(most));
  const float lse = most + float(std::log(sum));
  for (float& x : out) x -= lse;
}

struct Differences {
  std::vector<double> kl;
  double tv = 0, same_best = 0, nats = 0, nats_exact = 0;

  void add(const std::vector<float>& p, const std::vector<float>& q, int32_t next) {
    double divergence = 0, apart = 0;
    for (size_t i = 0; i < p.size(); ++i) {
      const double a = std::exp(double(p[i])), b = std::exp(double(q[i]));
      divergence += a * (double(p[i]) - double(q[i])), apart += std::fabs(a - b);
    }
    kl.push_back(std::max(0.0, divergence)), tv += apart / 2;
    same_best += std::ranges::max_element(p) - p.begin() == std::ranges::max_element(q) - q.begin();
    nats -= double(q[next]), nats_exact -= double(p[next]);
  }
  ordered_json row() {
    std::ranges::sort(kl);
    const double n = kl.size();
    double sum = 0, squares = 0;
    for (const double x : kl) sum += x, squares += x * x;
    const auto at = [&](double share) { return kl[std::min(kl.size() - 1, size_t(share * n))]; };
    const double mean = sum / n;
    return {{"kl", mean}, {"kl_standard_error", std::sqrt(std::max(0.0, squares / n - mean * mean) / n)}, {"kl_p95", at(0.95)},
        {"kl_p99", at(0.99)}, {"total_variation", tv / n}, {"top1_agreement", same_best / n},
        {"perplexity_exact", std::exp(nats_exact / n)}, {"perplexity", std::exp(nats / n)}};
  }
};

}

Result<ordered_json> eval_verify(Engine& engine, std::span<const int32_t> text, const SpeculationOptions& speculation,
    const VerifyEval& how, const std::atomic<bool>* interrupted) {
  EngineParts& parts = engine.parts();
  const SparseVerification& sparse = speculation.sparse;
  if (!sparse.on) return usage_error("hunch eval verify measures sparse checks: say --verify sparse");
  const int64_t windows = std::min(how.windows, std::ssize(text) / how.context);
  if (windows < 1 || how.scored >= how.context)
    return usage_error("windows of {} tokens of which {} are scored: the text has {}", how.context, how.scored, text.size());
  Differences left, instant;  // sparse K and V stay; only the pass's own
  CheckRecord record = make_record(parts.model->shape().layers, how.rows);
  Approximation approximation;
  double exact_ms = 0, sparse_ms = 0, comparing_ms = 0;  // of the last two: not the passes'
  int64_t same = 0, asked = 0;
  std::vector<double> first_difference;
  for (int64_t w = 0; w < windows && !(interrupted && *interrupted); ++w) {
    const auto window = text.subspan(w * how.context, how.context);
    const int64_t prompt = how.context - how.scored;
    const auto scored = window.subspan(prompt);
    {
      HUNCH_TRY(const auto run, TokenRun::make(parts, how.context));
      run->feed(window.first(prompt), parts.options.chunk_len, TokenRun::Logits::None);
      Logits exact(scored.size());
      comparing_ms = 0;
      auto start = Clock::now();
      run->feed(scored, how.rows, TokenRun::Logits::All, [&](int64_t first, View<const float, 2> logits) {
        const auto compared = Clock::now();
        for (int64_t row = 0; row < logits.extent[0]; ++row) log_softmax(logits[row], exact[first + row]);
        comparing_ms += ms_since(compared);
      });
      exact_ms += ms_since(start) - std::exchange(comparing_ms, 0);
      std::vector<float> own;
      for (const bool stays : {true, false}) {
        HUNCH_TRY(CheckOptions options, check_options(parts, sparse));
        const auto check = make_check(parts, std::move(options));
        check->open(run->sequence());
        run->rewind(prompt);
        start = Clock::now(), comparing_ms = 0;
        for (int64_t at = 0; at < std::ssize(scored); at += how.rows) {
          const auto step = scored.subspan(at, std::min(size_t(how.rows), scored.size() - size_t(at)));
          run->feed(
              step, how.rows, TokenRun::Logits::All,
              [&](int64_t first, View<const float, 2> logits) {
                const auto compared = Clock::now();
                for (int64_t row = 0; row < logits.extent[0] && at + first + row + 1 < std::ssize(scored); ++row) {
                  log_softmax(logits[row], own);
                  (stays ? left : instant).add(exact[at + first + row], own, scored[at + first + row + 1]);
                }
                comparing_ms += ms_since(compared);
              },
              check.get());
          if (stays) continue;
          run->rewind(prompt + at);
          run->feed(step, how.rows, TokenRun::Logits::None);
        }
        if (!stays) continue;
        sparse_ms += ms_since(start) - comparing_ms;
        Approximation seen;
        describe(*check, sparse, seen);
        seen.since_token = seen.passes > 0 ? 0 : -1;
        approximation.add(seen);
      }
      HUNCH_OK(run->status());
    }
    if (!parts.backend->asynchronous()) HUNCH_OK(watch_text(parts, window, sparse, how.rows, record));
    if (how.free_tokens == 0) continue;
    Request request;
    request.prompt.assign(window.begin(), window.end());
    request.max_tokens = std::min(how.free_tokens, engine.context_len() - how.context);
    request.ignore_eos = true, request.sampling.temperature = 0;
    if (request.max_tokens < 1) continue;
    request.speculation.proposer = "none";
    HUNCH_TRY(const Generation plain, engine.generate(request, {}, interrupted));
    request.speculation = speculation;
    HUNCH_TRY(const Generation lossy, engine.generate(request, {}, interrupted));
    const auto differ = std::ranges::mismatch(plain.tokens, lossy.tokens).in1;
    ++asked, same += plain.tokens == lossy.tokens;
    first_difference.push_back(double(differ - plain.tokens.begin()));
  }
  if (left.kl.empty()) return ordered_json();
  ordered_json row = {{"eval", "verify"}, {"context", how.context}, {"windows", windows}, {"tokens", left.kl.size()},
      {"rows", how.rows}, {"lossless", approximation.passes == 0}};
  if (approximation.any()) row["approx"] = approximation_json(approximation);
  row.update(left.row());
  row["exact_kv"] = instant.row();
  if (asked > 0) {
    row["greedy"] = {
        {"prompts", asked},
        {"tokens", how.free_tokens},
        {"identical", double(same) / asked},
        {"median_first_difference", median(first_difference)},
    };
  }
  if (record.steps > 0) row["overlap_by_distance"] = overlap_by_distance(record);
  row["ms_exact"] = exact_ms, row["ms"] = sparse_ms;
  return row;
}

}
