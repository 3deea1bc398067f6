#include "engine/token_run.h"

#include "base/failure.h"

namespace hunch {
namespace {

constexpr int64_t kLogitRows = 32;  // rows of logits kept at once: a large vocabulary times a whole chunk would be gigabytes

}

void fill_entries(EngineParts& parts, const Sequence& sequence, int64_t depth) {
  const ModelShape& shape = parts.model->shape();
  // Rows overlap in a long line of noise: few numbers to make, and no two rows the same, whose scores would tie and be slower to
  // choose among than any text's.
  constexpr int64_t kChunk = 1024, kStep = 8;
  const int64_t width = int64_t(shape.kv_heads) * shape.head_dim;
  Buffer memory = parts.backend->allocate(size_t(depth * kStep + width) * sizeof(float), Memory::Shared);
  auto line = memory.view<float>(depth * kStep + width);
  uint32_t state = 1;
  for (int64_t i = 0; i < line.size(); ++i) {
    state = state * 1664525u + 1013904223u;
    line.data[i] = float(int32_t(state)) * 0x1p-31f;
  }
  for (int layer = 0; layer < shape.layers; ++layer)
    for (int64_t first = 0; first < depth; first += kChunk) {
      View<const float, 3> part(line.data + first * kStep, std::min(kChunk, depth - first), shape.kv_heads, shape.head_dim);
      part.stride[0] = kStep;
      parts.backend->store_kv(
          {.layer = layer, .k = part, .v = part, .kv = {parts.store.get(), sequence.pages.view()}, .first_entry = first});
    }
  (void)parts.backend->synchronize();  // the rows are needed until then
  sequence.compressed_len = 0;
}

TokenRun::TokenRun(EngineParts& parts) : parts_(parts) {
  const size_t rows = parts.pass->max_rows();
  const ModelShape& shape = parts.model->shape();
  ids_ = parts.backend->allocate(rows * sizeof(int32_t), Memory::Shared);
  hidden_ = parts.backend->allocate(rows * shape.hidden * sizeof(float));
  logits_ = parts.backend->allocate(size_t(kLogitRows) * shape.vocab_size * sizeof(float), Memory::Shared);
}

TokenRun::~TokenRun() { sequence_.pages.release_past(0, *parts_.pool); }

Result<std::unique_ptr<TokenRun>> TokenRun::make(EngineParts& parts, int64_t max_len, const std::atomic<bool>* interrupted) {
  if (max_len > parts.context_len) return failure("{} tokens do not fit the context of {}", max_len, parts.context_len);
  auto run = std::unique_ptr<TokenRun>(new TokenRun(parts));
  parts.forget_prefixes();  // idle pages of earlier requests
  run->sequence_.pages = PageTable(parts.context_len);
  run->sequence_.max_len = run->max_len_ = max_len;
  run->interrupted_ = interrupted;
  if (!run->sequence_.pages.grow_to(max_len, *parts.pool)) return Error{"no KV pages left"};
  return run;
}

void TokenRun::feed(
    std::span<const int32_t> tokens, int rows_per_pass, Logits wanted, const OnLogits& on_logits, SparseCheck* check) {
  HUNCH_CHECK(sequence_.committed_len + std::ssize(tokens) <= max_len_);
  const ModelShape& shape = parts_.model->shape();
  const int64_t most = std::clamp<int64_t>(rows_per_pass, 1, parts_.pass->max_rows());
  for (int64_t first = 0; first < std::ssize(tokens); first += most) {
    if (interrupted_ && *interrupted_) return;
    const int64_t rows = std::min(most, std::ssize(tokens) - first);
    auto ids = ids_.view<int32_t>(rows);
    std::copy_n(tokens.begin() + first, rows, ids.data);
    auto hidden = hidden_.view<float>(rows, shape.hidden);
    const Segment segment{
        .phase = rows > 1 && !check ? Segment::Phase::Prefill : Segment::Phase::Verify,
        .sequence = &sequence_,
        .first_position = sequence_.committed_len,
        .num_rows = int(rows),
        .sharing = sharing_,
        .check = check,
    };
    parts_.pass->begin(ids, std::span(&segment, 1));
    parts_.model->forward(*parts_.pass, hidden);
    if (check) check->end_pass(int(rows));
    wait();  // before ids are written again
    sequence_.committed_len += rows;
    if (wanted == Logits::All) {
      logits_of(hidden, first, on_logits);
    } else if (wanted == Logits::Last && first + rows == std::ssize(tokens)) {
      logits_of(View<const float, 2>(hidden).slice(rows - 1, 1), first + rows - 1, on_logits);
    }
  }
}

void TokenRun::logits_of(View<const float, 2> hidden, int64_t first, const OnLogits& on_logits) {
  const int64_t vocab = parts_.model->shape().vocab_size;
  for (int64_t row = 0; row < hidden.extent[0]; row += kLogitRows) {
    const int64_t rows = std::min(kLogitRows, hidden.extent[0] - row);
    auto logits = logits_.view<float>(rows, vocab);
    parts_.model->logits(*parts_.backend, hidden.slice(row, rows), logits);
    wait();
    if (on_logits) on_logits(first + row, logits);
  }
}

}
