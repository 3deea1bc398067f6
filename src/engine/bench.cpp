#include "engine/bench.h"

#include <sys/mman.h>

#include "base/clock.h"
#include "base/failure.h"
#include "base/random.h"
#include "engine/token_run.h"

namespace hunch {
DepthBench::DepthBench(EngineParts& parts, const RequestPlan& plan)
    : parts_(parts), plan_(plan), rows_(*parts.backend, parts.model->shape().vocab_size, plan.gamma + 1) {
  ids_ = parts.backend->allocate(size_t(plan.gamma + 1) * sizeof(int32_t), Memory::Shared);
  hidden_ = parts.backend->allocate(size_t(plan.gamma + 1) * parts.model->shape().hidden * sizeof(float));
}

DepthBench::~DepthBench() { sequence_.pages.release_past(0, *parts_.pool); }

Result<std::unique_ptr<DepthBench>> DepthBench::make(EngineParts& parts, int64_t depth, const RequestPlan& plan) {
  if (depth + plan.gamma + 1 > parts.context_len)
    return failure("a depth of {} tokens does not fit the context of {}", depth, parts.context_len);
  if (parts.model->shape().nsa.used())
    return usage_error(
        "this bench times drafts over selected entries, and a model with natively trained sparse attention (nsa) "
        "makes none: time whole requests by hunch bench rounds or hunch bench batch");
  auto bench = std::unique_ptr<DepthBench>(new DepthBench(parts, plan));
  HUNCH_TRY(bench->policy_, Register<SparsePolicy>::find(plan.policy_name)->make(parts.policy_setup(plan.policy, plan.gamma, 1)));
  if (plan.draft_weights) { HUNCH_TRY(bench->draft_weights_, parts.draft_weights(*plan.draft_weights)); }
  parts.forget_prefixes();
  Sequence& sequence = bench->sequence_;
  sequence.pages = PageTable(parts.context_len);
  sequence.noise = plan.noise;
  sequence.sampling = plan.sampling;
  if (!sequence.pages.grow_to(depth + plan.gamma + 1, *parts.pool)) return Error{"no KV pages left"};
  bench->fill(depth);
  bench->policy_->open(sequence);
  return bench;
}

void DepthBench::fill(int64_t depth) {
  fill_entries(parts_, sequence_, depth);
  const ModelShape& shape = parts_.model->shape();
  sequence_.tokens.assign(depth + 1, 0);
  for (int64_t i = 0; i <= depth; ++i) sequence_.tokens[i] = int32_t(i % shape.vocab_size);
  sequence_.prompt_len = depth;
  sequence_.committed_len = depth;
  sequence_.max_len = parts_.context_len;
}

PassCost DepthBench::time(
    int repeats, Segment::Phase phase, int rows, SparsePolicy* policy, const Model& model, std::span<const int32_t> parents) {
  const ModelShape& shape = model.shape();
  auto ids = ids_.view<int32_t>(rows);
  for (int row = 0; row < rows; ++row) ids(row) = int32_t((row * 7919 + 1) % shape.vocab_size);
  auto hidden = hidden_.view<float>(rows, shape.hidden);
  const Segment segment{
      .phase = phase,
      .sequence = &sequence_,
      .first_position = sequence_.committed_len,
      .num_rows = rows,
      .policy = policy,
      .parents = parents,
  };
  tree_.parents.resize(plan_.gamma);
  tree_.make_chain(rows - 1);
  for (size_t row = 1; row < parents.size(); ++row) tree_.parents[row - 1] = parents[row] - 1;
  std::vector<double> times, selects;
  PassCost cost;
  for (int i = 0; i < repeats + 2; ++i) {  // two warm-up passes
    const BackendCounters before = parts_.backend->counters();
    const auto start = Clock::now();
    parts_.pass->begin(ids, std::span(&segment, 1));
    model.forward(*parts_.pass, hidden,
        phase == Segment::Phase::Draft ? std::span<const uint8_t>(plan_.proposing.skip_layers) : std::span<const uint8_t>{});
    model.logits(*parts_.backend, hidden, rows_.logits(0, rows));
    rows_.sample(sequence_, tree_, parents, 0, AcceptanceRule::Reads::Choices);
    HUNCH_CHECK(parts_.backend->synchronize().ok());
    const double ms = ms_since(start), select = parts_.pass->take_select_ms();
    if (i < 2) continue;
    times.push_back(ms);
    selects.push_back(select);
    const BackendCounters& after = parts_.backend->counters();
    cost.bytes = {after.weight_bytes - before.weight_bytes, after.kv_bytes - before.kv_bytes,
        after.score_bytes - before.score_bytes, after.gather_bytes - before.gather_bytes,
        after.experts_read - before.experts_read};
  }
  cost.ms = median(times);
  cost.select_ms = median(selects);
  return cost;
}

PassCost DepthBench::verify(int rows, int repeats, bool policy) {
  HUNCH_CHECK(rows <= plan_.gamma + 1);
  if (policy) draft(1);  // leaves the log-sum-exps that weights are taken by
  return time(repeats, Segment::Phase::Verify, rows, policy ? policy_.get() : nullptr, *parts_.model);
}

PassCost DepthBench::verify(const StaticTree& shape, int repeats) {
  HUNCH_CHECK(shape.size() <= plan_.gamma);
  std::vector<int32_t> parents{-1};
  for (int node = 0; node < shape.size(); ++node) parents.push_back(shape.node(node).parent + 1);
  return time(repeats, Segment::Phase::Verify, shape.size() + 1, nullptr, *parts_.model, parents);
}

double streaming_read_ceiling(int threads, size_t bytes, int repeats) {
  bytes = bytes / (size_t(threads) * 4096) * (size_t(threads) * 4096);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 0;
  madvise(memory, bytes, MADV_HUGEPAGE);
  std::memset(memory, 1, bytes);
  const size_t part = bytes / threads;
  std::vector<double> rates;
  std::vector<uint64_t> sums(size_t(threads) * 8);
  for (int repeat = 0; repeat < repeats; ++repeat) {
    const auto start = Clock::now();
    std::vector<std::thread> workers;
    for (int t = 0; t < threads; ++t)
      workers.emplace_back([&, t] {
        const auto* words = reinterpret_cast<const uint64_t*>(static_cast<const char*>(memory) + t * part);
        uint64_t sum[8] = {};  // independent sums, so that loads and not additions are the limit
        for (size_t i = 0; i + 8 <= part / 8; i += 8)
          for (int lane = 0; lane < 8; ++lane) sum[lane] += words[i + lane];
        for (int lane = 0; lane < 8; ++lane) sums[t * 8 + lane] += sum[lane];
      });
    for (std::thread& worker : workers) worker.join();
    rates.push_back(double(bytes) / (ms_since(start) * 1e-3));
  }
  // The sum is used so that the loads stay.
  volatile uint64_t sink = sums[0];
  (void)sink;
  munmap(memory, bytes);
  return median(rates);
}

}
