// See cpu_backend.h: the ops forward to their launchers and keep the counters.
#include "backend/cpu/cpu_backend.h"

#include <fmt/format.h>

#include "backend/cpu/bounds.h"
#include "backend/cpu/gather.h"
#include "backend/cpu/rows.h"
#include "backend/cpu/top_k.h"

namespace hunch {

Result<std::unique_ptr<Backend>> CpuBackend::make(const Setup& setup) {
  if (setup.threads < 0 || setup.threads > 1024)
    return usage_error(fmt::format("{} threads: give 1 to 1024, or 0 for all cores that this process may use", setup.threads));
  HUNCH_TRY(const KernelTable* kernels, choose_kernels(setup.isa));
  return std::unique_ptr<Backend>(std::make_unique<CpuBackend>(*kernels, setup.threads ? setup.threads : usable_cores()));
}

CpuBackend::CpuBackend(const KernelTable& kernels, int threads)
    : kernels_(kernels),
      threads_(threads),
      matmul_(threads_, kernels.matmul),
      experts_(threads_, matmul_, kernels.rows),
      attention_(threads_, kernels.attention),
      nsa_(threads_, kernels.nsa, kernels.attention),
      sampler_(threads_, kernels.rows),
      log_probs_(threads_, kernels.rows) {}

std::string CpuBackend::description() const {
  return fmt::format("cpu ({}, {} thread{})", kernels_.isa, threads_.count(), threads_.count() == 1 ? "" : "s");
}

DType CpuBackend::default_kv_dtype() const { return kernels_.attention.prefers_bf16 ? DType::BF16 : DType::F16; }

Buffer CpuBackend::allocate(size_t bytes, Memory) { return allocate_aligned(bytes); }

std::unique_ptr<Weight> CpuBackend::load_weight(const Tensor& matrix) { return matmul_.load_weight(matrix); }

size_t CpuBackend::kv_page_bytes(const KvGeometry& geometry) const { return CpuKvStore::page_bytes(geometry); }

std::unique_ptr<KvStore> CpuBackend::make_kv_store(const KvGeometry& geometry, int64_t num_pages) {
  return CpuKvStore::make(geometry, num_pages);
}

void CpuBackend::matmul(const MatmulArgs& args) { counters_.weight_bytes += matmul_.matmul(args); }

void CpuBackend::embed(const EmbedArgs& args) { matmul_.embed(args); }

void CpuBackend::norm(const NormArgs& args) { norm_rows(threads_, kernels_.rows, args); }

void CpuBackend::gate(const GateArgs& args) {
  if (args.sigmoid || args.accumulate) return ReferenceBackend::gate(args);  // small rows of drafters
  gate_rows(threads_, kernels_.rows, args);
}

void CpuBackend::rope_angles(const RopeAnglesArgs& args) { rope_angle_rows(threads_, args); }

void CpuBackend::rope(const RopeArgs& args) { rope_rows(threads_, kernels_.rows, args); }

void CpuBackend::store_kv(const StoreKvArgs& args) { attention_.store_kv(args); }

void CpuBackend::move_kv(const MoveKvArgs& args) {
  auto& store = static_cast<CpuKvStore&>(*args.kv.store);
  for (size_t i = 0; i < args.from.size(); ++i)
    if (args.from[i] != args.to[i]) store.move(args.kv.pages, args.from[i], args.to[i]);
}

// `from` does not descend, so nothing needs to be put aside: what moves down goes first, in order, then what moves up, backwards.
void CpuBackend::shuffle_kv(const ShuffleKvArgs& args) {
  auto& store = static_cast<CpuKvStore&>(*args.kv.store);
  int64_t first = args.first_entry;
  for (const int32_t length : args.lengths) {
    HUNCH_CHECK(args.from.extent[0] <= length);
    for (int64_t i = 0; i < args.from.extent[0]; ++i)
      if (args.from(i) > i) store.move(args.kv.pages, first + args.from(i), first + i);
    for (int64_t i = args.from.extent[0]; i-- > 0;)
      if (args.from(i) < i) store.move(args.kv.pages, first + args.from(i), first + i);
    first += length;
  }
}

void CpuBackend::gather_kv(const GatherKvArgs& args) {
  counters_.gather_bytes += hunch::gather_kv(threads_, kernels_.gather, args);
}

void CpuBackend::page_bounds(const PageBoundsArgs& args) {
  counters_.kv_bytes += hunch::page_bounds(threads_, kernels_.bounds, args);
}

void CpuBackend::attention(const AttentionArgs& args) {
  counters_.kv_bytes += attention_.attention(args);
  for (const AttentionRun& run : args.runs) counters_.score_bytes += bytes_of(run.scores);
}

void CpuBackend::compress_kv(const CompressKvArgs& args) { counters_.kv_bytes += nsa_.compress(args); }

void CpuBackend::nsa_attention(const NsaAttentionArgs& args) { counters_.kv_bytes += nsa_.attention(args); }

void CpuBackend::score_keys(const ScoreKeysArgs& args) {
  counters_.kv_bytes += attention_.score_keys(args);
  counters_.score_bytes += bytes_of(args.scores);
}

void CpuBackend::top_k(const TopKArgs& args) {
  if (!args.scores.data) return ReferenceBackend::top_k(args);
  hunch::top_k(threads_, kernels_.top_k, args);
  counters_.score_bytes += size_t(args.scores.extent[0]) * args.n * sizeof(float);
}

void CpuBackend::sample(const SampleArgs& args) { sampler_.sample(args); }

void CpuBackend::log_probs(const LogProbsArgs& args) { log_probs_.log_probs(args); }

void CpuBackend::experts(const ExpertsArgs& args) {
  const CpuExperts::Read read = experts_.experts(args);
  counters_.weight_bytes += read.bytes;
  counters_.experts_read += read.experts;
}

static const Register<Backend> cpu{"cpu", "vector kernels chosen for this machine, several threads", CpuBackend::make};

}
