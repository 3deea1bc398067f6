// See logit_patch.h. Memory for penalties is as long as the vocabulary, time is not: ids in prompt, output and drafts only.
#include "backend/ops/logit_patch.h"

#include <cmath>

#include "base/check.h"

namespace hunch {
namespace {

constexpr float kBanned = -INFINITY;

}

void LogitPatch::reserve(int64_t vocab, int64_t drafts) {
  if (std::ssize(row_) < vocab) row_.resize(vocab), on_path_.resize(vocab);
  if (std::ssize(path_) < drafts) path_.resize(drafts);
}

// A row that has a NaN is refused later; a ban must not hide it.
void LogitPatch::ban(int32_t id) {
  if (!std::isnan(row_[id])) row_[id] = kBanned;
}

// Mostly whole words are allowed or banned; the loop over a banned one is a few vector instructions.
void LogitPatch::keep_allowed(const TokenMask::Row& mask, int64_t vocab) {
  for (int64_t first = 0; first < vocab; first += 32) {
    const uint32_t word = mask.words[first / 32];
    if (word == ~0u) continue;
    const int count = int(std::min<int64_t>(32, vocab - first));
    float* const row = row_.data() + first;
    if (word == 0 && count == 32) {
      for (int i = 0; i < 32; ++i) row[i] = row[i] != row[i] ? row[i] : kBanned;
    } else {
      for (int i = 0; i < count; ++i)
        if (!(word >> i & 1)) ban(int32_t(first + i));
    }
  }
}

std::span<const int32_t> LogitPatch::find_path(const SampleArgs& args, int row) {
  size_t first = path_.size();
  while (row > 0) {
    path_[--first] = args.drafts(row - 1);
    row = args.parents.empty() ? row - 1 : args.parents[row];
  }
  return std::span<const int32_t>(path_).subspan(first);
}

const float* LogitPatch::apply(const SampleArgs& args, int64_t r) {
  const LogitState& state = *args.state;
  const LogitRules& rules = state.rules();
  const int64_t vocab = args.logits.extent[1];
  HUNCH_CHECK(state.vocab() == vocab);
  const int row = args.first_row + int(r);
  HUNCH_CHECK(row <= args.drafts.extent[0]);
  const std::span<const int32_t> path = find_path(args, row);
  const bool blind = args.blind && row > 0;

  const float* logits = &args.logits(r, 0);
  if (rules.allowed.empty()) {
    std::copy_n(logits, vocab, row_.data());
  } else {
    for (int64_t i = 0; i < vocab; ++i) row_[i] = std::isnan(logits[i]) ? logits[i] : kBanned;
    for (const int32_t id : rules.allowed) row_[id] = logits[id];
  }
  TokenMask::Row mask;
  if (state.mask() && !blind) {
    mask = state.mask()->after(path);
    if (mask.words) keep_allowed(mask, vocab);
  }
  for (const std::vector<int32_t>& word : rules.bad_words)
    if (!(blind && word.size() > 1) && state.completed_next(word, path)) ban(word.back());
  if (!mask.only_ends && state.output_len() + std::ssize(path) < rules.min_tokens)
    for (const int32_t id : rules.end_ids) ban(id);
  for (const auto& [id, bias] : rules.bias) {
    if (bias <= kBanBias) ban(id);
    else row_[id] += bias;
  }
  if (rules.penalise()) penalise(state, path);
  return row_.data();
}

void LogitPatch::penalise(const LogitState& state, std::span<const int32_t> path) {
  const LogitRules& rules = state.rules();
  const auto repeat = [&](float& x) { x = x > 0 ? x / rules.repetition : x * rules.repetition; };
  const auto in_output = [&](int32_t id) {
    float& x = row_[id];
    if (rules.repetition != 1) repeat(x);
    x = x - rules.frequency * float(int64_t(state.output_count(id)) + on_path_[id]) - rules.presence;
  };
  const auto known = [&](int32_t id) { return id >= 0 && id < state.vocab(); };  // a failed draft is -1
  for (const int32_t id : path)
    if (known(id)) ++on_path_[id];
  for (const int32_t id : state.output_ids()) in_output(id);
  if (rules.repetition != 1)
    for (const int32_t id : state.prompt_ids())
      if (state.output_count(id) == 0 && on_path_[id] == 0) repeat(row_[id]);
  for (const int32_t id : path) {  // drafts that are not in the output yet, each once
    if (!known(id)) continue;
    if (state.output_count(id) == 0 && on_path_[id] > 0) in_output(id);
    on_path_[id] = 0;
  }
}

}
