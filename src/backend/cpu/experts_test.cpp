// Experts on every instruction set: near the plain loops, and a row's bits the same in any company.
#include "backend/cpu/experts.h"

#include <map>
#include <numeric>
#include <set>

#include "backend/cpu/test_backends.h"
#include "backend/test_inputs.h"

namespace hunch {
namespace {

constexpr int64_t kHidden = 256, kWidth = 96, kExperts = 11, kPerRow = 4, kRows = 70;

// The same experts on one backend.
struct Experts {
  Experts(Backend& backend, DType dtype) {
    for (int64_t e = 0; e < kExperts; ++e)
      experts.push_back({
          load(backend, dtype, kWidth, kHidden, uint32_t(3 * e)),
          load(backend, dtype, kWidth, kHidden, uint32_t(3 * e + 1)),
          load(backend, dtype, kHidden, kWidth, uint32_t(3 * e + 2)),
      });
  }
  const Weight* load(Backend& backend, DType dtype, int64_t rows, int64_t columns, uint32_t seed) {
    static std::map<std::pair<DType, uint32_t>, std::vector<std::byte>> drawn;  // drawing them is most of the work
    auto& bytes = drawn[{dtype, seed}];
    if (bytes.empty()) {
      const auto values = gaussian(rows * columns, 100 + seed, 1 / std::sqrt(float(columns)));
      bytes.resize(dtype_bytes(dtype, values.size()));
      quantise_row(dtype, values.data(), bytes.data(), std::ssize(values));
    }
    const Tensor tensor{.dtype = dtype, .shape = {rows, columns}, .data = bytes.data(), .bytes = bytes.size()};
    return owned.emplace_back(backend.load_weight(tensor)).get();
  }
  // As gpt-oss has them: biases of every product, gates that some values are past the limit of.
  void add_biases() {
    biases = gaussian(kExperts * (2 * kWidth + kHidden), 77);
    clamp = {0.5f, 1.702f};
    for (int64_t e = 0; e < kExperts; ++e) {
      const float* own = biases.data() + e * (2 * kWidth + kHidden);
      Expert& expert = experts[e];
      expert.gate_bias = own, expert.up_bias = own + kWidth, expert.down_bias = own + 2 * kWidth;
    }
  }
  std::vector<std::unique_ptr<Weight>> owned;
  std::vector<Expert> experts;
  Floats biases;
  GateClamp clamp;
};

// Which experts the rows go to; expert 5 gets none, expert 0 nearly all.
struct Route {
  Route() : ids(kRows * kPerRow), shares(gaussian(kRows * kPerRow, 7, 0.8f)) {
    const auto draws = gaussian(kRows * kExperts, 8);
    for (int64_t r = 0; r < kRows; ++r) {
      std::set<int32_t> chosen;
      if (r % 8) chosen.insert(0);
      for (int64_t i = 0; std::ssize(chosen) < kPerRow; ++i) {
        const int32_t id = int32_t(std::abs(draws[r * kExperts + i % kExperts]) * 1000 + float(i)) % kExperts;
        if (id != 5) chosen.insert(id);
      }
      std::ranges::copy(chosen, ids.begin() + r * kPerRow);
    }
  }
  Ints ids;
  Floats shares;
};

// `rows` in this order, each onto what stands in `base`.
Floats run(Backend& backend, const Experts& experts, const Route& route, const std::vector<int64_t>& rows) {
  static const auto all_x = gaussian(kRows * kHidden, 1), base = gaussian(kRows * kHidden, 2);
  const int64_t n = std::ssize(rows);
  Floats x, out, shares, gate(n * kWidth), up = gate, gathered(n * kHidden), product = gathered;
  Ints ids;
  for (const int64_t r : rows) {
    append(x, part_of(all_x, r * kHidden, kHidden)), append(out, part_of(base, r * kHidden, kHidden));
    append(ids, part_of(route.ids, r * kPerRow, kPerRow)), append(shares, part_of(route.shares, r * kPerRow, kPerRow));
  }
  backend.experts({
      .x = view(x, n, kHidden),
      .ids = view(ids, n, kPerRow),
      .shares = view(shares, n, kPerRow),
      .experts = experts.experts,
      .clamp = experts.clamp,
      .out = view(out, n, kHidden),
      .gate = view(gate, n, kWidth),
      .up = view(up, n, kWidth),
      .gathered = view(gathered, n, kHidden),
      .product = view(product, n, kHidden),
  });
  return out;
}

std::vector<int64_t> range(int64_t first, int64_t count) {
  std::vector<int64_t> out(count);
  std::iota(out.begin(), out.end(), first);
  return out;
}

constexpr DType kTypes[] = {DType::F32, DType::BF16, DType::F16, DType::Q8_0, DType::Q4_0, DType::MXFP4};

TEST(CpuExperts, AreNearThePlainLoopsAndReadTheSameExperts) {
  const Route route;
  for (const DType dtype : kTypes) {
    ReferenceBackend reference;
    Experts exact(reference, dtype);
    const bool biases = dtype == DType::MXFP4 || dtype == DType::BF16;
    if (biases) exact.add_biases();
    for (const std::string& isa : available_isas()) {
      const auto cpu = make_cpu(isa, 2);
      Experts experts(*cpu, dtype);
      if (biases) experts.add_biases();
      for (const int64_t count : {int64_t(1), int64_t(2), int64_t(9), kRows}) {
        const uint64_t before = cpu->counters().experts_read, before_exact = reference.counters().experts_read;
        const auto got = run(*cpu, experts, route, range(0, count)), want = run(reference, exact, route, range(0, count));
        // Weights in blocks meet activations rounded to 8 bits.
        const double allowed = dtype_info(dtype).block > 1 ? 0.1 : 2e-5;
        for (size_t i = 0; i < got.size(); ++i)
          ASSERT_NEAR(got[i], want[i], allowed) << isa << " " << dtype_info(dtype).name << " " << count << " rows, element " << i;
        const std::set<int32_t> distinct(route.ids.begin(), route.ids.begin() + count * kPerRow);
        EXPECT_EQ(cpu->counters().experts_read - before, distinct.size());
        EXPECT_EQ(reference.counters().experts_read - before_exact, distinct.size());
      }
    }
  }
}

TEST(CpuExperts, APlaceWithoutAnExpertAddsNothing) {
  Route silent, none;
  for (size_t i = 0; i < none.ids.size(); i += 3) silent.shares[i] = none.shares[i] = 0, none.ids[i] = -1;
  ReferenceBackend reference;
  const auto cpu = make_cpu("", 2);
  for (Backend* backend : {static_cast<Backend*>(&reference), static_cast<Backend*>(cpu.get())}) {
    const Experts experts(*backend, DType::F32);
    EXPECT_EQ(run(*backend, experts, none, range(0, kRows)), run(*backend, experts, silent, range(0, kRows)));
  }
}

TEST(CpuExperts, GiveARowTheSameBitsInAnyCompany) {
  const Route route;
  for (const std::string& name : all_backends())
    for (const DType dtype : kTypes) {
      Floats whole;
      for (const int threads : {1, 3}) {
        const auto backend = make_backend(name, threads);
        Experts experts(*backend, dtype);
        if (dtype == DType::MXFP4) experts.add_biases();
        const auto all = run(*backend, experts, route, range(0, kRows));
        if (whole.empty()) whole = all;
        ASSERT_TRUE(same_bits(all, whole)) << name << " " << threads << " threads";
        std::vector<std::vector<int64_t>> companies{range(0, 1), range(7, 2), range(20, 5), range(30, 17), {69, 3, 41, 8}};
        for (int64_t r = 1; r < 12; ++r) companies.push_back({r});
        for (const auto& rows : companies) {
          const auto got = run(*backend, experts, route, rows);
          for (size_t i = 0; i < rows.size(); ++i)
            ASSERT_TRUE(stands_at(part_of(got, int64_t(i) * kHidden, kHidden), whole, rows[i] * kHidden))
                << name << " " << dtype_info(dtype).name << " row " << rows[i] << " of " << rows.size();
        }
      }
    }
}

}
}
