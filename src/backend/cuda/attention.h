// Attention and score_keys of the CUDA backend (contracts: backend/ops/attention.h). K and V of every (sequence, KV head) are
// read once per pass for all its rows; heads of 64 and 128 run on the tensor cores (queries and weights rounded to
// the type of the store, to fp16 over FP8 and Q8_0), F32 and everything else in fp32 by a slower general kernel.
//
// Device memory: q, out, lse, sinks, scores.lse, scores.out, index. Host memory: runs, last, tree, scores.row_used, page tables,
// which stay as they are until the next wait: they are read once a list of commands.
// Strides of q and out rows and heads are multiples of 4 floats. No scores of runs with a selection.
#pragma once

#include "backend/backend.h"
#include "backend/cuda/attention_plan.h"
#include "backend/cuda/commands.h"
#include "backend/cuda/unpacked_kv.h"

namespace hunch {

// Used with one Commands all its life, which it does not outlive by a kernel in flight.
class CudaAttention {
 public:
  // most_blocks: fewer than the device has multiprocessors (tests); 0: as many.
  explicit CudaAttention(int most_blocks = 0);

  void enqueue(Commands& commands, const AttentionArgs& args);
  void enqueue(Commands& commands, const ScoreKeysArgs& args);

  // What the calls so far asked memory for, as BackendCounters wants it.
  uint64_t kv_bytes() const { return kv_bytes_; }
  uint64_t score_bytes() const { return score_bytes_; }

 private:
  struct Call;
  static constexpr size_t kMostPlans = 12;
  // Runs of a call that run in one launch: one type of store, all with one M tile or all with several.
  struct Launch {
    bool general = false, paired = false, lines = false, keys_only = false;
    bool unpacked = false;  // codes of chunks, where memory allows
    DType dtype = DType::BF16;
    int head_dim = 0, group = 1, columns = 0;  // columns: 0: packed rows stand in rows
    std::vector<const AttentionRun*> runs;
    KeptList<PlannedRun> planned;
    // Made of these.
    bool planned_already = false;
    AttentionPlan plan;
    int64_t row_heads = 0;                   // of all runs
    int rows_of_warp = 1;                    // that folds tile by tile
    std::vector<CombineRowDevice> combined;  // few of them: [row and KV head in all runs]
    std::vector<CombineTileDevice> tiles;    // many
    int most_tile_rows = 0;
    KeptList<std::vector<uint8_t>> used;  // [run][row]
    KeptList<std::vector<int32_t>> used_index;
    // Where all of it lies on the device, in this list of commands.
    struct There {
      uint64_t list = 0;
      const AttentionItemDevice* items;
      const int32_t* worker_items;
      const AttentionSuperDevice* supers;
      const AttentionSlot* slots;
      const CombineRowDevice* combined;
      const CombineTileDevice* tiles;
      std::vector<const int32_t*> last;                                      // [run]
      std::vector<std::pair<View<const int32_t, 1>, const int32_t*>> pages;  // [run] host, device
    } there;
    void copy_to_device(Commands&);
    void list_combined(int padded_group, int group);
    void begin(const Launch& kind) {  // no runs yet, of that kind
      general = kind.general, paired = kind.paired, lines = kind.lines, keys_only = kind.keys_only;
      unpacked = kind.unpacked;
      dtype = kind.dtype, head_dim = kind.head_dim, group = kind.group, columns = kind.columns;
      runs.clear(), planned.clear();
      planned_already = false, there.list = 0;
    }
    bool same_kind(const Launch& o) const {
      return general == o.general && paired == o.paired && lines == o.lines && keys_only == o.keys_only &&
          unpacked == o.unpacked && dtype == o.dtype && head_dim == o.head_dim && group == o.group && columns == o.columns;
    }
    bool same_plan(const Launch& o) const { return planned_already && same_kind(o) && planned == o.planned; }
  };
  void score(Commands&, int layer, float scale, View<const float, 3> q, int64_t first_row, const KvRef&, const ScoreArgs&);
  void run(Commands&, Launch&, const Call&);
  Launch& place_for(const Launch& wanted);
  void sort(const AttentionArgs&);
  bool sorted_already(const AttentionArgs&);

  struct Count {  // of items that workers took in all launches so far
    ~Count();
    uint32_t* device = nullptr;
    uint32_t before = 0;  // when the launch that comes next begins
  };

  int most_blocks_;
  std::unique_ptr<Count> taken_;
  UnpackedKv unpacked_;
  std::vector<Launch> launches_;  // kept: a plan that fits again (the next layer's) is not made again
  std::vector<Launch*> sorted_;   // what the last attention's runs became,
  int64_t sorted_heads_ = 0;      // of so many query heads,
  uint64_t sorted_bytes_ = 0;     // and what they read
  // Of the running call; their memory stays.
  KeptList<Launch> wanted_;
  PlannedRun planned_;
  std::vector<AttentionRunDevice> devices_;
  std::vector<ReduceScoresDevice> reductions_;
  size_t next_ = 0;  // to be replaced
  uint64_t kv_bytes_ = 0, score_bytes_ = 0;
};

}
