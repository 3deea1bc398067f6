// page_bounds on every instruction set and on the reference: the greatest and least key of each page, bit for bit.
#include "backend/cpu/kv_fixture.h"
#include "base/half.h"

namespace hunch {
namespace {

void expect_bounds(Backend& backend, const KvShape& shape, int page_len, const std::string& what) {
  const int64_t len = 700, pages = len / page_len, dim = shape.head_dim;
  const KvCase from(backend, shape, len, 3);  // entries past len are NaN
  KvShape twice = shape;
  twice.head_dim *= 2, twice.dtype = bounds_dtype(shape.dtype);
  KvCase to(backend, twice, 0, 4);
  to.empty(backend, {twice.dtype, twice.layers, twice.kv_heads, twice.head_dim}, 12);
  const int64_t middle = pages / 3;  // in two steps, as sequences grow
  for (const auto& [first, last] : {std::pair<int64_t, int64_t>{0, middle}, {middle, pages}})
    backend.page_bounds(
        {.layer = 1, .from = from.ref(), .to = to.ref(), .page_len = page_len, .first_page = first, .last_page = last});
  Floats k(dim), v(k), greatest, least, bounds(2 * dim), unused(bounds);
  for (int head = 0; head < shape.kv_heads; ++head)
    for (int64_t page = 0; page < pages; ++page) {
      for (int64_t e = page * page_len; e < (page + 1) * page_len; ++e) {
        from.store->read(1, head, from.pages(), e, k.data(), v.data());
        if (e == page * page_len) greatest = least = k;
        for (size_t d = 0; d < size_t(dim); ++d) greatest[d] = std::max(greatest[d], k[d]), least[d] = std::min(least[d], k[d]);
      }
      to.store->read(1, head, to.pages(), page, bounds.data(), unused.data());
      append(greatest, least);
      if (is_coded(shape.dtype))
        for (float& x : greatest) x = bf16_to_f32(f32_to_bf16(x));
      ASSERT_TRUE(same_bits(bounds, greatest)) << what << " " << shape.name() << " pages of " << page_len << ", page " << page;
    }
}

TEST(PageBounds, AreTheGreatestAndLeastKeysOfEachPage) {
  for (DType dtype : kKvTypes)
    for (int head_dim : {24, 40, 64})
      for (int page_len : {1, 8, 16, 24, 64, 100}) {
        const KvShape shape{dtype, 2, 1, head_dim, 2};
        for (const std::string& name : all_backends()) expect_bounds(*make_backend(name, 2), shape, page_len, name);
      }
}

TEST(PageBounds, OrTheMeansOfEachPage) {
  for (DType dtype : kKvTypes)
    for (int page_len : {1, 8, 24, 64, 100}) {
      const KvShape shape{dtype, 2, 1, 40, 2};
      for (const std::string& name : all_backends()) {
        const auto backend = make_backend(name, 2);
        const KvCase from(*backend, shape, 700, 3);
        KvCase to(*backend, {bounds_dtype(dtype), 2, 1, 40, 2}, 0, 4);
        to.empty(*backend, {bounds_dtype(dtype), 2, 2, 40}, 12);
        const int64_t pages = 700 / page_len;
        backend->page_bounds(
            {.layer = 1, .from = from.ref(), .to = to.ref(), .page_len = page_len, .last_page = pages, .means = true});
        Floats k(40), v(k), mean(k);
        for (int head = 0; head < 2; ++head)
          for (int64_t page = 0; page < pages; ++page) {
            std::vector<double> sums(40);
            for (int64_t e = page * page_len; e < (page + 1) * page_len; ++e) {
              from.store->read(1, head, from.pages(), e, k.data(), v.data());
              for (size_t d = 0; d < 40; ++d) sums[d] += double(k[d]) / page_len;
            }
            to.store->read(1, head, to.pages(), page, mean.data(), v.data());
            for (size_t d = 0; d < 40; ++d)
              ASSERT_NEAR(mean[d], sums[d], 0.005 * std::abs(sums[d]) + 1e-4) << name << " " << page_len;
          }
      }
    }
}

// What quest does with them: the key product of [max(q, 0), min(q, 0)] is an upper bound of every key's product with q.
TEST(PageBounds, BoundTheProductsOfTheirKeys) {
  const KvShape shape{DType::F32, 2, 1, 32, 1};
  for (const std::string& isa : available_isas()) {
    const auto cpu = make_cpu(isa, 1);
    const KvCase from(*cpu, shape, 320, 3);
    KvCase to(*cpu, {DType::F32, 2, 1, 64, 1}, 0, 4);
    cpu->page_bounds({.from = from.ref(), .to = to.ref(), .page_len = 16, .first_page = 0, .last_page = 20});
    const auto q = random_queries(shape, 1, 7);
    Floats wide;
    for (int head = 0; head < 2; ++head)
      for (int part = 0; part < 2; ++part)
        for (int d = 0; d < 32; ++d) {
          const float x = q[head * 32 + d];
          wide.push_back(part == 0 ? std::max(x, 0.0f) : std::min(x, 0.0f));
        }
    const uint8_t used = 1;
    Floats bounds(2 * 20), products(2 * 320);
    ScoreArgs args{.metric = ScoreMetric::Logit, .row_used = View<const uint8_t, 1>(&used, 1), .prefix_len = 20};
    args.out = view(bounds, 2, 20);
    cpu->score_keys({.scale = 1, .q = view(wide, 1, 2, 64), .kv = to.ref(), .scores = args});
    args.prefix_len = 320, args.out = view(products, 2, 320);
    cpu->score_keys({.scale = 1, .q = view(q, 1, 2, 32), .kv = from.ref(), .scores = args});
    for (int head = 0; head < 2; ++head)
      for (int page = 0; page < 20; ++page)
        for (int e = 0; e < 16; ++e) ASSERT_GE(bounds[head * 20 + page] + 1e-3f, products[head * 320 + page * 16 + e]) << isa;
  }
}

}
}
