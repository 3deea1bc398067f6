// Copies between views: rows side by side in wider rows, columns of a part in those of the whole. The same on every backend.
#include <numeric>

#include "backend/cpu/test_backends.h"
#include "backend/test_inputs.h"

namespace hunch {
namespace {

// Columns [first, first + count) of rows that lie `stride` apart.
View<float, 2> columns(Floats& values, int64_t stride, int64_t first, int64_t count) {
  return strided(values.data() + first, std::ssize(values) / stride, count, stride);
}

class Copies : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backend, Copies, testing::ValuesIn(all_backends()), backend_name);

TEST_P(Copies, PutRowsSideBySideInWiderRows) {
  const auto backend = make_backend(GetParam(), 2);
  for (const int64_t rows : {1, 3, 40})
    for (const int64_t n : {1, 7, 64, 130}) {
      Floats a(rows * n), b(size_t(rows * (n + 2))), one(n), out(rows * (3 * n + 1), -5.0f);
      std::iota(a.begin(), a.end(), 1.0f), std::iota(b.begin(), b.end(), 20000.0f), std::iota(one.begin(), one.end(), 40000.0f);
      const int64_t width = 3 * n + 1;
      backend->copy_rows({view(a, rows, n), columns(out, width, 0, n)});
      backend->copy_rows({columns(b, n + 2, 1, n), columns(out, width, n, n)});
      backend->copy_rows({view(one, 1, n), columns(out, width, 2 * n, n)});
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_EQ(out[r * width + i], a[r * n + i]);
          ASSERT_EQ(out[r * width + n + i], b[r * (n + 2) + 1 + i]);
          ASSERT_EQ(out[r * width + 2 * n + i], one[i]);
        }
        ASSERT_EQ(out[r * width + 3 * n], -5);  // what lies between the rows stays
      }
    }
}

TEST_P(Copies, TakeTheRowsAndTokensThatAnIndexNames) {
  const auto backend = make_backend(GetParam(), 2);
  Floats from(21), out(16, -5.0f);
  std::iota(from.begin(), from.end(), 1.0f);
  const Ints index{4, 0, 4, 6}, tokens{7, 8, 9, -1};
  const Buffer there = backend->constant_ids(index), ids = backend->constant_ids(tokens);
  backend->copy_rows({view(from, 7, 3), columns(out, 4, 0, 3), there.view<const int32_t>(4)});
  EXPECT_EQ(out, (Floats{13, 14, 15, -5, 1, 2, 3, -5, 13, 14, 15, -5, 19, 20, 21, -5}));
  Ints to(3);
  backend->copy_tokens({ids.view<const int32_t>(4), view(to, 3), Ints{3, 1, 1}});
  EXPECT_EQ(to, (Ints{-1, 8, 8}));
}

TEST_P(Copies, PutTheColumnsOfAPartWhereTheyAreInTheWhole) {
  const auto backend = make_backend(GetParam(), 2);
  const std::vector<Ints> maps = {{}, {0}, {9}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, {2, 3, 7}, {7, -1, 0, 3}};
  for (const Ints& ids : maps)
    for (const int64_t rows : {1, 5}) {
      const int64_t n = std::ssize(ids);
      const Buffer map = backend->constant_ids(ids);
      Floats from(rows * (n + 1)), out(rows * 12, -5.0f);
      std::iota(from.begin(), from.end(), 1.0f);
      backend->scatter_columns({columns(from, n + 1, 0, n), map.view<const int32_t>(n), columns(out, 12, 0, 10)});
      for (int64_t r = 0; r < rows; ++r) {
        Floats expected(12, -5.0f);  // what the map does not name stays
        for (int64_t i = 0; i < n; ++i)
          if (ids[i] >= 0) expected[ids[i]] = from[r * (n + 1) + i];
        ASSERT_EQ(part_of(out, r * 12, 12), expected) << n << " columns, row " << r;
      }
    }
}

TEST(CopiesDeathTest, RefuseAMapThatLeavesTheRow) {
  ReferenceBackend backend;
  Floats from(2), out(4);
  for (const Ints& ids : {Ints{1, 4}, {-2, 0}})
    EXPECT_DEATH(backend.scatter_columns({view(from, 1, 2), view(ids, 2), view(out, 1, 4)}), "map");
}

}
}
