// INTERFACE 1: a backend owns memory and says how one op runs. `reference` is the plain definition of every op; `cpu` and others
// inherit it and override. Ops run in call order; arguments are views of the backend's memory. Contracts stand in backend/ops/.
#pragma once

#include <functional>

#include "backend/ops/attention.h"
#include "backend/ops/copy.h"
#include "backend/ops/experts.h"
#include "backend/ops/kv.h"
#include "backend/ops/log_probs.h"
#include "backend/ops/matmul.h"
#include "backend/ops/norm.h"
#include "backend/ops/nsa.h"
#include "backend/ops/rope.h"
#include "backend/ops/sample.h"
#include "backend/ops/thin.h"
#include "backend/ops/top_k.h"
#include "backend/ops/tree.h"
#include "base/registry.h"
#include "base/result.h"
#include "checkpoint/checkpoint.h"
#include "tensor/buffer.h"

namespace hunch {

// Bytes that ops asked memory for, counted where they read (a tile used by many rows counts once). Monotonic. Scores count once
// where attention writes them and once where top-k reads them; a second look at K counts as KV.
struct BackendCounters {
  uint64_t weight_bytes = 0, kv_bytes = 0, score_bytes = 0, gather_bytes = 0;
  uint64_t experts_read = 0;  // distinct experts of every layer and pass
  // Devices: kernels run; started one by one; graphs started; times that the host waited, and how long.
  uint64_t kernels = 0, kernel_launches = 0, graph_launches = 0, waits = 0, waited_ns = 0;
};

// Who touches memory. Ops run in call order, on a device some time after the call; what the host wrote to shared memory must stay
// until synchronize(), what ops wrote there may be read after it. On a CPU all memory is host memory and nothing is late.
enum class Memory : uint8_t {
  Device,  // ops only
  Spare,   // ops only; what requests bring along: from elsewhere where the device is full
  Shared,  // ops and host: tokens, probabilities, small results
};

// A kernel alone, for `hunch bench kernels`: what it must move and multiply at least, and how long it takes.
struct KernelRow {
  std::string name;  // "attention: 8 rows with scores, 4 x 131072"
  double bytes = 0, flops = 0, ms = 0;
  std::string note;
};

struct KvGeometry {
  DType dtype = DType::BF16;
  int layers = 0, kv_heads = 0, head_dim = 0;
  std::span<const KvScale> scales{};  // FP8: [layer], powers of two; empty: 1. Read when a store is made
};

class Backend {
 public:
  struct Setup {
    int threads = 0;  // 0: one per core this process may use
    std::string isa;  // cpu: portable, avx2, avx512, avx512_vnni, avx512_bf16; empty: the best this machine has
  };
  virtual ~Backend() = default;

  virtual std::string description() const = 0;  // "cpu (avx512_bf16, 2 threads)"
  virtual int threads() const = 0;
  virtual DType default_kv_dtype() const = 0;          // of 16 bits: what the machine multiplies soonest
  virtual bool keeps_kv(DType) const { return true; }  // of those of ops/kv.h

  // Aligned to 64; at start-up and admission only.
  virtual Buffer allocate(size_t bytes, Memory = Memory::Device) = 0;
  // Host values as memory that ops read (norm weights, biases, frequencies).
  virtual Buffer constant(std::span<const float> values) = 0;
  Buffer constant_ids(std::span<const int32_t> ids);
  // True where ops run after the call: whoever reads results on the host calls synchronize() before. An error there means that
  // ops since the last call failed; the device is lost then, and every later call returns the error again.
  virtual bool asynchronous() const { return false; }
  virtual Status synchronize() { return {}; }
  virtual void start() {}  // all that was asked for, if it has not begun
  // Where ops run after the call: from when what was started so far is done until all is that the next synchronize() waits for.
  virtual void mark() {}
  virtual double since_mark_ms() const { return 0; }  // after that synchronize(); 0: nothing was marked, or it is not known
  // The device waits for a long list that comes next, of so many sequences: its beginning may be started while the rest is
  // listed.
  virtual void hurry(int64_t) {}
  // True where attention reads selected entries where they lie (AttentionRun::index); else policies copy them together once.
  virtual bool selects_in_place() const { return false; }
  virtual size_t memory_bytes() const = 0;                              // that weights and KV may take
  virtual size_t total_memory_bytes() const { return memory_bytes(); }  // what is taken counts too
  // The tensor in this backend's form; nullptr: no memory for it. Its file may be unmapped afterwards if nothing is borrowed.
  virtual std::unique_ptr<Weight> load_weight(const Tensor& matrix) = 0;
  // A matrix of seeded random values of a spread that keeps activations finite; the same seed gives the same values on one
  // backend.
  virtual std::unique_ptr<Weight> random_weight(DType, int64_t out_dim, int64_t in_dim, uint64_t seed) = 0;
  virtual size_t kv_page_bytes(const KvGeometry&) const = 0;
  // nullptr if the memory cannot be had.
  virtual std::unique_ptr<KvStore> make_kv_store(const KvGeometry&, int64_t num_pages) = 0;

  virtual void matmul(const MatmulArgs&) = 0;
  virtual void feed_forward(const FeedForwardArgs&);
  virtual void embed(const EmbedArgs&) = 0;
  virtual void norm(const NormArgs&) = 0;
  virtual void gate(const GateArgs&) = 0;
  virtual void rope_angles(const RopeAnglesArgs&) = 0;
  virtual void rope(const RopeArgs&) = 0;
  virtual void ready_heads(const ReadyHeadsArgs&);
  virtual void store_kv(const StoreKvArgs&) = 0;
  virtual void gather_kv(const GatherKvArgs&) = 0;
  virtual void move_kv(const MoveKvArgs&) = 0;
  virtual void shuffle_kv(const ShuffleKvArgs&) = 0;
  virtual void page_bounds(const PageBoundsArgs&) = 0;
  virtual void attention(const AttentionArgs&) = 0;
  virtual void score_keys(const ScoreKeysArgs&) = 0;
  virtual void top_k(const TopKArgs&) = 0;
  virtual void reduce_scores(const ReduceScoresArgs&) = 0;
  virtual void split_signs(const SplitSignsArgs&) = 0;
  virtual void copy_rows(const CopyRowsArgs&) = 0;
  virtual void copy_tokens(const CopyTokensArgs&) = 0;
  virtual void scatter_columns(const ScatterColumnsArgs&) = 0;
  virtual void sample(const SampleArgs&) = 0;
  virtual void weigh_drafts(std::span<const WeighDraftsArgs>) = 0;
  virtual void log_probs(const LogProbsArgs&) = 0;
  virtual void grow_tree(const GrowTreeArgs&) = 0;
  virtual void choose_nodes(const ChooseNodesArgs&) = 0;
  // Mixtures of experts; false: the two ops are not to be called, and models that need them are refused when they are loaded.
  virtual bool has_experts() const { return false; }
  virtual void route(const RouteArgs&) { HUNCH_CHECK(has_experts()); }
  virtual void experts(const ExpertsArgs&) { HUNCH_CHECK(has_experts()); }
  virtual void thin_channels(const ThinChannelsArgs&) = 0;
  virtual void thin_experts(const ThinExpertsArgs&) { HUNCH_CHECK(has_experts()); }
  // Natively trained sparse attention; false: likewise.
  virtual bool has_nsa() const { return false; }
  virtual bool nsa_reads(DType) const { return true; }  // of a store of that type
  virtual void compress_kv(const CompressKvArgs&) { HUNCH_CHECK(has_nsa()); }
  virtual void nsa_attention(const NsaAttentionArgs&) { HUNCH_CHECK(has_nsa()); }

  // What a model's forward pass calls for and the ops of this backend do not do, for a message ("attention sinks"); empty:
  // nothing.
  virtual std::string lacks(const Checkpoint&) const { return {}; }
  // Tokens of a context of such a model that its ops can read.
  virtual int64_t longest_context(const ModelShape&) const { return INT64_MAX; }

  // Ops of the body are one unit of work: a device replays the same sequence of ops as one graph. Nothing in it waits.
  virtual void replay(const std::function<void()>& body) { body(); }
  // `hunch bench kernels`: kernels whose group's name holds `filter`; none on backends that have no such list.
  virtual std::vector<KernelRow> bench_kernels(const std::string& filter) {
    (void)filter;
    return {};
  }

  const BackendCounters& counters() const { return counters_; }

 protected:
  static size_t bytes_of(const ScoreArgs& scores) {
    return scores.metric == ScoreMetric::None ? 0 : size_t(scores.out.extent[0] * scores.count()) * sizeof(float);
  }
  BackendCounters counters_;
};

}
