#include "backend/cuda/commands.h"

#include <algorithm>
#include <chrono>

namespace hunch {
namespace {

constexpr size_t kArgsBytes = size_t(2) << 20, kDataBytes = size_t(6) << 20;  // of one list
constexpr size_t kAlign = 64;
constexpr int kRing = 4;  // lists that may be on their way
constexpr size_t kMostGraphs = 96;
constexpr size_t kLeastWorkspace = size_t(64) << 20;

constexpr size_t aligned(size_t n) { return (n + kAlign - 1) / kAlign * kAlign; }

void mix(uint64_t& hash, uint64_t value) {  // FNV's multiplication over words, then a shift so that high bits count
  hash = (hash ^ value) * 0x100000001b3ull;
  hash ^= hash >> 29;
}

}  // namespace

Result<std::unique_ptr<Commands>> Commands::make() {
  std::unique_ptr<Commands> commands(new Commands);
  const auto failed = [](cudaError_t code) { return code != cudaSuccess; };
  if (const auto code = cudaStreamCreateWithFlags(&commands->stream_, cudaStreamNonBlocking); failed(code))
    return cuda_error(code, "starting on the device");
  if (const auto code = cudaMalloc(&commands->device_, kArgsBytes + kDataBytes); failed(code))
    return cuda_error(code, "taking memory for the arguments of kernels");
  commands->ring_.resize(kRing);
  for (Staging& slot : commands->ring_) {
    if (const auto code = cudaMallocHost(&slot.host, kArgsBytes + kDataBytes); failed(code))
      return cuda_error(code, "taking pinned host memory");
    if (const auto code = cudaEventCreateWithFlags(&slot.copied, cudaEventDisableTiming); failed(code))
      return cuda_error(code, "making an event");
  }
  if (const auto code = cudaMalloc(&commands->workspace_, kLeastWorkspace); failed(code))
    return cuda_error(code, "taking scratch memory");
  commands->workspace_bytes_ = kLeastWorkspace;
  if (const auto code = cudaMalloc(&commands->ones_, kOnesBytes); failed(code)) return cuda_error(code, "taking scratch memory");
  if (const auto code = cudaMemsetAsync(commands->ones_, 0xff, kOnesBytes, commands->stream_); failed(code))
    return cuda_error(code, "filling scratch memory");
  return commands;
}

Commands::~Commands() {
  if (stream_) (void)cudaStreamSynchronize(stream_);
  drop_graphs();
  for (Staging& slot : ring_) {
    if (slot.host) (void)cudaFreeHost(slot.host);
    if (slot.copied) (void)cudaEventDestroy(slot.copied);
  }
  for (void* memory : outgrown_) (void)cudaFree(memory);
  if (workspace_) (void)cudaFree(workspace_);
  if (ones_) (void)cudaFree(ones_);
  if (device_) (void)cudaFree(device_);
  if (stream_) (void)cudaStreamDestroy(stream_);
}

// The buffer that this list's arguments go to; waits only where the host is kRing lists ahead of the copies.
Commands::Staging& Commands::staging() {
  Staging& slot = ring_[next_];
  if (!open_) {
    if (slot.in_flight) HUNCH_CUDA_CHECK(cudaEventSynchronize(slot.copied));
    slot.in_flight = false;
    open_ = true;
  }
  return slot;
}

const void* Commands::add_data(const void* from, size_t bytes) {
  if (bytes == 0) return device_ + kArgsBytes;
  Uploaded& known = uploaded_[from];
  if (known.bytes == bytes && std::memcmp(staging().host + kArgsBytes + known.offset, from, bytes) == 0)
    return device_ + kArgsBytes + known.offset;
  HUNCH_CHECK(data_used_ + aligned(bytes) <= kDataBytes);
  const size_t offset = data_used_;
  std::memcpy(staging().host + kArgsBytes + offset, from, bytes);
  data_used_ += aligned(bytes);
  known = {bytes, offset};
  return device_ + kArgsBytes + offset;
}

void Commands::add_launch(const void* kernel, const Grid& grid, const void* args, size_t bytes) {
  HUNCH_CHECK(grid.blocks.x > 0 && grid.blocks.y > 0 && grid.blocks.z > 0 && grid.threads > 0);
  HUNCH_CHECK(args_used_ + aligned(bytes) <= kArgsBytes);
  std::memcpy(staging().host + args_used_, args, bytes);
  launches_.push_back({kernel, grid, args_used_});
  args_used_ += aligned(bytes);
  mix(shape_, reinterpret_cast<uint64_t>(kernel));
  mix(shape_, uint64_t(grid.blocks.x) << 32 | grid.blocks.y);
  mix(shape_, uint64_t(grid.blocks.z) << 32 | grid.threads);
  mix(shape_, uint64_t(grid.shared_bytes) << 32 | bytes);
  allow_shared(kernel, grid.shared_bytes);
  ++counters_.kernels;
}

// More than 48 KiB of dynamic shared memory is asked for once per kernel.
void Commands::allow_shared(const void* kernel, size_t bytes) {
  size_t& allowed = allowed_.try_emplace(kernel, size_t(48) << 10).first->second;
  if (bytes <= allowed) return;
  HUNCH_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)));
  allowed = bytes;
}

void* Commands::workspace(size_t bytes) {
  if (bytes <= workspace_bytes_) return workspace_;
  outgrown_.push_back(workspace_);
  HUNCH_CUDA_CHECK(cudaMalloc(&workspace_, bytes));
  workspace_bytes_ = bytes;
  return workspace_;
}

void Commands::begin_op() {
  if (args_used_ > kArgsBytes / 2 || data_used_ > kDataBytes / 2) submit();
}

void Commands::run_launches() {
  cudaLaunchAttribute overlap{};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  for (size_t i = 0; i < launches_.size(); ++i) {
    const Launch& launch = launches_[i];
    const void* args = device_ + launch.args;
    void* parameters[] = {&args};
    cudaLaunchConfig_t config{};
    config.gridDim = launch.grid.blocks;
    config.blockDim = dim3(launch.grid.threads);
    config.dynamicSmemBytes = launch.grid.shared_bytes;
    config.stream = stream_;
    config.attrs = &overlap;
    config.numAttrs = i > 0 && device_facts().major >= 9 ? 1 : 0;  // the first one reads arguments that are being copied
    HUNCH_CUDA_CHECK(cudaLaunchKernelExC(&config, launch.kernel, parameters));
  }
}

void Commands::launch_graph(Graph& graph) {
  if (!graph.exec) {
    cudaGraph_t recorded;
    HUNCH_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    run_launches();
    HUNCH_CUDA_CHECK(cudaStreamEndCapture(stream_, &recorded));
    HUNCH_CUDA_CHECK(cudaGraphInstantiate(&graph.exec, recorded, 0));
    HUNCH_CUDA_CHECK(cudaGraphDestroy(recorded));
  }
  HUNCH_CUDA_CHECK(cudaGraphLaunch(graph.exec, stream_));
  ++counters_.graph_launches;
}

void Commands::submit() {
  if (launches_.empty()) {
    if (open_) open_ = false, data_used_ = 0, uploaded_.clear();
    return;
  }
  Staging& slot = staging();
  // One copy where data is near the arguments, two where that would copy mostly air.
  HUNCH_CUDA_CHECK(cudaMemcpyAsync(device_, slot.host, args_used_, cudaMemcpyHostToDevice, stream_));
  if (data_used_ > 0)
    HUNCH_CUDA_CHECK(cudaMemcpyAsync(device_ + kArgsBytes, slot.host + kArgsBytes, data_used_, cudaMemcpyHostToDevice, stream_));
  HUNCH_CUDA_CHECK(cudaEventRecord(slot.copied, stream_));
  slot.in_flight = true;

  if (graphs_.size() >= kMostGraphs && !graphs_.contains(shape_)) {
    const auto oldest = std::min_element(graphs_.begin(), graphs_.end(),
                                         [](const auto& a, const auto& b) { return a.second.last_used < b.second.last_used; });
    if (oldest->second.exec) (void)cudaGraphExecDestroy(oldest->second.exec);
    graphs_.erase(oldest);
  }
  Graph& graph = graphs_[shape_];
  graph.last_used = ++clock_;
  if (++graph.seen >= 2) {
    launch_graph(graph);
  } else {
    run_launches();
    counters_.launches += launches_.size();
  }
  launches_.clear(), uploaded_.clear();
  args_used_ = data_used_ = 0, shape_ = 0;
  open_ = false;
  next_ = (next_ + 1) % ring_.size();
}

Status Commands::wait() {
  submit();
  ++counters_.waits;
  const auto start = std::chrono::steady_clock::now();
  const auto code = cudaStreamSynchronize(stream_);
  counters_.waited_ns += uint64_t(std::chrono::nanoseconds(std::chrono::steady_clock::now() - start).count());
  if (code != cudaSuccess) return cuda_error(code, "running a step; the device cannot be used any more by this process");
  for (void* memory : outgrown_) (void)cudaFree(memory);
  outgrown_.clear();
  return {};
}

void Commands::drop_graphs() {
  for (auto& [shape, graph] : graphs_)
    if (graph.exec) (void)cudaGraphExecDestroy(graph.exec);
  graphs_.clear();
}

}  // namespace hunch
