// See cuda_backend.h: the ops forward to their kernels and keep the counters.
#include "backend/cuda/cuda_backend.h"

#include <fmt/format.h>

#include <cstring>

#include "backend/cuda/experts.h"
#include "backend/cuda/kernel_bench.h"
#include "backend/cuda/kv_ops.h"
#include "backend/cuda/kv_store.h"
#include "backend/cuda/log_probs.h"
#include "backend/cuda/matmul.h"
#include "backend/cuda/rows.h"
#include "backend/cuda/sample.h"
#include "backend/cuda/small.h"
#include "backend/cuda/spare_memory.h"
#include "backend/cuda/thin.h"
#include "backend/cuda/top_k.h"
#include "backend/cuda/tree.h"
#include "backend/cuda/weigh.h"
#include "backend/cuda/weights.h"

namespace hunch {
namespace {

constexpr size_t kMostKept = 4096;  // calls of one kind

// Memory is planned before it is taken, so this is a plan that was wrong by little: say what was wanted, and end.
[[noreturn]] void out_of_memory(size_t bytes, cudaError_t code) {
  size_t free = 0, total = 0;
  (void)cudaMemGetInfo(&free, &total);
  fmt::print(stderr,
      "hunch: the GPU has no {:.1f} MiB left ({:.1f} of {:.1f} GiB are free; {}): lower -c, --max-num-seqs or --kv-memory, "
      "or end what else runs on it\n",
      double(bytes) / (1 << 20), double(free) / (1 << 30), double(total) / (1 << 30), cudaGetErrorString(code));
  std::exit(1);
}

}

Result<std::unique_ptr<Backend>> CudaBackend::make(const Setup& setup) {
  if (!setup.isa.empty()) return usage_error("--isa chooses instructions of the CPU; leave it out with --device cuda");
  int devices = 0;
  if (const auto code = cudaGetDeviceCount(&devices); code != cudaSuccess || devices == 0) {
    std::string why = code == cudaSuccess || code == cudaErrorNoDevice ? "none was found" : cudaGetErrorString(code);
    int driver = 0;
    if (code == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0)
      why += fmt::format(" (the driver is for CUDA {}.{})", driver / 1000, driver % 1000 / 10);
    return Error{
        fmt::format("no usable NVIDIA GPU: {}; use --device cpu, or install a driver for CUDA {}", why, CUDART_VERSION / 1000)};
  }
  if (const auto code = cudaSetDevice(0); code != cudaSuccess) return cuda_error(code, "opening the first GPU");
  const DeviceFacts& facts = device_facts();
  if (facts.major < 8)
    return Error{fmt::format("the GPU {} has compute capability {}.{}; hunch needs 8.0 (Ampere) or newer: use --device cpu",
        facts.name, facts.major, facts.minor)};
  const cudaError_t code = look_for_code();
  if (code == cudaErrorNoKernelImageForDevice || code == cudaErrorInvalidDeviceFunction)
    return Error{
        fmt::format("the GPU {} has compute capability {}.{}, for which this build holds no code: configure with "
                    "-DHUNCH_CUDA_ARCHS=\"90a;{}{}\" and build again, or use --device cpu",
            facts.name, facts.major, facts.minor, facts.major, facts.minor)};
  if (code != cudaSuccess) return cuda_error(code, "loading the kernels");
  HUNCH_TRY(auto commands, Commands::make());
  return std::unique_ptr<Backend>(new CudaBackend(std::move(commands)));
}

CudaBackend::~CudaBackend() { (void)commands_->wait(); }

std::string CudaBackend::description() const {
  const DeviceFacts& facts = device_facts();
  return fmt::format("cuda ({}, {} SMs, {:.0f} GiB)", facts.name, facts.num_sms, double(facts.memory) / (1 << 30));
}

Buffer CudaBackend::allocate(size_t bytes, Memory where) {
  bytes = std::max<size_t>(64, (bytes + 63) / 64 * 64);
  if (where == Memory::Spare || where == Memory::Shared) {
    Buffer taken = where == Memory::Spare ? spare_memory(bytes) : pinned_memory(bytes);
    if (!taken) out_of_memory(bytes, cudaErrorMemoryAllocation);
    return taken;
  }
  void* data = nullptr;
  if (const auto code = cudaMalloc(&data, bytes); code != cudaSuccess) out_of_memory(bytes, code);
  return Buffer(data, bytes, [](void* memory, size_t) { (void)cudaFree(memory); });
}

Buffer CudaBackend::constant(std::span<const float> values) {
  Buffer buffer = allocate(values.size_bytes());
  HUNCH_CUDA_CHECK(copy_to_device(buffer.data(), values.data(), values.size_bytes()));
  return buffer;
}

size_t CudaBackend::memory_bytes() const {
  size_t free = 0, total = 0;
  HUNCH_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return free;
}

size_t CudaBackend::total_memory_bytes() const {
  size_t free = 0, total = 0;
  HUNCH_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return total;
}

std::unique_ptr<Weight> CudaBackend::load_weight(const Tensor& matrix) { return load_cuda_weight(matrix); }

std::unique_ptr<Weight> CudaBackend::random_weight(DType dtype, int64_t out_dim, int64_t in_dim, uint64_t seed) {
  constexpr float kSpread = 0.02f;
  return hunch::random_weight(dtype, out_dim, in_dim, seed, kSpread);
}

size_t CudaBackend::kv_page_bytes(const KvGeometry& geometry) const { return CudaKvStore::page_bytes(geometry); }

std::unique_ptr<KvStore> CudaBackend::make_kv_store(const KvGeometry& geometry, int64_t num_pages) {
  return CudaKvStore::make(*commands_, geometry, num_pages);
}

// Whether two views may share an element.
template <class A, class B>
bool meet(const A& a, const B& b) {
  const auto end = [](const auto& x) {
    const auto* last = x.data;
    for (size_t i = 0; i < x.extent.size(); ++i) last += x.stride[i] * (x.extent[i] - 1);
    return last + 1;
  };
  return a.data < end(b) && b.data < end(a);
}

// Whether a copy reads or writes some of a view.
template <class Args, class V>
bool touches(const Args& copy, const V& view) {
  return meet(copy.to, view) || meet(copy.from, view);
}
// Whether a copy reads what one kept so far writes, or writes what that reads or writes.
template <class Args>
bool depends(const std::vector<Args>& kept, const Args& args) {
  return std::ranges::any_of(kept, [&](const Args& other) { return touches(other, args.to) || meet(args.from, other.to); });
}

Commands& CudaBackend::next_op() {
  commands_->begin_op();
  if (!token_copies_.empty()) enqueue_copy_tokens(*commands_, token_copies_);
  token_copies_.clear();
  if (heads_) {
    ready_.enqueue(*commands_, *heads_, stores_, copies_);
  } else {
    if (!stores_.empty()) enqueue_store_kv(*commands_, stores_);
    if (!copies_.empty()) enqueue_copy_rows(*commands_, copies_);
  }
  heads_.reset(), stores_.clear(), copies_.clear();
  if (!samples_.empty()) {
    size_t first = 0;
    for (SampleArgs& call : samples_) {
      call.positions.data = sample_positions_.data() + first;
      first += size_t(call.positions.extent[0]);
    }
    ruled_.enqueue(*commands_);
    enqueue_sample(*commands_, samples_);
    samples_.clear(), sample_positions_.clear();
  }
  return *commands_;
}

// The same before an op that has nothing to do with kept copies, so that they wait for a launch that they can share.
template <class Touches>
Commands& CudaBackend::next_op_beside(Touches touches) {
  const bool waits =
      heads_ || !stores_.empty() || !samples_.empty() || !token_copies_.empty() || std::ranges::any_of(copies_, touches);
  if (waits) return next_op();
  commands_->begin_op();
  return *commands_;
}

void CudaBackend::keep_sample(const SampleArgs& args) {
  if (heads_ || !stores_.empty() || !copies_.empty()) (void)next_op();
  samples_.push_back(args);
  for (int64_t row = 0; row < args.logits.extent[0]; ++row) sample_positions_.push_back(args.positions(row));
}

// Scores that a kept choice still has to read. Policies keep theirs layer behind layer, so that one comparison with all of them
// mostly does.
bool CudaBackend::awaited(const View<float, 2>& scores) const {
  if (!scores.data) return false;
  const float* end = scores.data + scores.stride[0] * (scores.extent[0] - 1) + scores.extent[1];
  if (choices_.empty() || scores.data >= kept_end_ || end <= kept_first_) return false;
  return std::ranges::any_of(choices_, [&](const TopKArgs& choice) {
    const float* last = choice.scores.data + choice.scores.stride[0] * (choice.scores.extent[0] - 1) + choice.n;
    return scores.data < last && choice.scores.data < end;
  });
}

void CudaBackend::run_choices() {
  if (!choices_.empty()) enqueue_top_k(next_op(), choices_);
  choices_.clear();
}

void CudaBackend::submit() {
  run_choices();
  next_op();
  commands_->submit();
  count();
}

void CudaBackend::count() {
  const Commands::Counters& c = commands_->counters();
  counters_.kernels = c.kernels, counters_.kernel_launches = c.launches, counters_.graph_launches = c.graph_launches,
  counters_.waits = c.waits, counters_.waited_ns = c.waited_ns;
  if (!experts_seen_.data()) return;
  const auto* seen = static_cast<const volatile ExpertsRead*>(experts_seen_.data());
  const uint64_t bytes = seen->bytes;
  counters_.experts_read = seen->experts;
  counters_.weight_bytes += bytes - experts_bytes_;
  experts_bytes_ = bytes;
}

Status CudaBackend::synchronize() {
  run_choices();
  next_op();
  const Status done = commands_->wait();
  count();
  return done;
}

void CudaBackend::replay(const std::function<void()>& body) {
  submit();
  body();
  submit();
}

void CudaBackend::matmul(const MatmulArgs& args) {
  const auto concerned = [&](const CopyRowsArgs& copy) {
    return meet(copy.to, args.x) ||
        std::ranges::any_of(args.products, [&](const Product& product) { return touches(copy, product.out); });
  };
  enqueue_matmul(next_op_beside(concerned), args);
  for (const Product& product : args.products) counters_.weight_bytes += product.weight->bytes;
}

void CudaBackend::feed_forward(const FeedForwardArgs& args) {
  const auto concerned = [&](const CopyRowsArgs& copy) {
    return meet(copy.to, args.x) || touches(copy, args.out) || touches(copy, args.gate_out);
  };
  if (!enqueue_feed_forward(next_op_beside(concerned), args)) return Backend::feed_forward(args);
  counters_.weight_bytes += args.gate->bytes + args.up->bytes + args.down->bytes;
}

void CudaBackend::embed(const EmbedArgs& args) { enqueue_embed(next_op(), args); }

void CudaBackend::norm(const NormArgs& args) {
  const auto concerned = [&](const CopyRowsArgs& copy) { return meet(copy.to, args.x) || touches(copy, args.out); };
  enqueue_norm(next_op_beside(concerned), args);
}

void CudaBackend::gate(const GateArgs& args) {
  const auto concerned = [&](const CopyRowsArgs& copy) {
    return meet(copy.to, args.gate) || meet(copy.to, args.up) || touches(copy, args.out);
  };
  enqueue_gate(next_op_beside(concerned), args);
}

void CudaBackend::rope_angles(const RopeAnglesArgs& args) { enqueue_rope_angles(next_op(), args); }

void CudaBackend::rope(const RopeArgs& args) {  // of heads without keys
  ready_heads({.q = args.x,
      .k = View<float, 3>(args.x.data, args.x.extent[0], 0, args.x.extent[2]),
      .cos_sin = args.cos_sin,
      .pairs = args.pairs});
}

// Heads, the rows of them that caches get and copies kept before or behind go in one launch, in any order: so none of these
// copies has to do with the rest.
void CudaBackend::ready_heads(const ReadyHeadsArgs& args) {
  if (args.q.extent[0] == 0) return;
  const auto concerned = [&](const CopyRowsArgs& copy) { return touches(copy, args.q) || touches(copy, args.k); };
  (void)next_op_beside(concerned);
  heads_ = args;
}

void CudaBackend::store_kv(const StoreKvArgs& args) {
  const bool apart = heads_ &&
      std::ranges::none_of(copies_, [&](const CopyRowsArgs& copy) { return meet(copy.to, args.k) || meet(copy.to, args.v); });
  if (stores_.size() == kMostKept || (!apart && !copies_.empty()) || !samples_.empty()) (void)next_op();
  stores_.push_back(args);
}

void CudaBackend::gather_kv(const GatherKvArgs& args) {
  run_choices();
  enqueue_gather_kv(next_op(), args);
  const KvStore& store = *args.from.store;
  const int64_t entries = args.index.extent[1] + std::max<int64_t>(0, args.tail_last - args.tail_first);
  counters_.gather_bytes += size_t(entries * store.kv_heads) * 4 * kv_row_bytes(store.dtype, store.head_dim);
}

void CudaBackend::move_kv(const MoveKvArgs& args) { enqueue_move_kv(next_op(), args); }

void CudaBackend::shuffle_kv(const ShuffleKvArgs& args) { enqueue_shuffle_kv(next_op(), args); }

void CudaBackend::page_bounds(const PageBoundsArgs& args) { enqueue_page_bounds(next_op(), args); }

void CudaBackend::attention(const AttentionArgs& args) {
  for (const AttentionRun& run : args.runs)
    if (run.index.data || awaited(run.scores.out)) run_choices();
  attention_.enqueue(next_op(), args);
  counters_.kv_bytes = attention_.kv_bytes(), counters_.score_bytes = attention_.score_bytes() + chosen_bytes_;
}

void CudaBackend::score_keys(const ScoreKeysArgs& args) {
  if (awaited(args.scores.out)) run_choices();
  attention_.enqueue(next_op(), args);
  counters_.kv_bytes = attention_.kv_bytes(), counters_.score_bytes = attention_.score_bytes() + chosen_bytes_;
}

void CudaBackend::top_k(const TopKArgs& args) {
  if (!args.scores.data) return enqueue_ends(next_op(), args);
  chosen_bytes_ += size_t(args.scores.extent[0] * args.n) * sizeof(float);
  if (!is_hopper()) return host_.top_k(next_op(), args);
  const float* end = args.scores.data + args.scores.stride[0] * (args.scores.extent[0] - 1) + args.n;
  kept_first_ = choices_.empty() ? args.scores.data : std::min(kept_first_, args.scores.data);
  kept_end_ = choices_.empty() ? end : std::max(kept_end_, end);
  choices_.push_back(args);
}

void CudaBackend::reduce_scores(const ReduceScoresArgs& args) {
  if (awaited(args.out)) run_choices();
  enqueue_reduce_scores(next_op(), args);
}

void CudaBackend::split_signs(const SplitSignsArgs& args) { enqueue_split_signs(next_op(), args); }

// Of copies kept together none may read what another one writes.
void CudaBackend::copy_rows(const CopyRowsArgs& args) {
  const bool apart = heads_ && !touches(args, heads_->q) && !touches(args, heads_->k) &&
      std::ranges::none_of(stores_, [&](const StoreKvArgs& store) { return meet(args.to, store.k) || meet(args.to, store.v); });
  if (depends(copies_, args) || copies_.size() == kMostKept || (!apart && (heads_ || !stores_.empty())) || !samples_.empty())
    (void)next_op();
  copies_.push_back(args);
}

// Those of all sequences go together. An index may be gone when the next op comes.
void CudaBackend::copy_tokens(const CopyTokensArgs& args) {
  if (args.to.extent[0] == 0) return;
  const bool kept = heads_ || !stores_.empty() || !copies_.empty() || !samples_.empty();
  if (depends(token_copies_, args) || kept || token_copies_.size() == kMostKept) (void)next_op();
  token_copies_.push_back(args);
  if (!args.index.empty()) (void)next_op();
}

void CudaBackend::scatter_columns(const ScatterColumnsArgs& args) { enqueue_scatter_columns(next_op(), args); }

void CudaBackend::sample(const SampleArgs& args) {
  if (!is_hopper()) return host_.sample(next_op(), args);
  if (!args.state) return keep_sample(args);
  const bool depends = std::ranges::any_of(samples_, [&](const SampleArgs& other) { return meet(args.drafts, other.tokens); });
  if (depends || heads_ || !stores_.empty() || !copies_.empty() || !ruled_.has_room(args)) (void)next_op();
  keep_sample(ruled_.add(*commands_, args));
}

void CudaBackend::weigh_drafts(std::span<const WeighDraftsArgs> chains) { enqueue_weigh_drafts(next_op(), chains); }

void CudaBackend::log_probs(const LogProbsArgs& args) {
  if (is_hopper()) enqueue_log_probs(next_op(), args);
  else host_.log_probs(next_op(), args);
}

void CudaBackend::grow_tree(const GrowTreeArgs& args) { enqueue_grow_tree(next_op(), args); }

void CudaBackend::choose_nodes(const ChooseNodesArgs& args) { enqueue_choose_nodes(next_op(), args); }

std::string CudaBackend::lacks(const Checkpoint& checkpoint) const {
  const ModelShape& shape = checkpoint.shape();
  std::string out;
  const auto add = [&](bool asked, const char* what) {
    if (asked) out += fmt::format("{}{}", out.empty() ? "" : ", ", what);
  };
  add(shape.latent.used(), "latent attention (DeepSeek)");
  add(shape.heads > 64 * shape.kv_heads, "more than 64 query heads for a KV head");
  add(shape.head_dim % 4 != 0, "heads whose size is no multiple of 4");
  if (shape.nsa.used()) {
    const std::string lacking = nsa_lacks(shape.nsa, shape.heads, shape.kv_heads, shape.head_dim);
    add(!lacking.empty(), lacking.c_str());
  }
  return out;
}

int64_t CudaBackend::longest_context(const ModelShape& shape) const {
  return shape.nsa.used() ? nsa_longest_context(shape.nsa) : Backend::longest_context(shape);
}

void CudaBackend::compress_kv(const CompressKvArgs& args) { nsa_.compress(args); }

void CudaBackend::nsa_attention(const NsaAttentionArgs& args) { nsa_.enqueue(next_op(), args); }

void CudaBackend::route(const RouteArgs& args) { enqueue_route(next_op(), args); }

void CudaBackend::thin_channels(const ThinChannelsArgs& args) { enqueue_thin_channels(next_op(), args); }
void CudaBackend::thin_experts(const ThinExpertsArgs& args) { enqueue_thin_experts(next_op(), args); }

void CudaBackend::experts(const ExpertsArgs& args) {
  if (!experts_read_.data()) {
    constexpr ExpertsRead kNone;
    experts_read_ = allocate(sizeof kNone), experts_seen_ = allocate(sizeof kNone, Memory::Shared);
    HUNCH_CUDA_CHECK(copy_to_device(experts_read_.data(), &kNone, sizeof kNone));
    std::memcpy(experts_seen_.data(), &kNone, sizeof kNone);
  }
  enqueue_experts(next_op(), expert_tables_, args, static_cast<ExpertsRead*>(experts_read_.data()),
      static_cast<ExpertsRead*>(experts_seen_.data()));
}

std::vector<KernelRow> CudaBackend::bench_kernels(const std::string& filter) {
  std::vector<KernelRow> rows;
  const Ceilings ceilings = measure_ceilings();
  rows.push_back({.name = "ceiling: read", .bytes = ceilings.read_bytes, .ms = 1000});
  rows.push_back({.name = "ceiling: copy", .bytes = ceilings.copy_bytes, .ms = 1000});
  rows.push_back({.name = "ceiling: bf16 product", .flops = ceilings.bf16_flops, .ms = 1000});
  const auto add = [&](const char* group, std::vector<KernelRow> (*bench)(Commands&)) {
    if (std::strstr(group, filter.c_str()) == nullptr) return;
    for (KernelRow& row : bench(*commands_)) rows.push_back(std::move(row));
  };
  add("attention", bench_attention);
  add("products", bench_products);
  add("experts", bench_experts);
  add("top-k", bench_top_k);
  if (std::strcmp(filter.c_str(), "nsa") == 0) add("nsa", bench_nsa);  // a long table of its own
  return rows;
}

namespace {

const Register<Backend> cuda{"cuda", "one NVIDIA GPU", CudaBackend::make};

}

}
