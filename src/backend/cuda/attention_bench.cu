// Attention alone: plain steps, verifies with pooled scores, drafts over a selection, prompt chunks. Bytes are those that must
// move once: K and V of every entry read, queries and outputs, a score where there is one.
#include <numeric>
#include <random>
#include <sstream>

#include "backend/cuda/attention.h"
#include "backend/cuda/device_test.h"
#include "backend/cuda/kernel_bench.h"
#include "backend/cuda/ptx.h"

namespace hunch {
namespace {

using test::DeviceArray, test::view;
using enum DType;

struct FillDevice {
  uint16_t* to;
  int64_t count;
  uint16_t mask;
};
__global__ void fill_kernel(const FillDevice* args) {  // bf16 of about unit variance; masked: codes that are numbers
  const FillDevice a = *args;
  wait_for_previous();
  for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < a.count; i += int64_t(gridDim.x) * blockDim.x) {
    uint64_t x = uint64_t(i) * 0x9e3779b97f4a7c15ull + 0x1234567;
    x ^= x >> 32, x *= 0xd6e8feb86659fd93ull, x ^= x >> 32, x *= 0xd6e8feb86659fd93ull, x ^= x >> 32;
    const float u = float(uint32_t(x) >> 8) * 0x1p-24f + float(uint32_t(x >> 40)) * 0x1p-24f - 1;
    a.to[i] = uint16_t(__float_as_uint(2.4f * u) >> 16) & a.mask;
  }
}

struct Case {
  std::string name;
  int64_t sequences = 4, entries = 131072;
  int rows = 1, q_heads = 32, kv_heads = 8, head_dim = 128, layers = 1;
  bool scores = false, shared = false;
  int block = kScoreBlock;  // of scores
  int64_t selected = 0;     // 0: dense
  int page = 1;             // selected: entries in a row
  bool first_last = false;  // scores: of the first and the last row alone
  DType dtype = BF16;
  int64_t reads() const { return selected ? selected : entries; }
};

class Bench {
 public:
  Bench(Commands& commands, const Case& c) : commands_(commands), c_(c) {
    const KvGeometry geometry{c.dtype, c.layers, c.kv_heads, c.head_dim};
    const int64_t pages = (c.entries + kPageLen - 1) / kPageLen;
    store_ = CudaKvStore::make(commands, geometry, pages * c.sequences);
    HUNCH_CHECK(store_);
    commands.launch(fill_kernel, {.blocks = dim3(2048), .threads = 256},
        FillDevice{reinterpret_cast<uint16_t*>(store_->plane(0).keys), int64_t(store_->bytes / 2),
            uint16_t(c.dtype == BF16 ? 0xffff : 0xbfbf)});
    std::vector<int32_t> all(pages * c.sequences);
    std::iota(all.begin(), all.end(), 0);
    std::mt19937 random(1);
    std::ranges::shuffle(all, random);
    const int64_t rows = c.rows * c.sequences, sets = c.shared ? 1 : c.kv_heads;
    std::vector<float> q(rows * c.q_heads * c.head_dim);
    std::normal_distribution<float> normal;
    for (float& x : q) x = normal(random);
    q_ = DeviceArray(q), out_ = DeviceArray<float>(q.size());
    lse_ = DeviceArray(std::vector<float>(size_t(rows * c.q_heads), 12.0f));
    prefix_ = (c.entries - c.rows) / kScoreBlock * kScoreBlock;
    if (c.scores) scores_ = DeviceArray<float>(size_t(c.sequences * c.kv_heads * c.entries));
    if (c.selected) {
      std::vector<int32_t> index;
      for (int64_t list = 0; list < c.sequences * sets; ++list) {  // every page with the same chance, ascending
        int64_t left = c.selected / c.page;
        for (int64_t e = 0; e < c.entries && left > 0; e += c.page)
          if (int64_t(random() % uint64_t((c.entries - e) / c.page)) < left) {
            for (int i = 0; i < c.page; ++i) index.push_back(int32_t(e + i));
            --left;
          }
      }
      index_ = DeviceArray(index);
    }
    used_.assign(c.rows, c.first_last ? 0 : 1);
    used_.front() = used_.back() = 1;
    for (int64_t s = 0; s < c.sequences; ++s) {
      tables_.emplace_back(all.begin() + s * pages, all.begin() + (s + 1) * pages);
      last_.emplace_back();
      for (int r = 0; r < c.rows; ++r) last_.back().push_back(int32_t(c.reads() - c.rows + r));
    }
    for (int64_t s = 0; s < c.sequences; ++s) {
      AttentionRun run;
      run.first_row = s * c.rows, run.num_rows = c.rows;
      run.kv = {store_.get(), view(tables_[s])};
      run.last = view(last_[s]);
      if (c.selected) {
        run.index = View<const int32_t, 2>(index_.data() + s * sets * c.selected, sets, c.selected);
        run.tail_first = c.entries;
      }
      if (c.scores) {
        run.scores.metric = ScoreMetric::Weight, run.scores.combine = ScoreCombine::Max, run.scores.prefix_len = prefix_;
        run.scores.block = c.block;
        run.scores.row_used = view(used_);
        run.scores.lse = View<const float, 2>(lse_.data() + s * c.rows * c.q_heads, c.rows, c.q_heads);
        run.scores.out = View<float, 2>(scores_.data() + s * c.kv_heads * c.entries, sets, c.entries);
      }
      runs_.push_back(run);
    }
  }

  KernelRow measure(int repeats = 5) {
    const int64_t rows = c_.rows * c_.sequences;
    AttentionArgs args;
    args.scale = 1 / std::sqrt(float(c_.head_dim));
    args.q = view(q_, rows, c_.q_heads, c_.head_dim);
    args.out = view(out_, rows, c_.q_heads, c_.head_dim);
    args.runs = runs_;
    CudaAttention attention;
    int layer = 0;
    const double ms = time_commands(commands_, repeats, [&] {
      args.layer = layer++ % c_.layers;
      attention.enqueue(commands_, args);
    });
    KernelRow row;
    row.name = c_.name, row.ms = ms;
    row.bytes = double(c_.sequences * c_.reads() * c_.kv_heads) * double(2 * kv_row_bytes(c_.dtype, c_.head_dim)) +
        double(rows * c_.q_heads * c_.head_dim) * 8;
    if (c_.scores) row.bytes += double(c_.sequences * (c_.shared ? 1 : c_.kv_heads) * prefix_ / c_.block) * 4;
    row.flops = 4.0 * double(rows * c_.q_heads * c_.head_dim) * double(c_.reads());
    return row;
  }

 private:
  Commands& commands_;
  const Case c_;
  std::unique_ptr<CudaKvStore> store_;
  DeviceArray<float> q_, out_, lse_, scores_;
  DeviceArray<int32_t> index_;
  std::vector<std::vector<int32_t>> tables_, last_;
  std::vector<uint8_t> used_;
  int64_t prefix_ = 0;
  std::vector<AttentionRun> runs_;
};

}

std::vector<KernelRow> bench_attention(Commands& commands) {
  std::vector<Case> cases;
  const auto add = [&](Case c, const auto&... name) {  // "attention" and so on
    std::ostringstream text;
    text << "attention";
    (text << ... << name);
    c.name = text.str(), cases.push_back(std::move(c));
  };
  for (const int rows : {1, 8, 12})
    for (const bool scores : {false, true})
      add({.rows = rows, .scores = scores}, ": ", rows, " rows", scores ? " with scores" : "", ", 4 x 131072");
  for (const int rows : {1, 8, 12})
    add({.rows = rows, .scores = true, .block = 1}, ": ", rows, " rows with a score an entry, 4 x 131072");
  for (const DType dtype : {F8_E4M3, Q8_0})
    for (const int rows : {1, 8, 12})
      add({.rows = rows, .scores = true, .dtype = dtype}, ": ", rows, " rows with scores, ", dtype_info(dtype).name,
          ", 4 x 131072");
  add({.rows = 8, .scores = true, .shared = true}, ": 8 rows with shared scores, 4 x 131072");
  for (const int rows : {1, 8, 12})
    add({.rows = rows, .q_heads = 64, .head_dim = 64, .scores = true}, ": ", rows,
        " rows with scores, 4 x 131072, 64 / 8 heads of 64");
  for (const int entries : {2048, 8192, 32768})
    for (const int rows : {1, 8, 12, 64})
      add({.sequences = 1, .entries = entries, .rows = rows, .layers = 36}, ": ", rows, " rows, 1 x ", entries);
  for (const int rows : {1, 8}) {
    add({.sequences = 1, .entries = 32768, .rows = rows, .layers = 8, .scores = true}, ": ", rows,
        " rows with scores, 1 x 32768");
    add({.sequences = 32, .entries = 10240, .rows = rows, .scores = true}, ": ", rows, " rows with scores, 32 x 10240");
  }
  add({.sequences = 16, .entries = 8192, .layers = 4}, ": 1 row, 16 x 8192");
  add({.sequences = 16, .selected = 8192}, ": 1 row, 16 x 8192 selected of 131072");
  add({.sequences = 16, .selected = 8192, .dtype = F8_E4M3}, ": 1 row, 16 x 8192 selected of 131072, fp8");
  add({.sequences = 16, .shared = true, .selected = 8192}, ": 1 row, 16 x 8192 selected of 131072, shared");
  // Vegas, appendix D: pages of so many entries, the same for all heads and for each its own.
  for (const bool shared : {true, false})
    for (const int page : {1, 2, 4, 8, 16})
      add({.sequences = 16, .shared = shared, .selected = 8192, .page = page}, ", pages of ", page,
          shared ? ", shared" : ", per KV head", ": 1 row, 16 x 8192 of 131072");
  // Vegas, figure 6: what collecting scores adds, by rows: none, of two rows, of all rows; pooled over them as they are made.
  for (const int rows : {2, 4, 8, 12, 16})
    for (const char* collect : {"nothing", "2 rows", "all rows"})
      add({.rows = rows, .scores = *collect != 'n', .first_last = *collect == '2'}, ", collecting ", collect, ": ", rows,
          " rows, 4 x 131072");
  for (const int entries : {32768, 4096})
    add({.sequences = 1, .entries = entries, .rows = 512, .layers = 4}, ": chunk of 512 rows at ", entries);
  std::vector<KernelRow> rows;
  for (const Case& c : cases) rows.push_back(Bench(commands, c).measure());
  // Unpooled, that is a bf16 value for every row, head and entry, written here and read by whoever pools: as a plain stream each.
  for (const int n : {2, 8, 12, 16})
    rows.push_back(bench_scores_stream(commands, int64_t(n) * 32 * 4 * 131072 * 2,
        "unpooled scores written and read alone: " + std::to_string(n) + " rows, 4 x 131072"));
  return rows;
}

}
