// KV memory and its ops on the device against the reference, bit for bit.
#include "backend/cuda/kv_ops.h"

#include "backend/cuda/attention_fixture.h"
#include "backend/cuda/commands_fixture.h"
#include "base/test_results.h"

namespace hunch {
namespace {

using test::KvPair;
using test::KvShape;
using test::view;

const std::vector<KvShape> kShapes{{DType::BF16, 2, 1, 128}, {DType::F16, 3, 1, 64}, {DType::F32, 2, 1, 24},
    {DType::Q8_0, 2, 1, 64}, {DType::BF16, 1, 1, 20}, {DType::F8_E4M3, 2, 1, 64}, {DType::F8_E4M3, 1, 1, 20}};

// Elements of both stores, NaN equal to NaN.
int64_t differences(const KvStore& a, const KvStore& b, View<const int32_t, 1> pages, int64_t len) {
  const size_t dim = a.head_dim;
  std::vector<float> k(dim), v(dim), other_k(dim), other_v(dim);
  int64_t wrong = 0;
  for (int layer = 0; layer < a.layers; ++layer)
    for (int head = 0; head < a.kv_heads; ++head)
      for (int64_t e = 0; e < len; ++e) {
        a.read(layer, head, pages, e, k.data(), v.data()), b.read(layer, head, pages, e, other_k.data(), other_v.data());
        for (size_t d = 0; d < dim; ++d) {
          wrong += !(k[d] == other_k[d] || (std::isnan(k[d]) && std::isnan(other_k[d])));
          wrong += !(v[d] == other_v[d] || (std::isnan(v[d]) && std::isnan(other_v[d])));
        }
      }
  return wrong;
}

using CudaKv = test::CommandsTest<>;

TEST_F(CudaKv, StoresWhatTheReferenceStores) {
  for (const KvShape& shape : kShapes) {
    KvPair kv(*commands, shape, 150);
    auto odd = test::random_floats(size_t(3 * shape.kv_heads * shape.head_dim), 5, 1e3f), small = odd;
    for (float& x : small) x *= 0x1p-120f;
    odd[3] = INFINITY, odd[shape.kv_heads * shape.head_dim] = NAN;
    kv.put(*commands, 0, 62, odd, small);
    EXPECT_EQ(differences(*kv.store, *kv.expected, kv.pages(), 192), 0) << shape.name();
    EXPECT_EQ(kv.store->bytes, kv.expected->bytes);
  }
}

TEST_F(CudaKv, GathersAndMovesBitForBit) {
  for (const KvShape& shape : kShapes)
    for (const bool shared : {false, true})
      for (const bool coded : {false, true}) {
        KvShape to_shape = shape;
        if (coded) to_shape.dtype = DType::Q8_0;
        KvPair kv(*commands, shape, 200), copy(*commands, to_shape, 70);
        Ints list;
        for (int set = 0; set < (shared ? 1 : shape.kv_heads); ++set)
          for (int i = 0; i < 60; ++i) list.push_back(3 * i + set);
        const test::DeviceArray<int32_t> device_list(list);
        const auto view = [&](const int32_t* p) { return View<const int32_t, 2>(p, shared ? 1 : shape.kv_heads, 60); };
        enqueue_gather_kv(*commands, {1, kv.ref(), copy.ref(), view(device_list.data()), 195, 199});
        kv.reference.gather_kv({1, kv.expected_ref(), copy.expected_ref(), view(list.data()), 195, 199});
        ASSERT_TRUE(commands->wait().ok());
        EXPECT_EQ(differences(*copy.store, *copy.expected, copy.pages(), 70), 0) << shape.name();
        const std::vector<int64_t> from{3, 5, 6, 9, 64, 65, 70, 130}, to{3, 4, 5, 6, 7, 8, 65, 70};
        enqueue_move_kv(*commands, {kv.ref(), from, to});
        kv.reference.move_kv({kv.expected_ref(), from, to});
        ASSERT_TRUE(commands->wait().ok());
        EXPECT_EQ(differences(*kv.store, *kv.expected, kv.pages(), 200), 0) << shape.name();
      }
}

TEST_F(CudaKv, ShufflesTheColumnsOfATree) {
  const std::vector<Ints> turns{{0}, {3, 3}, {0, 0, 0}, {0, 1, 2}, {1, 1, 2, 4}, {0, 0, 3, 3, 4}};
  for (const KvShape& shape : kShapes)
    for (const Ints& from : turns) {
      KvPair kv(*commands, shape, 200);
      const test::DeviceArray<int32_t> there(from);
      const Ints lengths{7, 5, 6};
      const int64_t count = std::ssize(from);
      enqueue_shuffle_kv(*commands, {kv.ref(), 57, lengths, view(there, count)});
      kv.reference.shuffle_kv({kv.expected_ref(), 57, lengths, view(from, count)});
      ASSERT_TRUE(commands->wait().ok());
      EXPECT_EQ(differences(*kv.store, *kv.expected, kv.pages(), 200), 0) << shape.name();
    }
}

TEST_F(CudaKv, MakesTheBoundsOfPages) {
  for (const KvShape& shape : kShapes)
    for (const bool means : {false, true}) {
      KvShape bounds = shape;
      bounds.dtype = bounds_dtype(shape.dtype), bounds.head_dim = (means ? 1 : 2) * shape.head_dim;
      KvPair kv(*commands, shape, 200), to(*commands, bounds, 20);
      enqueue_page_bounds(*commands, {1, kv.ref(), to.ref(), 16, 2, 11, means});
      kv.reference.page_bounds({1, kv.expected_ref(), to.expected_ref(), 16, 2, 11, means});
      ASSERT_TRUE(commands->wait().ok());
      const size_t dim = bounds.head_dim;
      std::vector<float> a(dim), b(dim), v(dim);
      for (int head = 0; head < shape.kv_heads; ++head)
        for (int64_t page = 0; page < 20; ++page) {
          to.store->read(1, head, to.pages(), page, a.data(), v.data()),
              to.expected->read(1, head, to.pages(), page, b.data(), v.data());
          for (size_t d = 0; d < dim; ++d)
            if (means && page >= 2 && page < 11) EXPECT_NEAR(a[d], b[d], 0.01 * std::abs(b[d]) + 1e-5) << shape.name();
            else EXPECT_EQ(a[d], b[d]) << shape.name() << " page " << page;
        }
    }
}

}
}
