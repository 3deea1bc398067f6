// Commands: what ops ask of the device, as a list that runs later. An op appends kernels; a kernel's arguments lie in device
// memory and are copied there once for the whole list. So a list that comes again with other arguments (same kernels in the same
// order) is the same CUDA graph: recorded when it has come often, while the host would wait for it, replayed from then on. One
// whose grids change is given the new ones, microseconds each; lists whose grids return often get graphs of their own. Ops never
// launch anything themselves, never wait, and never read device memory on the host.
//
//   struct NormDevice { const float* x; float* out; int64_t n; };       // trivially copyable; pointers to device memory
//   __global__ void norm_kernel(const NormDevice* args) { wait_for_previous(); const NormDevice a = *args; ... }
//   commands.launch(norm_kernel, {.blocks = dim3(rows), .threads = 256}, NormDevice{...});
//
// So grids, block sizes and shared memory should not depend on what changes from round to round (lengths of contexts, counts of
// selected entries): those are arguments. They may depend on shapes, numbers of sequences and rows; of rows on grid_rows(), so
// that guesses of many lengths need few grids: blocks without a row return.
#pragma once

#include <algorithm>
#include <memory>
#include <memory_resource>
#include <span>
#include <type_traits>
#include <unordered_map>
#include <vector>

#include "backend/cuda/device.h"
#include "tensor/buffer.h"
#include "tensor/view.h"

namespace hunch {

struct Grid {
  dim3 blocks{1, 1, 1};
  unsigned threads = 128;
  size_t shared_bytes = 0;  // dynamic shared memory
  bool operator==(const Grid& o) const {
    return blocks.x == o.blocks.x && blocks.y == o.blocks.y && blocks.z == o.blocks.z && threads == o.threads &&
        shared_bytes == o.shared_bytes;
  }
};

// Rows, or their like, that a grid is made for: the next power of two, from 17 on also three quarters of one.
inline int64_t grid_rows(int64_t rows) {
  int64_t most = 1;
  while (most < rows) most *= 2;
  return most > 16 && rows <= most / 4 * 3 ? most / 4 * 3 : most;
}

class Commands {
 public:
  struct Counters {
    // Kernels run; launched one by one; graphs; their kernels that were given other grids; waits of the host, and how long they
    // took.
    uint64_t kernels = 0, launches = 0, graph_launches = 0, refits = 0, waits = 0, waited_ns = 0;
  };

  // Recording a graph takes a millisecond: ten times what launching its kernels one by one does beyond replaying them, and twenty
  // times what giving it other grids does.
  static constexpr int kRecordAt = 10, kOwnAt = 20;

  // Takes pinned and device memory for arguments. Errors: no device memory.
  static Result<std::unique_ptr<Commands>> make();
  ~Commands();
  Commands(const Commands&) = delete;
  Commands& operator=(const Commands&) = delete;

  // Before every op: a list that is nearly full is submitted, so that an op's data and kernels stay in one list (1 MiB of
  // arguments for one op; data beyond 3 MiB may be read from pinned memory).
  void begin_op();

  // Host values that kernels of this list read at the address returned (device memory, aligned to 16); copied now. The same array
  // given again in one list (a page table, for every layer) is copied once if it still holds the same values.
  template <class T>
  const T* data(std::span<const T> values) {
    static_assert(std::is_trivially_copyable_v<T>);
    return static_cast<const T*>(add_data(values.data(), values.size_bytes()));
  }
  template <class T>
  const T* data(View<T, 1> values) {
    HUNCH_CHECK(values.stride[0] == 1 || values.extent[0] <= 1);
    return data(std::span<const std::remove_const_t<T>>(values.data, size_t(values.extent[0])));
  }

  template <class Args>
  void launch(void (*kernel)(const Args*), const Grid& grid, const Args& args) {
    static_assert(std::is_trivially_copyable_v<Args> && alignof(Args) <= 64);
    add_launch(reinterpret_cast<const void*>(kernel), grid, &args, sizeof args);
  }

  // The kernel launched last takes long (a chunk of a prompt): while the host lists what follows, the device could work. So the
  // first such kernel after a wait is started before the next op, and a layer or so behind it, time for all that is left.
  void launched_long() { ++long_; }

  // Nothing runs, and much is going to be listed: a layer or so is started before the rest, then as many as the host lists
  // meanwhile (of many sequences fewer), and so on until the next wait.
  void hurry(int64_t sequences) { hurries_ = kOfLayer, growth_ = size_t(std::clamp<int64_t>(512 / sequences, 3, 8)); }

  // Scratch for the kernels of one op; the next op may overwrite it. Grown between lists only where an op wants more than before.
  void* workspace(size_t bytes);
  // Whether workspace(bytes) leaves the device some memory: what is faster with much of it, and goes without.
  bool affords(size_t bytes);
  // Memory that stays. Empty: there is none, and no kernel will be started any more.
  Buffer take(size_t bytes);

  // Rows that the kernel launched last has also left in bf16 as the tensor cores take them (matmul.h), so that a product right
  // behind it need not pack them: the memory for `bytes` of them, or nullptr if there is none; then set_packed() after the
  // launch.
  std::byte* packed_memory(size_t bytes) const { return bytes <= kPackedBytes ? packed_ : nullptr; }
  void set_packed(View<const float, 2> rows) { packed_rows_ = rows, packed_until_ = counters_.kernels; }
  // Those of these rows, if nothing was launched or waited for since; nullptr otherwise.
  const std::byte* packed(View<const float, 2> rows) const {
    const View<const float, 2>& p = packed_rows_;
    const bool same =
        p.data == rows.data && p.extent[0] == rows.extent[0] && p.extent[1] == rows.extent[1] && p.stride[0] == rows.stride[0];
    return same && packed_until_ == counters_.kernels ? packed_ : nullptr;
  }

  // Of the list that is being made: an address that data() returned holds for it alone.
  uint64_t list() const { return list_; }

  // What attention may read ahead of its turn (AttentionRun::settled): caches and choices that no kernel behind the last barrier
  // has written, but for the rows of its own pass, which one launch stores. A barrier lets the next kernel start only once
  // everything before it is done; a list begins behind one. Ops that write such things say so for every launch.
  void wrote_rows() { ++unsettled_; }
  void wrote_cache() { unsettled_ += 2; }
  void launched_barrier() { unsettled_ = 0; }
  bool settled() const { return unsettled_ <= 1; }

  // Memory whose bits are all ones whenever no kernel runs: kernels that write there put that back. For words that tell by
  // themselves whether they have been written. nullptr: not so much.
  void* ones(size_t bytes) const { return bytes <= kOnesBytes ? ones_ : nullptr; }

  // Starts what was appended. Returns at once.
  void submit();
  // submit(), then waits until everything is done: what kernels wrote to shared memory may be read now. The error, if anything
  // failed since the beginning: lists are dropped from the first failure on, and every wait returns it.
  Status wait();
  // Takes the time when what was submitted so far is done; after the next wait(): milliseconds from there to its end.
  void mark();
  double since_mark_ms() const { return since_mark_ms_; }

  cudaStream_t stream() const { return stream_; }
  const Counters& counters() const { return counters_; }

 private:
  struct Launch {
    const void* kernel;
    Grid grid;
    size_t args;  // offset in the argument region
  };
  struct Uploaded {
    size_t bytes = 0;
    const std::byte *host = nullptr, *device = nullptr;
  };
  struct Node {
    cudaGraphNode_t node = nullptr;
    Grid grid;
  };
  struct Graph {
    cudaGraph_t recorded = nullptr;
    cudaGraphExec_t exec = nullptr;
    std::vector<Node> nodes;  // [launch]
    uint64_t last_used = 0;
    int seen = 0;
  };
  // One list's arguments and data on their way to the device.
  struct Staging {
    std::byte* host = nullptr;
    cudaEvent_t copied = nullptr;
    bool in_flight = false;
  };
  Commands() = default;
  const void* add_data(const void* from, size_t bytes);
  void add_launch(const void* kernel, const Grid&, const void* args, size_t bytes);
  Staging& staging();
  void run(std::span<const Launch>, Graph* recorded);
  Graph& graph_of(uint64_t key);
  void record();
  bool fits(const Graph&) const;
  void fit(Graph&);
  void launch(Graph&);
  void drop(Graph&);
  void drop_list();
  bool good(cudaError_t code, const char* doing);
  Error failure() const;
  void allow_shared(const void* kernel, size_t bytes);

  cudaStream_t stream_ = nullptr;
  std::byte* device_ = nullptr;  // [arguments | data], which grow apart from where they meet: one copy takes both
  std::vector<Staging> ring_;
  size_t next_ = 0;
  bool open_ = false;  // a staging buffer is being filled
  uint64_t list_ = 1;
  size_t args_used_ = 0, data_used_ = 0;
  std::vector<Launch> launches_;
  std::pmr::unsynchronized_pool_resource entries_;
  std::pmr::unordered_map<const void*, Uploaded> uploaded_{&entries_};  // by host address, the latest
  uint64_t kernels_ = 0, shape_ = 0;                                    // hashes of kernels so far, and of those with their grids
  std::unordered_map<uint64_t, Graph> graphs_;
  std::vector<std::pair<uint64_t, std::vector<Launch>>> to_record_;  // with the graph's key
  uint64_t clock_ = 0;
  std::unordered_map<const void*, size_t> allowed_;
  static constexpr size_t kOnesBytes = size_t(64) << 20;  // what runs of one weight leave, at least
  void* ones_ = nullptr;
  static constexpr size_t kPackedBytes = size_t(32) << 20;
  std::byte* packed_ = nullptr;
  View<const float, 2> packed_rows_{};
  uint64_t packed_until_ = 0;  // kernels
  int unsettled_ = 0;          // launches behind the last barrier that wrote caches
  void* workspace_ = nullptr;
  size_t workspace_bytes_ = 0;
  size_t refused_bytes_ = SIZE_MAX;  // that affords() said no to
  std::vector<void*> outgrown_;      // workspaces that kernels in flight may still use
  std::vector<Buffer> more_data_;    // likewise: pinned, of lists whose data were too many
  Counters counters_;
  cudaEvent_t marked_ = nullptr, done_ = nullptr;
  bool marking_ = false;
  float since_mark_ms_ = 0;
  cudaError_t failed_ = cudaSuccess;  // the first failure
  const char* failed_doing_ = "";
  size_t wanted_bytes_ = 0;  // of scratch that could not be had
  static constexpr int kLongOfLayer = 4;
  int long_ = 0, early_ = 0;              // since the last wait: long kernels; lists started for them
  static constexpr size_t kOfLayer = 12;  // kernels
  size_t hurries_ = 0, growth_ = 1;       // so many kernels of a list are started before the rest; 0: none. Of the next list
};

}
