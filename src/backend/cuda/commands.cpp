#include "backend/cuda/commands.h"

#include <fmt/format.h>

#include <chrono>

#include "backend/cuda/spare_memory.h"

namespace hunch {
namespace {

constexpr size_t kArgsBytes = size_t(2) << 20, kDataBytes = size_t(6) << 20;  // of one list
constexpr size_t kAlign = 64;
constexpr int kRing = 4;  // lists that may be on their way
constexpr size_t kMostGraphs = 256;
constexpr size_t kLeastWorkspace = size_t(64) << 20;

constexpr const char *kTakingScratch = "taking scratch memory", *kRecording = "recording a graph";

constexpr size_t aligned(size_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

void mix(uint64_t& hash, uint64_t value) {  // FNV's multiplication over words, then a shift so that high bits count
  hash = (hash ^ value) * 0x100000001b3ull;
  hash ^= hash >> 29;
}

}

Result<std::unique_ptr<Commands>> Commands::make() {
  std::unique_ptr<Commands> made(new Commands);
  Commands& c = *made;
  cudaError_t code = cudaSuccess;  // of the first call that fails
  const char* doing = "";
  const auto then = [&](const char* what, const auto& call) {
    if (code == cudaSuccess) code = call(), doing = what;
  };
  constexpr const char* kEvent = "making an event";
  then("starting on the device", [&] { return cudaStreamCreateWithFlags(&c.stream_, cudaStreamNonBlocking); });
  then("taking memory for the arguments of kernels", [&] { return cudaMalloc(&c.device_, kArgsBytes + kDataBytes); });
  for (cudaEvent_t* event : {&c.marked_, &c.done_}) then(kEvent, [&] { return cudaEventCreate(event); });
  c.ring_.resize(kRing);
  for (Staging& slot : c.ring_) {
    then("taking pinned host memory", [&] { return cudaMallocHost(&slot.host, kArgsBytes + kDataBytes); });
    then(kEvent, [&] { return cudaEventCreateWithFlags(&slot.copied, cudaEventDisableTiming); });
  }
  then(kTakingScratch, [&] { return cudaMalloc(&c.workspace_, kLeastWorkspace); });
  c.workspace_bytes_ = kLeastWorkspace;
  then(kTakingScratch, [&] { return cudaMalloc(&c.packed_, kPackedBytes); });
  then(kTakingScratch, [&] { return cudaMalloc(&c.ones_, kOnesBytes); });
  then("filling scratch memory", [&] { return cudaMemsetAsync(c.ones_, 0xff, kOnesBytes, c.stream_); });
  if (code != cudaSuccess) return cuda_error(code, doing);
  return made;
}

Commands::~Commands() {
  if (stream_) (void)cudaStreamSynchronize(stream_);
  for (auto& [shape, graph] : graphs_) drop(graph);
  for (Staging& slot : ring_) {
    if (slot.host) (void)cudaFreeHost(slot.host);
    if (slot.copied) (void)cudaEventDestroy(slot.copied);
  }
  for (cudaEvent_t event : {marked_, done_})
    if (event) (void)cudaEventDestroy(event);
  for (void* memory : outgrown_) (void)cudaFree(memory);
  if (workspace_) (void)cudaFree(workspace_);
  if (ones_) (void)cudaFree(ones_);
  if (packed_) (void)cudaFree(packed_);
  if (device_) (void)cudaFree(device_);
  if (stream_) (void)cudaStreamDestroy(stream_);
}

// The first failure decides; what follows it says nothing new.
bool Commands::good(cudaError_t code, const char* doing) {
  if (code != cudaSuccess && failed_ == cudaSuccess) failed_ = code, failed_doing_ = doing;
  if (code != cudaSuccess) (void)cudaGetLastError();  // else the next call that asks for it takes it for its own
  return failed_ == cudaSuccess;
}

// The buffer that this list's arguments go to; waits only where the host is kRing lists ahead of the copies.
Commands::Staging& Commands::staging() {
  Staging& slot = ring_[next_];
  if (!open_) {
    if (slot.in_flight) good(cudaEventSynchronize(slot.copied), "running a step");
    slot.in_flight = false;
    open_ = true;
  }
  return slot;
}

const void* Commands::add_data(const void* from, size_t bytes) {
  if (bytes == 0) return device_ + kArgsBytes;
  Uploaded& known = uploaded_[from];
  if (known.bytes == bytes && std::memcmp(known.host, from, bytes) == 0) return known.device;
  std::byte *host = staging().host + kArgsBytes + data_used_, *device = device_ + kArgsBytes + data_used_;
  if (data_used_ + aligned(bytes) <= kDataBytes) {
    data_used_ += aligned(bytes);
  } else {
    const Buffer& more = more_data_.emplace_back(pinned_memory(bytes));
    host = device = static_cast<std::byte*>(more.data());
    if (!more && !good(cudaErrorMemoryAllocation, kTakingScratch)) return device_;  // no kernel will be started any more
  }
  std::memcpy(host, from, bytes);
  known = {bytes, host, device};
  return device;
}

void Commands::add_launch(const void* kernel, const Grid& grid, const void* args, size_t bytes) {
  HUNCH_CHECK(grid.blocks.x > 0 && grid.blocks.y > 0 && grid.blocks.z > 0 && grid.threads > 0);
  args_used_ += aligned(bytes);
  HUNCH_CHECK(args_used_ <= kArgsBytes);
  const size_t offset = kArgsBytes - args_used_;
  std::memcpy(staging().host + offset, args, bytes);
  launches_.push_back({kernel, grid, offset});
  mix(kernels_, reinterpret_cast<uint64_t>(kernel));
  mix(kernels_, bytes);
  mix(shape_, kernels_);
  mix(shape_, uint64_t(grid.blocks.x) << 32 | grid.blocks.y);
  mix(shape_, uint64_t(grid.blocks.z) << 32 | grid.threads);
  mix(shape_, grid.shared_bytes);
  allow_shared(kernel, grid.shared_bytes);
  ++counters_.kernels;
}

// More than 48 KiB of shared memory, the kernel's own included, is asked for once per kernel.
void Commands::allow_shared(const void* kernel, size_t bytes) {
  const auto [entry, first] = allowed_.try_emplace(kernel, 0);
  size_t& allowed = entry->second;
  cudaFuncAttributes own{};
  if (first && good(cudaFuncGetAttributes(&own, kernel), "asking for shared memory"))
    allowed = (size_t(48) << 10) - own.sharedSizeBytes;
  if (bytes <= allowed) return;
  good(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)), "asking for shared memory");
  allowed = bytes;
}

void* Commands::workspace(size_t bytes) {
  if (bytes <= workspace_bytes_) return workspace_;
  void* larger = nullptr;
  if (failed_ != cudaSuccess || !good(cudaMalloc(&larger, bytes), kTakingScratch)) {
    wanted_bytes_ = bytes;
    return workspace_;  // too small, and no kernel will be started any more
  }
  outgrown_.push_back(workspace_);
  workspace_ = larger, workspace_bytes_ = bytes;
  return workspace_;
}

bool Commands::affords(size_t bytes) {
  if (bytes <= workspace_bytes_ || bytes >= refused_bytes_) return bytes <= workspace_bytes_;
  if (has_spare_memory(bytes)) return true;
  refused_bytes_ = bytes;
  return false;
}

Buffer Commands::take(size_t bytes) {
  Buffer taken;
  if (failed_ == cudaSuccess) taken = spare_memory(bytes);
  if (!taken) good(cudaErrorMemoryAllocation, kTakingScratch), wanted_bytes_ = bytes;
  return taken;
}

void Commands::begin_op() {
  bool early = early_ < 2 && long_ > early_ * kLongOfLayer;
  if (early) ++early_;
  if (hurries_ > 0 && launches_.size() >= hurries_) early = true, hurries_ *= growth_;
  if (early || args_used_ > kArgsBytes / 2 || data_used_ > kDataBytes / 2) submit();
}

Commands::Graph& Commands::graph_of(uint64_t key) {
  if (graphs_.size() >= kMostGraphs && !graphs_.contains(key)) {
    const auto oldest =
        std::ranges::min_element(graphs_, [](const auto& a, const auto& b) { return a.second.last_used < b.second.last_used; });
    drop(oldest->second);
    graphs_.erase(oldest);
  }
  Graph& graph = graphs_[key];
  graph.last_used = ++clock_;
  return graph;
}

// Into the stream; while that is recorded, the graph's nodes are noted as they come.
void Commands::run(std::span<const Launch> launches, Graph* recorded) {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  for (size_t i = 0; i < launches.size(); ++i) {
    const Launch& launch = launches[i];
    const void* args = device_ + launch.args;
    void* parameters[] = {&args};
    cudaLaunchConfig_t config{};
    config.gridDim = launch.grid.blocks;
    config.blockDim = dim3(launch.grid.threads);
    config.dynamicSmemBytes = launch.grid.shared_bytes;
    config.stream = stream_;
    config.attrs = &overlap;
    config.numAttrs = i > 0 && is_hopper() ? 1 : 0;  // the first one reads arguments that are being copied
    if (!good(cudaLaunchKernelExC(&config, launch.kernel, parameters), "starting a kernel")) return;
    if (!recorded) continue;
    cudaStreamCaptureStatus status{};
    const cudaGraphNode_t* last = nullptr;
    size_t count = 0;
    if (!good(cudaStreamGetCaptureInfo(stream_, &status, nullptr, nullptr, &last, nullptr, &count), kRecording)) return;
    HUNCH_CHECK(count == 1);
    recorded->nodes.push_back({*last, launch.grid});
  }
  if (!recorded) counters_.launches += launches.size();
}

void Commands::record() {
  for (const auto& [key, launches] : to_record_) {
    Graph& graph = graph_of(key);
    if (graph.exec || !good(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), kRecording)) continue;
    run(launches, &graph);
    if (good(cudaStreamEndCapture(stream_, &graph.recorded), kRecording))
      good(cudaGraphInstantiate(&graph.exec, graph.recorded, 0), "making a graph");
  }
  to_record_.clear();
}

bool Commands::fits(const Graph& graph) const {
  for (size_t i = 0; i < launches_.size(); ++i)
    if (launches_[i].grid != graph.nodes[i].grid) return false;
  return true;
}

void Commands::launch(Graph& graph) {
  if (failed_ == cudaSuccess) good(cudaGraphLaunch(graph.exec, stream_), "starting a graph");
  ++counters_.graph_launches;
}

// Gives nodes the grids that this list wants otherwise than the list before it.
void Commands::fit(Graph& graph) {
  for (size_t i = 0; i < launches_.size(); ++i) {
    const Launch& launch = launches_[i];
    Node& node = graph.nodes[i];
    if (launch.grid == node.grid) continue;
    const void* args = device_ + launch.args;
    void* parameters[] = {&args};
    cudaKernelNodeParams params{};
    params.func = const_cast<void*>(launch.kernel);
    params.gridDim = launch.grid.blocks, params.blockDim = dim3(launch.grid.threads);
    params.sharedMemBytes = unsigned(launch.grid.shared_bytes);
    params.kernelParams = parameters;
    if (!good(cudaGraphExecKernelNodeSetParams(graph.exec, node.node, &params), "changing a graph")) return;
    node.grid = launch.grid;
    ++counters_.refits;
  }
}

void Commands::submit() {
  if (launches_.empty()) {
    if (open_) open_ = false, data_used_ = 0, uploaded_.clear(), ++list_;
    return;
  }
  Staging& slot = staging();
  if (failed_ != cudaSuccess) return drop_list();
  constexpr const char* kCopying = "copying the arguments of a step";
  const size_t first = kArgsBytes - args_used_;
  good(cudaMemcpyAsync(device_ + first, slot.host + first, args_used_ + data_used_, cudaMemcpyHostToDevice, stream_), kCopying);
  if (!good(cudaEventRecord(slot.copied, stream_), kCopying)) return drop_list();
  slot.in_flight = true;

  Graph &own = graph_of(shape_), &any = graph_of(kernels_);
  if (!own.exec && any.exec && !fits(any) && ++own.seen == kOwnAt) to_record_.emplace_back(shape_, launches_);
  if (own.exec) {
    launch(own);
  } else if (any.exec) {
    fit(any);
    launch(any);
  } else {
    run(launches_, nullptr);
    if (++any.seen == kRecordAt) to_record_.emplace_back(kernels_, launches_);
  }
  drop_list();
  next_ = (next_ + 1) % ring_.size();
}

void Commands::drop_list() {
  launches_.clear(), uploaded_.clear();
  args_used_ = data_used_ = 0, shape_ = kernels_ = 0, unsettled_ = 0;
  open_ = false;
  ++list_;
}

void Commands::mark() { marking_ = good(cudaEventRecord(marked_, stream_), "taking the time"); }

Status Commands::wait() {
  submit();
  if (marking_) good(cudaEventRecord(done_, stream_), "taking the time");
  record();
  packed_rows_ = {};
  long_ = early_ = 0, hurries_ = 0;
  ++counters_.waits;
  const auto start = std::chrono::steady_clock::now();
  good(cudaStreamSynchronize(stream_), "running a step");
  counters_.waited_ns += uint64_t(std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
  if (failed_ != cudaSuccess) return failure();
  since_mark_ms_ = 0;
  if (std::exchange(marking_, false)) good(cudaEventElapsedTime(&since_mark_ms_, marked_, done_), "taking the time");
  for (void* memory : outgrown_) (void)cudaFree(memory);
  outgrown_.clear(), more_data_.clear();
  return {};
}

// Kernels count what they have done for those that follow, so a list that is lost ends them all, whatever the reason was.
Error Commands::failure() const {
  if (failed_doing_ != kTakingScratch)
    return cuda_error(failed_, fmt::format("{}; the device is not used any more by this process", failed_doing_));
  size_t free = 0, total = 0;
  (void)cudaMemGetInfo(&free, &total);
  return Error{
      fmt::format("the GPU has no {:.0f} MiB left for a step's scratch ({:.1f} of {:.1f} GiB are free): start again with a "
                  "lower -c, --max-num-batched-tokens or --kv-memory, or end what else runs on it",
          double(wanted_bytes_) / (1 << 20), double(free) / (1 << 30), double(total) / (1 << 30))};
}

void Commands::drop(Graph& graph) {
  if (graph.exec) (void)cudaGraphExecDestroy(graph.exec);
  if (graph.recorded) (void)cudaGraphDestroy(graph.recorded);
  graph = {};
}

}
