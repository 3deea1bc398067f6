// See rules.h. Values are those of backend/ops/logit_patch.cpp, bit for bit.
#include "backend/cuda/rules.h"

#include "backend/cuda/ptx.h"

namespace hunch {
namespace {

constexpr unsigned kThreads = 256, kParts = 8;
constexpr int kMostPath = 256;
constexpr int64_t kLeastRows = 64;                // that there is room for
constexpr size_t kMostWaiting = size_t(1) << 17;  // words of masks, counts of tokens, beside one call's
constexpr uint32_t kInPrompt = uint32_t(1) << 31;

// What a request's state keeps for this backend.
struct Counts {
  Buffer memory;
  uint64_t prompts = 0;
  int64_t output_len = 0;
};

struct NoteDevice {
  const RuledRows::Note* notes;
  const RuledRows::Counted* counted;
};
__global__ void note_kernel(const NoteDevice* args) {
  wait_for_previous();
  let_next_start();
  const RuledRows::Note a = args->notes[blockIdx.x];
  if (a.anew) {
    for (int i = threadIdx.x; i < a.vocab; i += blockDim.x) a.counts[i] = 0;
    __syncthreads();
  }
  for (int i = threadIdx.x; i < a.tokens; i += blockDim.x) {
    const RuledRows::Counted token = args->counted[a.first + i];
    atomicAdd(&a.counts[token.id], token.value);
  }
}

struct RulesDevice {
  const RuledRows::Row* rows;
  const uint32_t* masks;
  const int32_t* paths;
  const RuledRows::Special* specials;
  const float* adds;
};
__global__ void rules_kernel(const RulesDevice* args) {
  __shared__ int32_t path[kMostPath];
  wait_for_previous();
  let_next_start();
  const RulesDevice all = *args;
  const RuledRows::Row a = all.rows[blockIdx.y];
  for (int i = threadIdx.x; i < a.path_len; i += blockDim.x) path[i] = a.drafts[all.paths[a.path + i] * a.drafts_stride];
  __syncthreads();
  const auto ruled = [&](int id, const RuledRows::Special* special) {
    float x = a.from[id];
    if (isnan(x)) return x;  // the row is refused, whatever is banned
    if ((a.mask >= 0 && !(all.masks[a.mask + id / 32] >> id % 32 & 1)) || (special && special->banned)) x = -INFINITY;
    for (int i = 0; special && i < special->adds; ++i) x = __fadd_rn(x, all.adds[special->first_add + i]);
    if (!a.counts) return x;
    const uint32_t known = a.counts[id];
    uint32_t count = known & ~kInPrompt;
    for (int i = 0; i < a.path_len; ++i) count += path[i] == id ? 1 : 0;
    if (a.repetition != 1 && (count > 0 || known & kInPrompt))
      x = x > 0 ? __fdiv_rn(x, a.repetition) : __fmul_rn(x, a.repetition);
    if (count > 0) x = __fsub_rn(__fsub_rn(x, __fmul_rn(a.frequency, float(count))), a.presence);
    return x;
  };
  const int part = (a.vocab + int(gridDim.x) - 1) / int(gridDim.x), first = int(blockIdx.x) * part,
            end = min(first + part, a.vocab);
  for (int id = first + int(threadIdx.x); id < end; id += int(blockDim.x)) a.to[id] = ruled(id, nullptr);
  __syncthreads();
  for (int i = threadIdx.x; i < a.num_specials; i += blockDim.x) {
    const RuledRows::Special special = all.specials[a.specials + i];
    if (special.id >= first && special.id < end) a.to[special.id] = ruled(special.id, &special);
  }
}

}

bool RuledRows::has_room(const SampleArgs& args) const {
  const int64_t floats = args.logits.extent[0] * args.logits.extent[1];
  return rows_.empty() ||
      (used_ + floats <= int64_t(copies_.bytes() / sizeof(float)) && masks_.size() < kMostWaiting &&
          counted_.size() < kMostWaiting);
}

const uint32_t* RuledRows::counts_of(Commands& commands, const LogitState& state) {
  if (!state.rules().penalise()) return nullptr;
  if (!state.device_copy)
    state.device_copy = std::make_shared<Counts>(Counts{.memory = commands.take(state.vocab() * sizeof(uint32_t))});
  Counts& known = *static_cast<Counts*>(state.device_copy.get());
  auto* counts = static_cast<uint32_t*>(known.memory.data());
  const int64_t fresh = state.output_len() - known.output_len;
  const auto last = state.last_tokens();
  const bool anew = known.prompts != state.prompts() || fresh < 0 || fresh > std::ssize(last);
  known.prompts = state.prompts(), known.output_len = state.output_len();
  if (!anew && fresh == 0) return counts;
  Note note{counts, int32_t(state.vocab()), int32_t(counted_.size()), 0, anew};
  if (anew) {
    for (const int32_t id : state.output_ids()) counted_.push_back({id, state.output_count(id)});
    for (const int32_t id : state.prompt_ids()) counted_.push_back({id, kInPrompt});
  } else {
    for (const int32_t id : last.last(fresh)) counted_.push_back({id, 1});
  }
  note.tokens = int32_t(counted_.size()) - note.first;
  notes_.push_back(note);
  return counts;
}

SampleArgs RuledRows::add(Commands& commands, const SampleArgs& args) {
  const int64_t rows = args.logits.extent[0], vocab = args.logits.extent[1];
  HUNCH_CHECK(has_room(args) && args.state->vocab() == vocab);
  if (rows_.empty()) {
    used_ = 0;
    const size_t bytes = size_t(std::max(rows, kLeastRows) * vocab) * sizeof(float);
    if (copies_.bytes() < bytes) {
      if (copies_) (void)commands.wait();  // kernels that are listed read them; a failure shows at the next wait
      copies_ = {}, copies_ = commands.take(bytes);
    }
  }
  SampleArgs out = args;
  out.state = nullptr;
  if (!copies_) return out;  // the next wait says why
  float* to = static_cast<float*>(copies_.data()) + used_;
  used_ += rows * vocab;
  const uint32_t* counts = counts_of(commands, *args.state);
  for (int64_t r = 0; r < rows; ++r) add_row(args, r, counts, to + r * vocab);
  out.logits = View<const float, 2>(to, rows, vocab);
  return out;
}

void RuledRows::add_row(const SampleArgs& args, int64_t r, const uint32_t* counts, float* to) {
  const LogitState& state = *args.state;
  const LogitRules& rules = state.rules();
  const int32_t vocab = int32_t(state.vocab());
  Row row{.from = args.logits.data + r * args.logits.stride[0],
      .to = to,
      .counts = counts,
      .drafts = args.drafts.data,
      .drafts_stride = args.drafts.stride[0],
      .repetition = rules.repetition,
      .presence = rules.presence,
      .frequency = rules.frequency,
      .vocab = vocab,
      .mask = -1,
      .path = int32_t(paths_.size()),
      .specials = int32_t(specials_.size())};
  for (int at = args.first_row + int(r); at > 0; at = args.parents.empty() ? at - 1 : args.parents[at]) paths_.push_back(at - 1);
  row.path_len = int32_t(paths_.size()) - row.path;
  HUNCH_CHECK(row.path_len <= kMostPath);
  const bool blind = args.blind && row.path_len > 0;
  std::vector<int32_t> drafts;  // where they matter here, they are known
  for (int32_t i = row.path_len; state.reads_drafts() && !blind && i-- > 0;) drafts.push_back(args.drafts(paths_[row.path + i]));

  TokenMask::Row mask;
  if (state.mask() && !blind) mask = state.mask()->after(drafts);
  if (mask.words || !rules.allowed.empty()) {
    const size_t words = size_t(vocab + 31) / 32, first = masks_.size();
    row.mask = int32_t(first);
    masks_.resize(first + words, rules.allowed.empty() ? ~0u : 0u);
    for (const int32_t id : rules.allowed) masks_[first + size_t(id) / 32] |= 1u << id % 32;
    for (size_t i = 0; mask.words && i < words; ++i) masks_[first + i] &= mask.words[i];
  }
  std::vector<std::pair<int32_t, float>> touched;  // of each id in the order of the rules; a ban is minus infinity
  constexpr float kBan = -INFINITY;
  for (const std::vector<int32_t>& word : rules.bad_words)
    if (!(blind && word.size() > 1) && state.completed_next(word, drafts)) touched.push_back({word.back(), kBan});
  if (!mask.only_ends && state.output_len() + row.path_len < rules.min_tokens)
    for (const int32_t id : rules.end_ids) touched.push_back({id, kBan});
  for (const auto& [id, bias] : rules.bias) touched.push_back({id, bias <= kBanBias ? kBan : bias});
  std::ranges::stable_sort(touched, [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [id, value] : touched) {
    if (int32_t(specials_.size()) == row.specials || specials_.back().id != id)
      specials_.push_back({id, int32_t(adds_.size()), 0, 0});
    if (value == kBan) specials_.back().banned = 1;
    else adds_.push_back(value), ++specials_.back().adds;
  }
  row.num_specials = int32_t(specials_.size()) - row.specials;
  rows_.push_back(row);
}

void RuledRows::enqueue(Commands& commands) {
  if (rows_.empty()) return;
  const auto there = [&](const auto& values) { return commands.data(std::span(values.data(), values.size())); };
  if (!notes_.empty())
    commands.launch(note_kernel, {.blocks = dim3(unsigned(notes_.size())), .threads = 1024},
        NoteDevice{there(std::as_const(notes_)), there(std::as_const(counted_))});
  commands.launch(rules_kernel, {.blocks = dim3(kParts, unsigned(rows_.size())), .threads = kThreads},
      RulesDevice{there(std::as_const(rows_)), there(std::as_const(masks_)), there(std::as_const(paths_)),
          there(std::as_const(specials_)), there(std::as_const(adds_))});
  rows_.clear(), notes_.clear(), counted_.clear(), masks_.clear(), paths_.clear(), specials_.clear(), adds_.clear();
}

}
