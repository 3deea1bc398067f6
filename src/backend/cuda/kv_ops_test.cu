// KV memory and its ops on the device against the reference, bit for bit.
#include "backend/cuda/kv_ops.h"

#include "backend/cuda/attention_fixture.h"
#include "backend/cuda/commands_fixture.h"

namespace hunch {
namespace {

using namespace test;
using enum DType;

const std::vector<KvShape> kShapes{{BF16, 2, 1, 128}, {F16, 3, 1, 64}, {F32, 2, 1, 24}, {Q8_0, 2, 1, 64}, {BF16, 1, 1, 20},
    {F8_E4M3, 2, 1, 64}, {F8_E4M3, 1, 1, 20}};

bool alike(const Floats& a, const Floats& b) {  // NaN equal to NaN
  return std::ranges::equal(a, b, [](float x, float y) { return x == y || (std::isnan(x) && std::isnan(y)); });
}

struct CudaKv : CommandsTest<> {
  // Both stores have the same entries, once all is done.
  void expect_same(const KvPair& kv, int64_t len) {
    finish();
    const KvStore &a = *kv.store, &b = *kv.expected;
    Floats k(a.head_dim), v = k, other_k = k, other_v = k;
    int64_t wrong = 0;
    for (int layer = 0; layer < a.layers; ++layer)
      for (int head = 0; head < a.kv_heads; ++head)
        for (int64_t e = 0; e < len; ++e) {
          a.read(layer, head, kv.pages(), e, k.data(), v.data());
          b.read(layer, head, kv.pages(), e, other_k.data(), other_v.data());
          wrong += !alike(k, other_k) + !alike(v, other_v);
        }
    EXPECT_EQ(wrong, 0) << kv.shape.name();
  }
};

TEST_F(CudaKv, StoresWhatTheReferenceStores) {
  for (const KvShape& shape : kShapes) {
    KvPair kv(*commands, shape, 150);
    auto odd = random_floats(size_t(3 * shape.kv_heads * shape.head_dim), 5, 1e3f), small = odd;
    for (float& x : small) x *= 0x1p-120f;
    odd[3] = INFINITY, odd[shape.kv_heads * shape.head_dim] = NAN;
    kv.put(*commands, 0, 62, odd, small);
    expect_same(kv, 192);
    EXPECT_EQ(kv.store->bytes, kv.expected->bytes);
  }
}

TEST_F(CudaKv, GathersAndMovesBitForBit) {
  for (const KvShape& shape : kShapes)
    for (const bool shared : {false, true})
      for (const bool coded : {false, true}) {
        KvShape to_shape = shape;
        if (coded) to_shape.dtype = Q8_0;
        KvPair kv(*commands, shape, 200), copy(*commands, to_shape, 70);
        const int sets = shared ? 1 : shape.kv_heads;
        Ints list;
        for (int set = 0; set < sets; ++set)
          for (int i = 0; i < 60; ++i) list.push_back(3 * i + set);
        const DeviceArray<int32_t> device_list(list);
        enqueue_gather_kv(*commands, {1, kv.ref(), copy.ref(), view(device_list, sets, 60), 195, 199});
        kv.reference.gather_kv({1, kv.expected_ref(), copy.expected_ref(), view(list, sets, 60), 195, 199});
        expect_same(copy, 70);
        const std::vector<int64_t> from{3, 5, 6, 9, 64, 65, 70, 130}, to{3, 4, 5, 6, 7, 8, 65, 70};
        enqueue_move_kv(*commands, {kv.ref(), from, to});
        kv.reference.move_kv({kv.expected_ref(), from, to});
        expect_same(kv, 200);
      }
}

TEST_F(CudaKv, ShufflesTheColumnsOfATree) {
  const std::vector<Ints> turns{{0}, {3, 3}, {0, 0, 0}, {0, 1, 2}, {1, 1, 2, 4}, {0, 0, 3, 3, 4}};
  for (const KvShape& shape : kShapes)
    for (const Ints& from : turns) {
      KvPair kv(*commands, shape, 200);
      const DeviceArray<int32_t> there(from);
      const Ints lengths{7, 5, 6};
      const int64_t count = std::ssize(from);
      enqueue_shuffle_kv(*commands, {kv.ref(), 57, lengths, view(there, count)});
      kv.reference.shuffle_kv({kv.expected_ref(), 57, lengths, view(from, count)});
      expect_same(kv, 200);
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
      finish();
      Floats a(bounds.head_dim), b = a, v = a;
      for (int head = 0; head < shape.kv_heads; ++head)
        for (int64_t page = 0; page < 20; ++page) {
          to.store->read(1, head, to.pages(), page, a.data(), v.data());
          to.expected->read(1, head, to.pages(), page, b.data(), v.data());
          for (size_t d = 0; d < a.size(); ++d)
            if (means && page >= 2 && page < 11) EXPECT_NEAR(a[d], b[d], 0.01 * std::abs(b[d]) + 1e-5) << shape.name();
            else EXPECT_EQ(a[d], b[d]) << shape.name() << " page " << page;
        }
    }
}

}
}
