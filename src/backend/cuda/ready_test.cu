// Heads made ready, stored and copied in one launch: the reference's numbers, and in the caches exactly what the launch left.
#include "backend/cuda/ready.h"

#include "backend/cuda/attention_fixture.h"
#include "backend/cuda/commands_fixture.h"

namespace hunch {
namespace {

using namespace test;
using enum DType;

using CudaReady = CommandsTest<>;

TEST_F(CudaReady, TurnsStoresAndCopiesInOneLaunch) {
  hunch::CudaReady ready;
  const int64_t rows = 6;
  struct Form {
    KvShape shape;
    int64_t half;
    bool norms;
    RopePairs pairs;
  };
  const std::vector<Form> forms{{{BF16, 2, 4, 128}, 64, true, RopePairs::Halves},
      {{F32, 3, 1, 80}, 20, true, RopePairs::Neighbours}, {{F32, 1, 2, 64}, 32, false, RopePairs::Halves},
      {{F32, 2, 1, 256}, 128, true, RopePairs::Halves}};
  for (const Form& form : forms) {
    const KvShape& shape = form.shape;
    const int64_t dim = shape.head_dim, width = shape.kv_heads * dim;
    auto q = random_floats(rows * shape.heads() * dim, 1), k = random_floats(rows * width, 2);
    const auto v = random_floats(rows * width, 3), weight = random_floats(dim, 4);
    const auto angles = random_floats(rows * form.half * 2, 5), line = random_floats(33, 6);
    const DeviceArray<float> on_q(q), on_k(k), on_v(v), on_weight(weight), on_angles(angles), on_line(line), copied(66);
    const auto args = [&](auto& q_at, auto& k_at, const auto& w, const auto& a) {
      ReadyHeadsArgs ready{view(q_at, rows, shape.heads(), dim), view(k_at, rows, shape.kv_heads, dim)};
      if (form.norms) ready.q_norm = ready.k_norm = w.data();
      ready.cos_sin = view(a, rows, form.half, 2), ready.pairs = form.pairs;
      return ready;
    };
    // Two sequences, and the second's rows once more in another cache: what does not go along follows.
    KvPair first(*commands, shape, 70), second(*commands, shape, 70), third(*commands, shape, 70);
    const auto store = [&](const KvPair& to, int64_t row, int64_t count, int64_t entry) {
      const auto rows_of = [&](const DeviceArray<float>& all) { return view(all, rows, shape.kv_heads, dim).slice(row, count); };
      return StoreKvArgs{.layer = 1, .k = rows_of(on_k), .v = rows_of(on_v), .kv = to.ref(), .first_entry = entry};
    };
    const std::vector<StoreKvArgs> stores{store(first, 0, 4, 62), store(second, 4, 2, 3), store(third, 4, 2, 64)};
    const CopyRowsArgs copy{.from = view(on_line, 1, 33), .to = view(copied, 2, 33)};
    EXPECT_TRUE(commands->settled());
    ready.enqueue(*commands, args(on_q, on_k, on_weight, on_angles), std::span(stores).first(2), std::span(&copy, 1));
    EXPECT_TRUE(commands->settled());  // but for the rows of the pass
    enqueue_store_kv(*commands, stores[2]);
    EXPECT_FALSE(commands->settled());
    finish();
    EXPECT_TRUE(commands->settled());

    reference.ready_heads(args(q, k, weight, angles));
    const Floats got_q = on_q.get(), got_k = on_k.get(), got = copied.get();
    for (size_t i = 0; i < q.size(); ++i) ASSERT_NEAR(got_q[i], q[i], 1e-5 * (1 + std::abs(q[i])));
    for (size_t i = 0; i < k.size(); ++i) ASSERT_NEAR(got_k[i], k[i], 1e-5 * (1 + std::abs(k[i])));
    for (size_t i = 0; i < 66; ++i) ASSERT_EQ(got[i], line[i % 33]);
    Floats k_row(dim), v_row = k_row;
    for (const StoreKvArgs& call : stores)
      for (int64_t row = 0; row < call.k.extent[0]; ++row)
        for (int head = 0; head < shape.kv_heads; ++head) {
          call.kv.store->read(1, head, call.kv.pages, call.first_entry + row, k_row.data(), v_row.data());
          for (int64_t d = 0; d < dim; ++d) {
            const size_t at = size_t(call.k.data - on_k.data() + row * width + head * dim + d);
            const auto stored = [&](float x) { return shape.dtype == BF16 ? bf16_to_f32(f32_to_bf16(x)) : x; };
            ASSERT_EQ(k_row[d], stored(got_k[at])) << shape.name();
            ASSERT_EQ(v_row[d], stored(v[at])) << shape.name();
          }
        }
  }
}

}
}
