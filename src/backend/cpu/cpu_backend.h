// CpuBackend: every op for x86-64 and portable CPUs, on a pool of threads, with kernels chosen for the instruction set at run
// time. Registered as `cpu`. Results do not depend on the number of threads; they may differ between instruction sets.
#pragma once

#include "backend/cpu/attention.h"
#include "backend/cpu/experts.h"
#include "backend/cpu/kernels.h"
#include "backend/cpu/launchers.h"
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
  DType default_kv_dtype() const override { return kernels_.attention.preferred; }

  Buffer allocate(size_t bytes, Memory = Memory::Device) override { return allocate_aligned(bytes); }
  std::unique_ptr<Weight> load_weight(const Tensor& matrix) override { return matmul_.load_weight(matrix); }
  size_t kv_page_bytes(const KvGeometry& geometry) const override { return CpuKvStore::page_bytes(geometry); }
  std::unique_ptr<KvStore> make_kv_store(const KvGeometry& geometry, int64_t num_pages) override {
    return CpuKvStore::make(geometry, num_pages);
  }

  void matmul(const MatmulArgs& args) override { counters_.weight_bytes += matmul_.matmul(args); }
  void embed(const EmbedArgs& args) override { matmul_.embed(args); }
  void norm(const NormArgs& args) override { norm_rows(threads_, kernels_.rows, args); }
  void gate(const GateArgs& args) override {
    if (args.sigmoid || args.accumulate) return ReferenceBackend::gate(args);  // small rows of drafters
    gate_rows(threads_, kernels_.rows, args);
  }
  void rope_angles(const RopeAnglesArgs& args) override { rope_angle_rows(threads_, args); }
  void rope(const RopeArgs& args) override { rope_rows(threads_, kernels_.rows, args); }
  void store_kv(const StoreKvArgs& args) override { attention_.store_kv(args); }
  void gather_kv(const GatherKvArgs& args) override {
    counters_.gather_bytes += hunch::gather_kv(threads_, kernels_.gather, args);
  }
  void move_kv(const MoveKvArgs&) override;
  void shuffle_kv(const ShuffleKvArgs&) override;
  void page_bounds(const PageBoundsArgs& args) override {
    counters_.kv_bytes += hunch::page_bounds(threads_, kernels_.bounds, args);
  }
  void attention(const AttentionArgs& args) override {
    counters_.kv_bytes += attention_.attention(args);
    for (const AttentionRun& run : args.runs) counters_.score_bytes += bytes_of(run.scores);
  }
  void score_keys(const ScoreKeysArgs& args) override {
    counters_.kv_bytes += attention_.score_keys(args);
    counters_.score_bytes += bytes_of(args.scores);
  }
  void top_k(const TopKArgs& args) override {
    if (!args.scores.data) return ReferenceBackend::top_k(args);
    hunch::top_k(threads_, kernels_.top_k, args);
    counters_.score_bytes += size_t(args.scores.extent[0]) * args.n * sizeof(float);
  }
  void sample(const SampleArgs& args) override { sampler_.sample(args); }
  void log_probs(const LogProbsArgs& args) override { log_probs_.log_probs(args); }
  void experts(const ExpertsArgs& args) override {
    const CpuExperts::Read read = experts_.experts(args);
    counters_.weight_bytes += read.bytes;
    counters_.experts_read += read.experts;
  }
  void compress_kv(const CompressKvArgs& args) override { counters_.kv_bytes += nsa_.compress(args); }
  void nsa_attention(const NsaAttentionArgs& args) override { counters_.kv_bytes += nsa_.attention(args); }

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
