// The router on the device against the reference; experts against the reference, against products one by one bit for bit, and
// alone against among others.
#include "backend/cuda/experts.h"

#include <set>

#include "backend/cuda/commands_fixture.h"
#include "backend/cuda/matmul.h"
#include "backend/cuda/rows.h"
#include "backend/cuda/weights.h"

namespace hunch {
namespace {

using namespace test;
using enum DType;

using CudaRoute = CommandsTest<>;

// Logits in steps of a quarter: many ties, and no two that rounding could exchange.
TEST_F(CudaRoute, ChoosesTheExpertsOfTheReference) {
  const int64_t rows = 37;
  struct Form {
    Routing routing;
    bool normalise;
  };
  for (const int64_t n : {1, 4, 31, 60, 128, 1000, 1024})
    for (const int64_t k : {1, 2, 8, 40})
      for (const auto& [routing, normalise] :
          {Form{Routing::Softmax, false}, Form{Routing::Softmax, true}, Form{Routing::SoftmaxOfChosen, false}}) {
        if (k > n) continue;
        const int64_t stride = n + 3, out_stride = k + 1;
        auto logits = gaussian(rows * stride, uint32_t(n));
        for (float& x : logits) x = std::round(8 * x) / 4;
        for (int64_t e = 0; e < n; ++e) logits[stride + e] = e == n / 2 ? 100 : -200;  // all others underflow
        logits[2 * stride + n - 1] = NAN;
        for (int64_t e = 0; e < n; ++e) logits[3 * stride + e] = 1.5f;
        DeviceArray<float> device(logits), shares(Floats(rows * out_stride, -1.0f)), alone(k);
        DeviceArray<int32_t> ids(Ints(rows * out_stride, -1)), id(k);
        Ints want_ids(rows * out_stride, -1);
        Floats want(rows * out_stride, -1.0f);
        const auto args = [&](const float* from, int64_t of, int32_t* to_ids, float* to_shares, int64_t to_stride) {
          return RouteArgs{.logits = strided(from, of, n, stride),
              .routing = routing,
              .normalise = normalise,
              .ids = strided(to_ids, of, k, to_stride),
              .shares = strided(to_shares, of, k, to_stride)};
        };
        enqueue_route(*commands, args(device.data(), rows, ids.data(), shares.data(), out_stride));
        enqueue_route(*commands, args(device.data() + 5 * stride, 1, id.data(), alone.data(), k));
        finish();
        reference.route(args(logits.data(), rows, want_ids.data(), want.data(), out_stride));
        ASSERT_EQ(ids.get(), want_ids) << k << " of " << n;
        const auto got = shares.get();
        for (size_t i = 0; i < want.size(); ++i) {
          ASSERT_EQ(std::isnan(got[i]), std::isnan(want[i])) << k << " of " << n << ", element " << i;
          if (!std::isnan(want[i]))
            ASSERT_NEAR(got[i], want[i], 4e-6 * std::abs(want[i])) << k << " of " << n << ", element " << i;
        }
        ASSERT_TRUE(stands_at(alone.get(), got, 5 * out_stride));
      }
}

constexpr int64_t kHidden = 512, kWidth = 224, kExperts = 11, kPerRow = 4,
                  kRows = 300;  // more rows than go at a time, unless grouped

struct Encodings {
  Encodings(DType all) : Encodings(all, all, all) {}
  Encodings(DType gate, DType up, DType down) : gate(gate), up(up), down(down) {}
  DType gate, up, down;
};

// The same experts on the device and on the reference; gate and up may differ in encoding. Of MXFP4 as gpt-oss has them.
struct Experts {
  explicit Experts(const Encodings& of)
      : clamp(of.gate == MXFP4 ? GateClamp{1.5f, 1.702f} : GateClamp{}),
        biases(gaussian(kExperts * (2 * kWidth + kHidden), 77)),
        device_biases(biases) {
    for (int64_t e = 0; e < kExperts; ++e) {
      add(of.gate, kWidth, kHidden, uint32_t(3 * e)), add(of.up, kWidth, kHidden, uint32_t(3 * e + 1));
      add(of.down, kHidden, kWidth, uint32_t(3 * e + 2));
      const size_t at = 3 * e;
      experts.push_back({weights[at].get(), weights[at + 1].get(), weights[at + 2].get()});
      exact.push_back({plain[at].get(), plain[at + 1].get(), plain[at + 2].get()});
      if (of.gate != MXFP4) continue;
      const auto add_biases = [&](Expert& expert, const float* all) {
        expert.gate_bias = all + e * kWidth, expert.up_bias = all + (kExperts + e) * kWidth;
        expert.down_bias = all + 2 * kExperts * kWidth + e * kHidden;
      };
      add_biases(experts.back(), device_biases.data()), add_biases(exact.back(), biases.data());
    }
  }
  void add(DType dtype, int64_t out, int64_t in, uint32_t seed) {
    auto values = gaussian(out * in, 100 + seed);
    for (float& value : values) value /= std::sqrt(float(in));
    std::vector<std::byte> bytes(dtype_bytes(dtype, values.size()));
    quantise_row(dtype, values.data(), bytes.data(), std::ssize(values));
    Tensor tensor{.dtype = dtype, .shape = {out, in}, .data = bytes.data(), .bytes = bytes.size()};
    const Floats ones((out + 127) / 128 * ((in + 127) / 128), 1.0f);
    if (dtype == F8_E4M3) tensor.scales = {ones.data(), 128, 128};
    weights.push_back(load_cuda_weight(tensor)), plain.push_back(reference.load_weight(tensor));
  }
  ReferenceBackend reference;
  GateClamp clamp;
  Floats biases;  // [experts][width] twice, [experts][hidden]
  DeviceArray<float> device_biases;
  std::vector<std::unique_ptr<Weight>> weights, plain;
  std::vector<Expert> experts, exact;
};

// Rows whose values bf16 holds, and where they go: expert 5 gets none, expert 0 nearly all.
struct Routed {
  Routed() : x(gaussian(kRows * kHidden, 1)), shares(gaussian(kRows * kPerRow, 2)), base(gaussian(kRows * kHidden, 3)) {
    for (float& value : x) value = bf16_to_f32(f32_to_bf16(value));
    std::mt19937 random(4);
    for (int64_t r = 0; r < kRows; ++r) {
      std::set<int32_t> chosen;
      if (r % 8) chosen.insert(0);
      while (std::ssize(chosen) < kPerRow)
        if (const int32_t id = int32_t(random() % kExperts); id != 5) chosen.insert(id);
      ids.insert(ids.end(), chosen.begin(), chosen.end());
    }
    for (int64_t r = 6; r < kRows; r += 7) ids[r * kPerRow + r % kPerRow] = -1;  // left out
  }
  Floats x, shares, base;
  Ints ids;
};

class CudaExperts : public CommandsTest<> {
 protected:
  void SetUp() override {
    CommandsTest::SetUp();
    if (IsSkipped()) return;
    total = DeviceArray(std::vector<ExpertsRead>(1)), seen = DeviceArray(std::vector<ExpertsRead>(1));
  }
  ExpertsArgs args(const std::vector<Expert>& experts, GateClamp clamp, const float* x, const int32_t* ids, const float* shares,
      float* out, int64_t rows) {
    ExpertsArgs a{.x = View<const float, 2>(x, rows, kHidden),
        .ids = View<const int32_t, 2>(ids, rows, kPerRow),
        .shares = View<const float, 2>(shares, rows, kPerRow),
        .experts = experts,
        .clamp = clamp,
        .out = View<float, 2>(out, rows, kHidden)};
    scratch.assign(rows * (2 * kWidth + 2 * kHidden), 0);  // of the reference
    a.gate = view(scratch, rows, kWidth), a.up = View<float, 2>(a.gate.data + rows * kWidth, rows, kWidth);
    a.gathered = View<float, 2>(a.up.data + rows * kWidth, rows, kHidden);
    a.product = View<float, 2>(a.gathered.data + rows * kHidden, rows, kHidden);
    return a;
  }
  // Rows first .. first + rows - 1.
  struct OnDevice {
    explicit OnDevice(const Routed& r) : x(r.x), shares(r.shares), out(r.base), ids(r.ids) {}
    DeviceArray<float> x, shares, out;
    DeviceArray<int32_t> ids;
  };
  void enqueue(ExpertTables& to, const Experts& experts, const OnDevice& d, int64_t first, int64_t rows) {
    enqueue_experts(*commands, to,
        args(experts.experts, experts.clamp, d.x.data() + first * kHidden, d.ids.data() + first * kPerRow,
            d.shares.data() + first * kPerRow, d.out.data() + first * kHidden, rows),
        total.data(), seen.data());
  }
  Floats run(const Experts& experts, const Routed& routed, int64_t first, int64_t rows) {
    return run(tables, experts, routed, first, rows);
  }
  Floats run(ExpertTables& tables, const Experts& experts, const Routed& routed, int64_t first, int64_t rows) {
    constexpr size_t kWorkspace = size_t(1) << 24;  // what a call does not write there is NaN; the copies below wait for that
    HUNCH_CUDA_CHECK(cudaMemset(commands->workspace(kWorkspace), 0xff, kWorkspace));
    const OnDevice device(routed);
    enqueue(tables, experts, device, first, rows);
    finish();
    return part_of(device.out.get(), first * kHidden, rows * kHidden);
  }
  ExpertTables tables;
  Floats scratch;
  // The copy for the host is device memory here: where it lies does not matter to kernels.
  DeviceArray<ExpertsRead> total, seen;
};

// First where a kernel is asked for the least shared memory.
const Encodings kEncodings[] = {{BF16, Q8_0, Q4_0}, F32, F16, BF16, Q8_0, Q4_0, {Q4_K, Q4_K, Q8_0}, F8_E4M3, MXFP4};

TEST_F(CudaExperts, AreNearTheReference) {
  const Routed routed;
  for (const Encodings& e : kEncodings) {
    Experts experts(e);
    for (const int64_t rows : std::initializer_list<int64_t>{1, 2, 9, 40, kRows}) {
      Floats want = part_of(routed.base, 0, rows * kHidden);
      experts.reference.experts(
          args(experts.exact, experts.clamp, routed.x.data(), routed.ids.data(), routed.shares.data(), want.data(), rows));
      const auto got = run(experts, routed, 0, rows);
      // The gate's output is rounded to bf16, and so are weights of other encodings: 8 bits of values around 1, of K-quants 0.073
      // somewhere among 150,000.
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR(got[i], want[i], 0.1) << dtype_info(e.gate).name << ", " << rows << " rows, element " << i;
    }
  }
}

TEST_F(CudaExperts, HaveTheBitsOfProductsOneByOne) {
  const Routed routed;
  for (const Encodings& e : kEncodings) {
    const Experts experts(e);
    const auto got = run(experts, routed, 0, kRows);
    Floats want = routed.base;
    const DeviceArray<float> x(routed.x), gate(kRows * kWidth), up(kRows * kWidth), y(kRows * kHidden);
    const View<float, 2> g(gate.data(), kRows, kWidth), u(up.data(), kRows, kWidth);
    for (size_t id = 0; id < experts.experts.size(); ++id) {  // every row by every expert
      const Expert& expert = experts.experts[id];
      const Product both[] = {{expert.gate, expert.gate_bias, g}, {expert.up, expert.up_bias, u}};
      enqueue_matmul(*commands, {view(x, kRows, kHidden), both}, ActivationPath::Plain);
      enqueue_gate(*commands, {.gate = g, .up = u, .out = g, .clamp = experts.clamp});
      const Product down[] = {{expert.down, expert.down_bias, view(y, kRows, kHidden)}};
      enqueue_matmul(*commands, {view(gate, kRows, kWidth), down}, ActivationPath::Plain);
      finish();
      const auto all = y.get();
      for (int64_t r = 0; r < kRows; ++r)
        for (int64_t slot = 0; slot < kPerRow; ++slot) {
          if (routed.ids[r * kPerRow + slot] != int32_t(id)) continue;
          for (int64_t j = r * kHidden; j < (r + 1) * kHidden; ++j)
            want[j] = std::fma(routed.shares[r * kPerRow + slot], all[j], want[j]);
        }
    }
    ASSERT_TRUE(same_bits(got, want)) << dtype_info(e.gate).name;
  }
}

TEST_F(CudaExperts, GiveARowTheSameBitsInAnyCompany) {
  const Routed routed;
  for (const Encodings& e : kEncodings) {
    const Experts experts(e);
    const auto all = run(experts, routed, 0, kRows);
    for (const auto& [first, rows] :
        {std::pair<int64_t, int64_t>{0, 1}, {7, 2}, {20, 5}, {30, 17}, {250, 20}, {3, 256}, {299, 1}}) {
      const auto some = run(experts, routed, first, rows);
      ASSERT_TRUE(stands_at(some, all, first * kHidden)) << dtype_info(e.gate).name << ", " << rows << " rows from " << first;
    }
  }
}

TEST_F(CudaExperts, OfALongPromptHaveTheBitsOfAShortOne) {
  constexpr int64_t kTimes = 8;
  const Routed once;
  Routed all = once;
  for (int64_t i = 1; i < kTimes; ++i)
    append(all.x, once.x), append(all.ids, once.ids), append(all.shares, once.shares), append(all.base, once.base);
  const Experts experts(MXFP4);
  const auto want = run(experts, once, 0, kRows), got = run(experts, all, 0, kTimes * kRows);
  for (int64_t i = 0; i < kTimes; ++i) EXPECT_TRUE(stands_at(want, got, i * kRows * kHidden)) << i;
}

TEST_F(CudaExperts, NoticeOtherExpertsWhereTheirListWas) {
  const Routed routed;
  Experts experts(BF16);
  const auto before = run(experts, routed, 0, 2);
  std::swap(experts.experts[0], experts.experts[1]);
  ExpertTables fresh;
  const auto want = run(fresh, experts, routed, 0, 2);
  EXPECT_NE(before, want);
  EXPECT_EQ(run(experts, routed, 0, 2), want);
}

// Kernels look at the list of experts before the one in front has ended: here each call's is another.
TEST_F(CudaExperts, InOneListHaveTheBitsOfOneCall) {
  const Routed routed;
  for (const Encodings& e : kEncodings) {
    const Experts experts(e);
    const OnDevice device(routed);
    for (int64_t first = 0, rows = 1; first < kRows; first += rows, rows = std::min(rows % 9 + 1, kRows - first))
      enqueue(tables, experts, device, first, rows);
    finish();
    EXPECT_EQ(device.out.get(), run(experts, routed, 0, kRows)) << dtype_info(e.gate).name;
  }
}

TEST_F(CudaExperts, CountWhatTheyRead) {
  const Routed routed;
  const Experts experts({BF16, BF16, Q8_0});
  const uint64_t bytes = experts.experts[0].gate->bytes + experts.experts[0].up->bytes + experts.experts[0].down->bytes;
  uint64_t before = 0;
  for (const int64_t rows : {1, 2, 100}) {
    (void)run(experts, routed, 0, rows);
    std::set<int32_t> read_by(routed.ids.begin(), routed.ids.begin() + rows * kPerRow);
    read_by.erase(-1);
    before += read_by.size();
    const ExpertsRead read = seen.get()[0];
    EXPECT_EQ(read.experts, before);
    EXPECT_EQ(read.bytes, before * bytes);
  }
}

}
}
