#include "cli/calibrate.h"

#include "engine/reuse_schedule.h"
#include "engine/token_run.h"
#include "engine/verify_check.h"

namespace hunch {

using nlohmann::ordered_json;

Status watch_text(
    EngineParts& parts, std::span<const int32_t> text, const SparseVerification& sparse, int rows, CheckRecord& record) {
  if (parts.backend->asynchronous()) return usage_error("exact checks are watched on the host: use --device cpu");
  SparseVerification watched = sparse;  // attention is watched whatever the rest asks for
  watched.on = true, watched.reuse_layers = false, watched.skip_experts = 0;
  watched.channel_threshold = watched.channel_share = 0;
  if (parts.model->shape().nsa.used()) watched.ratio = 1;
  else if (watched.ratio >= 1) watched.ratio = SparseVerification().ratio;
  HUNCH_TRY(CheckOptions options, check_options(parts, watched));
  options.record = &record;
  const auto check = make_check(parts, std::move(options));
  const size_t before = text.size() - std::min(text.size(), size_t(kWatched));
  HUNCH_TRY(const auto run, TokenRun::make(parts, std::ssize(text)));
  check->open(run->sequence());
  run->feed(text.first(before), parts.options.chunk_len, TokenRun::Logits::None);
  run->feed(text.subspan(before), rows, TokenRun::Logits::None, {}, check.get());
  return run->status();
}

std::vector<double> overlap_by_distance(const CheckRecord& record) {
  std::vector<double> out(record.overlap.size());
  for (size_t d = 1; d < out.size(); ++d) out[d] = record.overlap_pairs[d] > 0 ? record.overlap[d] / record.overlap_pairs[d] : 0;
  return out;
}

Result<ordered_json> calibrate_verify(EngineParts& parts, const std::vector<Tokens>& texts, const SparseVerification& sparse,
    int rows, int anchors, const std::string& path, const std::atomic<bool>* interrupted) {
  const int layers = parts.model->shape().layers;
  CheckRecord record = make_record(layers, rows);
  for (const auto& text : texts) {
    if (interrupted && *interrupted) return ordered_json();
    HUNCH_OK(watch_text(parts, text, sparse, rows, record));
  }
  const auto found =
      VerifyCalibration::of(record, identity_of(*parts.checkpoint).text(), anchors > 0 ? anchors : (layers + 1) / 2);
  HUNCH_OK(found.save(path));
  ordered_json out = {{"calibration", path}, {"model", found.model}, {"texts", texts.size()}, {"steps", record.steps},
      {"anchors", found.anchors}, {"overlap_by_distance", overlap_by_distance(record)}};
  if (record.steps == 0) out["note"] = "no text was longer than --verify-dense: no anchors were looked for";
  return out;
}

}
