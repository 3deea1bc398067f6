// Experts alone, for `hunch bench kernels`: layers of Qwen3-30B-A3B and of gpt-oss-20b, rows that go to experts at random.
#include <random>
#include <set>
#include <sstream>

#include "backend/cuda/device_test.h"
#include "backend/cuda/experts.h"
#include "backend/cuda/kernel_bench.h"
#include "backend/cuda/weights.h"

namespace hunch {
namespace {

using test::DeviceArray, test::view;

struct Layer {
  int64_t hidden, width, experts, per_row;
};
constexpr Layer kQwen{2048, 768, 128, 8}, kGptOss{2880, 2880, 32, 4};
constexpr int kRepeats = 20, kInList = 8;  // calls in one list, each with ids of its own: weights come from memory

void bench_type(Commands& commands, const Layer& layer, DType dtype, std::vector<KernelRow>& out) {
  const int64_t hidden = layer.hidden, width = layer.width, num_experts = layer.experts, per_row = layer.per_row;
  std::vector<std::unique_ptr<Weight>> owned;
  std::vector<Expert> experts;
  const auto load = [&](int64_t rows, int64_t columns) {
    owned.push_back(random_weight(dtype, rows, columns, owned.size(), 0.02f));
    return owned.back().get();
  };
  for (int64_t e = 0; e < num_experts; ++e) {
    Expert expert;
    expert.gate = load(width, hidden), expert.up = load(width, hidden), expert.down = load(hidden, width);
    if (!expert.gate || !expert.up || !expert.down) return;  // no memory
    experts.push_back(expert);
  }
  const size_t expert_bytes = experts[0].gate->bytes + experts[0].up->bytes + experts[0].down->bytes;
  std::mt19937 random(1);
  for (const int64_t rows : {1, 2, 5, 8, 32, 100, 512, 2048}) {
    const auto zeros = [](int64_t n) { return DeviceArray(std::vector<float>(size_t(n))); };
    const DeviceArray<float> x = zeros(rows * hidden), y = zeros(rows * hidden), shares = zeros(rows * per_row);
    const DeviceArray counts(std::vector<ExpertsRead>(2));
    std::vector<int32_t> drawn;
    size_t distinct = 0;
    for (int call = 0; call < kInList; ++call) {
      std::set<int32_t> used;
      for (int64_t r = 0; r < rows; ++r) {
        std::set<int32_t> of_row;
        while (of_row.size() < size_t(per_row)) of_row.insert(int32_t(random() % num_experts));
        drawn.insert(drawn.end(), of_row.begin(), of_row.end()), used.insert(of_row.begin(), of_row.end());
      }
      distinct += used.size();
    }
    const DeviceArray ids(drawn);
    ExpertsArgs args{
        .x = view(x, rows, hidden), .shares = view(shares, rows, per_row), .experts = experts, .out = view(y, rows, hidden)};
    args.gate = View<float, 2>(nullptr, rows, width);  // scratch that the device does not use
    ExpertTables tables;
    const double ms = time_commands(commands, kRepeats, [&] {
      for (int call = 0; call < kInList; ++call) {
        args.ids = View<const int32_t, 2>(ids.data() + call * rows * per_row, rows, per_row);
        enqueue_experts(commands, tables, args, counts.data(), counts.data() + 1);
      }
    });
    std::ostringstream name;
    name << "experts: " << dtype_info(dtype).name << ", " << per_row << " of " << num_experts << ", " << hidden << " x " << width
         << ", " << rows << " rows, " << double(distinct) / kInList << " read";
    out.push_back({.name = name.str(),
        .bytes = double(distinct) * double(expert_bytes) / kInList,
        .flops = 6.0 * double(rows * per_row * hidden * width),
        .ms = ms / kInList});
  }
}

}

std::vector<KernelRow> bench_experts(Commands& commands) {
  std::vector<KernelRow> out;
  for (const DType dtype : {DType::BF16, DType::F8_E4M3, DType::Q4_0}) bench_type(commands, kQwen, dtype, out);
  bench_type(commands, kGptOss, DType::MXFP4, out);
  return out;
}

}
