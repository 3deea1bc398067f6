// Copies on the device: rows side by side in wider rows, columns of a part in those of the whole.
#include "backend/cuda/small.h"

#include <numeric>

#include "backend/cuda/commands_fixture.h"

namespace hunch {
namespace {

using namespace test;

using CudaCopies = CommandsTest<>;

TEST_F(CudaCopies, PutRowsSideBySideInWiderRows) {
  for (const int64_t rows : {1, 3, 40})
    for (const int64_t n : {1, 7, 130, 4096}) {
      const int64_t width = 3 * n + 1;
      Floats a(rows * n), b(rows * (n + 2)), one(n);
      std::iota(a.begin(), a.end(), 1.0f), std::iota(b.begin(), b.end(), 20000.0f), std::iota(one.begin(), one.end(), 40000.0f);
      const DeviceArray<float> from_a(a), from_b(b), from_one(one), to(Floats(rows * width, -5.0f));
      const std::vector<CopyRowsArgs> calls{{view(from_a, rows, n), strided(to.data(), rows, n, width)},
          {strided<const float>(from_b.data() + 1, rows, n, n + 2), strided(to.data() + n, rows, n, width)},
          {view(from_one, 1, n), strided(to.data() + 2 * n, rows, n, width)}};
      enqueue_copy_rows(*commands, calls);
      finish();
      const auto out = to.get();
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_EQ(out[r * width + i], a[r * n + i]);
          ASSERT_EQ(out[r * width + n + i], b[r * (n + 2) + 1 + i]);
          ASSERT_EQ(out[r * width + 2 * n + i], one[i]);
        }
        ASSERT_EQ(out[r * width + 3 * n], -5);
      }
    }
}

TEST_F(CudaCopies, TakeTheRowsAndTokensThatAnIndexNames) {
  Floats from(7 * 600);
  std::iota(from.begin(), from.end(), 1.0f);
  const Ints index{4, 0, 4, 6}, tokens{7, 8, 9, -1};
  const DeviceArray<float> x(from), to(Floats(4 * 600));
  const DeviceArray<int32_t> there(index), ids(tokens), chosen(Ints(3)), first(2);
  const Ints places{3, 1, 1};
  const CopyRowsArgs copy{view(x, 7, 600), view(to, 4, 600), view(there, 4)};
  enqueue_copy_rows(*commands, std::span(&copy, 1));
  const View<const int32_t, 1> all(ids.data(), 4);
  const CopyTokensArgs copies[] = {{all, view(chosen, 3), places}, {all.slice(2, 2), view(first, 2)}};
  enqueue_copy_tokens(*commands, copies);
  finish();
  const auto out = to.get();
  for (size_t r = 0; r < 4; ++r)
    for (size_t i = 0; i < 600; ++i) ASSERT_EQ(out[r * 600 + i], from[size_t(index[r]) * 600 + i]);
  EXPECT_EQ(chosen.get(), (Ints{-1, 8, 8}));
  EXPECT_EQ(first.get(), (Ints{9, -1}));
}

TEST_F(CudaCopies, PutTheColumnsOfAPartWhereTheyAreInTheWhole) {
  for (const int64_t whole : {10, 3000, 151936})
    for (const int64_t step : {1, 3, 7})
      for (const int64_t rows : {1, 5}) {
        Ints ids;
        for (int64_t id = step - 1; id < whole; id += step) ids.push_back(int32_t(id));
        const int64_t n = std::ssize(ids), width = whole + 2;
        Floats from(rows * n), expected(rows * width, -5.0f);
        std::iota(from.begin(), from.end(), 1.0f);
        const DeviceArray<float> x(from), to(expected);
        const DeviceArray<int32_t> map(ids);
        enqueue_scatter_columns(*commands, {view(x, rows, n), view(map, n), strided(to.data(), rows, whole, width)});
        finish();
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t i = 0; i < n; ++i) expected[r * width + ids[i]] = from[r * n + i];
        ASSERT_EQ(to.get(), expected) << "every " << step << " of " << whole << ", rows " << rows;
      }
}

}
}
