// The row-wise kernels of one instruction set (rows_body.h, sample_body.h), called by rows.cpp and sampler.cpp.
#pragma once

#include <cstdint>

namespace hunch {

// One row of logits during sampling. The possible ids are those before a cut in the order (logit descending, id ascending):
// logit > cut_logit, or logit == cut_logit and id <= cut_id. log ratio of an id = (logit - best) / temperature.
struct SampleRow {
  const float* logits = nullptr;
  int64_t vocab = 0;
  float best = 0, temperature = 1;
  float cut_logit = 0;
  int32_t cut_id = 0;
  uint64_t seed = 0;  // the noise's key and counter, see base/random.h
  uint32_t sample = 0, stream = 0, position = 0;
};

struct LogitScan {
  float best = 0;  // the greatest; undefined if has_nan
  bool has_nan = false, has_finite = false;
};

struct RowsKernels {
  // out = x / sqrt(mean(x^2) + eps) weight; out may be x.
  void (*norm)(const float* x, const float* weight, double eps, int64_t n, float* out) = nullptr;
  void (*gate)(const float* gate, const float* up, int64_t n, float* out) = nullptr;
  // (min(max(up, -limit), limit) + 1) g / (1 + exp(-alpha g)), g = min(gate, limit)
  void (*gate_clamped)(const float* gate, const float* up, int64_t n, float limit, float alpha, float* out) = nullptr;
  // Rotates `heads` heads that lie head_stride apart; cos_sin [half][2].
  void (*rope)(float* x, int64_t heads, int64_t head_stride, const float* cos_sin, int64_t half, bool neighbours) = nullptr;

  // Also the maxima of groups of ids: 16 groups for every 256 ids, each id in one group. [ceil(vocab / 256) * 16]
  LogitScan (*scan)(const float* logits, int64_t vocab, float* group_best) = nullptr;
  // Ids with logit >= least, ascending; `ids` has room for vocab + 16. Returns how many.
  int64_t (*collect)(const float* logits, int64_t vocab, float least, int32_t* ids) = nullptr;
  int32_t (*choose)(const SampleRow& row) = nullptr;  // arg max of log ratio + noise over the possible ids
  // exp(log ratio) of every id, 0 where not possible; returns their sum. [vocab]
  double (*ratios)(const SampleRow& row, float* out) = nullptr;
  // log ratio + noise of every possible id, as `choose` compares them; -inf elsewhere. [vocab]
  void (*scores)(const SampleRow& row, float* out) = nullptr;
  void (*noise)(const SampleRow& row, int64_t first_id, float* out) = nullptr;  // of 64 ids from a multiple of 64 on (tests)
};

}
