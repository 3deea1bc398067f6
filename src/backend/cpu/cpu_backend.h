// CpuBackend: every op for x86-64 and portable CPUs, on a pool of threads, with kernels chosen for the instruction set at run
// time. Registered as `cpu`. Results do not depend on the number of threads; they may differ between instruction sets.
#pragma once

#include "backend/cpu/attention.h"
#include "backend/cpu/experts.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/log_probs.h"
#include "backend/cpu/matmul.h"
#include "backend/cpu/nsa.h"
#include "backend/cpu/sampler.h"
#include "backend/cpu/threads.h"
#include "backend/reference/reference_backend.h"

namespace hunch {

class CpuBackend final : public ReferenceBackend {
 public:
  // An error if setup.isa is unknown or this machine lacks it, or setup.threads is negative.
  static Result<std::unique_ptr<Backend>> make(const Setup& setup);
  CpuBackend(const KernelTable& kernels, int threads);

  std::string description() const override;
  int threads() const override { return threads_.count(); }
  DType default_kv_dtype() const override;

  Buffer allocate(size_t bytes, Memory = Memory::Device) override;
  std::unique_ptr<Weight> load_weight(const Tensor& matrix) override;
  size_t kv_page_bytes(const KvGeometry&) const override;
  std::unique_ptr<KvStore> make_kv_store(const KvGeometry&, int64_t num_pages) override;

  void matmul(const MatmulArgs&) override;
  void embed(const EmbedArgs&) override;
  void norm(const NormArgs&) override;
  void gate(const GateArgs&) override;
  void rope_angles(const RopeAnglesArgs&) override;
  void rope(const RopeArgs&) override;
  void store_kv(const StoreKvArgs&) override;
  void gather_kv(const GatherKvArgs&) override;
  void move_kv(const MoveKvArgs&) override;
  void shuffle_kv(const ShuffleKvArgs&) override;
  void page_bounds(const PageBoundsArgs&) override;
  void attention(const AttentionArgs&) override;
  void score_keys(const ScoreKeysArgs&) override;
  void top_k(const TopKArgs&) override;
  void sample(const SampleArgs&) override;
  void log_probs(const LogProbsArgs&) override;
  void experts(const ExpertsArgs&) override;
  void compress_kv(const CompressKvArgs&) override;
  void nsa_attention(const NsaAttentionArgs&) override;

 private:
  const KernelTable& kernels_;
  Threads threads_;
  CpuMatmul matmul_;
  CpuExperts experts_;
  CpuAttention attention_;
  CpuNsa nsa_;
  CpuSampler sampler_;
  CpuLogProbs log_probs_;
};

}
