// gather_kv on every instruction set: the compact store reads as the entries that were chosen.

#include "backend/cpu/kv_fixture.h"

namespace hunch {
namespace {

// For each of the sets `count` entries of n, in runs.
Ints random_lists(int sets, int64_t n, int64_t count, int64_t run_len, std::mt19937& random) {
  Ints lists;
  for (int set = 0; set < sets; ++set) {
    std::vector<uint8_t> chosen(n, 0);
    for (int64_t left = count; left > 0;) {
      const int64_t start = int64_t(random() % uint32_t(n));
      for (int64_t e = start; e < std::min(n, start + 1 + int64_t(random() % uint32_t(run_len))) && left > 0; ++e)
        if (!chosen[e]) chosen[e] = 1, --left;
    }
    for (int64_t e = 0; e < n; ++e)
      if (chosen[e]) lists.push_back(int32_t(e));
  }
  return lists;
}

TEST(CpuGather, CopiesTheChosenEntriesThenTheTail) {
  std::mt19937 random(5);
  for (const auto& [isa, dtype] : every_store())
    for (bool shared : {false, true})
      for (const auto& [count, run_len, tail] : {
               std::array<int64_t, 3>{1, 1, 0},
               {5, 1, 7},
               {63, 3, 1},
               {64, 20, 64},
               {300, 9, 33},
               {700, 1, 20},
               {0, 1, 90},
               {900, 900, 100},
           }) {
        const KvShape shape{dtype, 2, 1, 40, 2};
        const auto cpu = make_cpu(isa, 2);
        const KvCase from(*cpu, shape, 1000, 3);
        KvCase to(*cpu, shape, 0, 4);
        to.empty(*cpu, geometry_of(shape), 20);
        const int sets = shared ? 1 : 2;
        const Ints lists = random_lists(sets, 900, count, run_len, random);
        for (int layer = 0; layer < 2; ++layer)
          cpu->gather_kv({layer, from.ref(), to.ref(), view(lists, sets, count), 900, 900 + tail});
        const auto source = [&](int head, int64_t i) {
          return i < count ? lists[(shared ? 0 : head) * count + i] : 900 + i - count;
        };
        expect_entries(to, 0, count + tail, from, source, fmt::format("{} count {} tail {}", isa, count, tail));
      }
}

// The bytes of a copy in 8 bits are those of storing what the source reads.
TEST(CpuGather, CodesACopyAsStoringItWould) {
  std::mt19937 random(6);
  for (const std::string& isa : available_isas())
    for (DType dtype : {DType::F32, DType::F16, DType::BF16, DType::I16, DType::F8_E4M3})
      for (bool shared : {false, true})
        for (const auto& [count, run_len, tail] :
            {std::array<int64_t, 3>{1, 1, 0}, {5, 1, 7}, {64, 20, 63}, {300, 9, 33}, {700, 1, 20}}) {
          const KvShape shape{dtype, 2, 1, 40, 2}, coded{DType::Q8_0, 2, 1, 40, 2};
          const auto cpu = make_cpu(isa, 2);
          ReferenceBackend reference;
          const KvCase from(*cpu, shape, 1000, 3), same(reference, shape, 1000, 3);
          KvCase to(*cpu, coded, count + tail, 4), expected(reference, coded, count + tail, 4);
          to.store->poison(to.pages(), 0, count + tail);
          const int sets = shared ? 1 : 2;
          const Ints lists = random_lists(sets, 900, count, run_len, random);
          for (int layer = 0; layer < 2; ++layer) {
            GatherKvArgs args{layer, from.ref(), to.ref(), view(lists, sets, count), 900, 900 + tail};
            cpu->gather_kv(args);
            args.from = same.ref(), args.to = expected.ref();
            reference.gather_kv(args);
          }
          expect_entries(to, 0, count + tail, expected, fmt::format("{} of {} count {}", isa, dtype_info(dtype).name, count));
          const AttendRequest request = chunk(coded, count + tail - 1, 1);  // no byte of padding is left to chance
          EXPECT_LE(distance(attend_one(*cpu, to, request, 1).out, attend_one(reference, expected, request, 1).out),
              out_tolerance(isa, DType::Q8_0));
        }
}

// What draft steps do: attention over the gathered entries equals attention over a sequence that holds only them.
TEST(CpuGather, LeavesAStoreThatAttentionReadsAsAnyOther) {
  for (const auto& [isa, dtype] : every_store()) {
    const KvShape shape{dtype, 1, 2, 24};
    const auto cpu = make_cpu(isa, 2);
    const KvCase from(*cpu, shape, 500, 3), all(*cpu, shape, 200, 8);
    KvCase to(*cpu, shape, 500, 6);
    to.store->poison(to.pages(), 0, 500);
    Ints list(190);
    for (int i = 0; i < 190; ++i) list[i] = 2 * i + i / 7;
    cpu->gather_kv({0, from.ref(), to.ref(), view(list, 1, 190), 490, 500});
    Floats k(24), v(24);
    for (int64_t i = 0; i < 200; ++i) {
      from.store->read(0, 0, from.pages(), i < 190 ? list[i] : 300 + i, k.data(), v.data());
      cpu->store_kv({0, view(k, 1, 1, 24), view(v, 1, 1, 24), all.ref(), i});
    }
    const AttendRequest request = chunk(shape, 199, 1);
    EXPECT_TRUE(same_bits(attend_one(*cpu, to, request).out, attend_one(*cpu, all, request).out)) << isa << " " << shape.name();
  }
}

TEST(CpuShuffle, PutsBranchesIntoTheirColumns) {
  for (const std::string& name : all_backends())
    for (const DType dtype : kKvTypes)
      for (const Ints& from : {Ints{0}, {4}, {0, 0, 1, 2}, {0, 1, 2}, {1, 1, 2, 4}, {0, 0, 3, 3, 4}, {2, 3, 4, 4, 4}}) {
        const KvShape shape{dtype, 2, 1, 40, 2};
        const auto backend = make_backend(name);
        const KvCase before(*backend, shape, 100, 3);
        KvCase after(*backend, shape, 100, 3);
        const Ints lengths{7, 5, 6};
        const int64_t count = std::ssize(from);
        backend->shuffle_kv({after.ref(), 57, lengths, view(from, count)});
        std::vector<int64_t> source(100);
        std::iota(source.begin(), source.end(), 0);
        for (int64_t i = 0; i < count; ++i)
          for (const int64_t first : {57, 64, 69}) source[first + i] = first + from[i];
        expect_entries(
            after, 0, 100, before, [&](int, int64_t e) { return source[e]; }, name);
      }
}

}
}
