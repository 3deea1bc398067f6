// CudaBackend: every op on one GPU. Ops append to a list of commands (commands.h); synchronize() runs it and waits. Registered as
// `cuda`. Not thread-safe: one engine thread calls it, as all backends.
//
// Choices of entries (top_k), stores, copies and samples come one call per sequence and nothing needs them at once: calls of a
// kind are kept and run together, in order, before the next op of another kind; choices for all layers of a pass in one launch.
#pragma once

#include "backend/backend.h"
#include "backend/cuda/attention.h"
#include "backend/cuda/commands.h"
#include "backend/cuda/experts.h"
#include "backend/cuda/host_ops.h"
#include "backend/cuda/nsa.h"
#include "backend/cuda/ready.h"
#include "backend/cuda/rules.h"

namespace hunch {

class CudaBackend final : public Backend {
 public:
  // Errors: no device, a driver that does not fit, a device that this build holds no code for, no memory.
  static Result<std::unique_ptr<Backend>> make(const Setup& setup);
  ~CudaBackend() override;

  std::string description() const override;
  int threads() const override { return 1; }
  DType default_kv_dtype() const override { return DType::BF16; }

#include "backend/every_op.inc"
  size_t total_memory_bytes() const override;
  bool asynchronous() const override { return true; }
  Status synchronize() override;
  void start() override { commands_->submit(); }
  void mark() override { commands_->mark(); }
  void hurry(int64_t sequences) override { commands_->hurry(sequences); }
  double since_mark_ms() const override { return commands_->since_mark_ms(); }
  bool selects_in_place() const override { return true; }

  void feed_forward(const FeedForwardArgs&) override;
  void ready_heads(const ReadyHeadsArgs&) override;
  std::string lacks(const Checkpoint&) const override;
  int64_t longest_context(const ModelShape&) const override;
  bool has_nsa() const override { return is_hopper(); }
  bool keeps_kv(DType type) const override { return type != DType::I16; }
  bool nsa_reads(DType kv) const override { return kv == DType::BF16; }
  void thin_channels(const ThinChannelsArgs&) override;
  void thin_experts(const ThinExpertsArgs&) override;

  void replay(const std::function<void()>& body) override;
  std::vector<KernelRow> bench_kernels(const std::string& filter) override;

 private:
  explicit CudaBackend(std::unique_ptr<Commands> commands) : commands_(std::move(commands)) {}
  // The list, with what was kept and must come before any other op.
  Commands& next_op();
  template <class Touches>
  Commands& next_op_beside(Touches);
  void keep_sample(const SampleArgs& args);
  void run_choices();
  bool awaited(const View<float, 2>& scores) const;
  void submit();
  void count();

  std::unique_ptr<Commands> commands_;
  CudaAttention attention_;
  CudaNsa nsa_;
  HostOps host_;
  uint64_t chosen_bytes_ = 0;  // scores that choices read
  ExpertTables expert_tables_;
  Buffer experts_read_, experts_seen_;                       // ExpertsRead: device memory; what the host sees of it
  uint64_t experts_bytes_ = 0;                               // of experts_seen_ that counters have
  std::vector<TopKArgs> choices_;                            // asked for, not yet appended
  const float *kept_first_ = nullptr, *kept_end_ = nullptr;  // around all scores that they read
  std::optional<ReadyHeadsArgs> heads_;
  CudaReady ready_;
  std::vector<StoreKvArgs> stores_;
  std::vector<CopyRowsArgs> copies_;
  std::vector<CopyTokensArgs> token_copies_;
  std::vector<SampleArgs> samples_;
  std::vector<int32_t> sample_positions_;  // of samples_, copied: callers use theirs again
  // Sampling with rules that only the host has (penalties, bans): logits go there and back.
  RuledRows ruled_;  // for some of samples_
};

}
