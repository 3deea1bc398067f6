// Natively trained sparse attention on `cpu`: the reference's values on every instruction set, and a row's bits the same in any
// group, on any number of threads, in a tree. Stores are NaN where nothing was written.
#include "backend/cpu/nsa_fixture.h"

namespace hunch {
namespace {

const std::vector<DType> kTypes{DType::F32, DType::F16, DType::BF16};

std::vector<NsaShape> forms() {
  return {nsa_std(32, 16, 64, 5, 96), nsa_std(8, 4, 16, 6, 24), nsa_std(16, 16, 32, 4, 0), nsa_std(8, 8, 16, 4, 1),
      nsa_std(16, 4, 32, 5, 200, NsaShape::Kind::Linear), nsa_fla(16, 5, 20), nsa_fla(64, 3, 70)};
}

// Positions around every edge of a form, in front of `len`.
Ints edges(const NsaShape& s, int64_t len) {
  Ints out;
  for (const int64_t at : {int64_t(0), int64_t(s.cmp_len), int64_t(s.cmp_len + s.cmp_stride), int64_t(s.sel_block),
           int64_t(s.sel_block) * s.sel_count, int64_t(s.window), int64_t(kPageLen), len / 2, len})
    for (int64_t position = at - 2; position <= at; ++position)
      if (position >= 0 && position < len) out.push_back(int32_t(position));
  std::ranges::sort(out);
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

TEST(CpuNsa, EqualsReference) {
  ReferenceBackend reference;
  int turn = 0;
  for (const NsaShape& form : forms())
    for (const DType dtype : kTypes) {
      const KvShape shape{dtype, 2, 1 + turn % 3, turn % 2 ? 24 : 64};
      const int64_t len = 420 + 37 * (turn++ % 5);
      const NsaCase expected(reference, form, shape, len);
      NsaRequest request = nsa_request(shape, edges(form, len), uint32_t(100 + turn));
      const NsaResult want = nsa_one(expected, request);
      for (const std::string& isa : available_isas()) {
        SCOPED_TRACE(isa + " " + name_of(form) + " " + shape.name());
        const auto cpu = make_cpu(isa, 2);
        const NsaCase c(*cpu, form, shape, len);
        const NsaResult got = nsa_one(c, request);
        EXPECT_EQ(got.chosen, want.chosen);
        NsaRequest told = request;
        told.given = want.chosen;
        // Three branches, each with gates up to 1.
        EXPECT_LE(distance(nsa_one(c, told).out, want.out), 3 * out_tolerance(isa, dtype));
        EXPECT_TRUE(same_bits(nsa_one(c, told).out, got.out));
      }
    }
}

TEST(CpuNsa, GivesARowTheSameBitsInAnyGroupOnAnyNumberOfThreads) {
  int turn = 0;
  for (const std::string& isa : available_isas())
    for (const NsaShape& form : forms()) {
      const KvShape shape{kTypes[turn % 3], 2, 1 + turn % 4, 32};
      ++turn;
      const int64_t len = 500;
      const auto one = make_cpu(isa, 1), three = make_cpu(isa, 3);
      const NsaCase a(*one, form, shape, len), b(*three, form, shape, len);
      Ints last(150);
      std::iota(last.begin(), last.end(), int32_t(len - 150));
      const NsaRequest request = nsa_request(shape, last);
      const NsaResult whole = nsa_one(a, request);
      ASSERT_FALSE(std::isnan(distance(whole.out, whole.out)));
      EXPECT_TRUE(same_bits(nsa_one(b, request).out, whole.out)) << isa << " " << name_of(form);
      for (const size_t group : {1u, 2u, 3u, 8u, 16u, 64u})
        for (size_t first = group == 1 ? 120 : 0; first + group <= last.size(); first += group) {
          const NsaResult part = nsa_one(a, nsa_rows_of(request, first, group, shape));
          ASSERT_TRUE(stands_at(part.out, whole.out, first * shape.width()))
              << isa << " " << name_of(form) << " group " << group << " at " << first;
        }
    }
}

// Rows of two sequences in one pass are those of each alone.
TEST(CpuNsa, KeepsSequencesApart) {
  const NsaShape form = nsa_std(8, 4, 16, 4, 24);
  const KvShape shape{DType::BF16, 2, 2, 32};
  const auto backend = make_cpu("", 2);
  const NsaCase a(*backend, form, shape, 200), b(*backend, form, shape, 77);
  NsaRequest first = nsa_request(shape, {197, 198, 199}, 3), second = nsa_request(shape, {5, 75, 76}, 4);
  for (const bool trees : {false, true}) {
    if (trees) first.parents = {-1, 0, 1}, first.tree_entry = 197;
    if (trees) second.parents = {-1, 0, 0}, second.tree_entry = 74, second.last = {74, 75, 75};
    const auto both = nsa_together({&a, &b}, {first, second});
    EXPECT_TRUE(same_bits(both[0].out, nsa_one(a, first).out));
    EXPECT_TRUE(same_bits(both[1].out, nsa_one(b, second).out));
  }
}

struct TreeCase {
  NsaShape form;
  KvShape shape;
  Ints parents;
  int64_t first_entry = 0;
};

// Every path of a tree against the same tokens as a chain: stored behind each other, their compressed rows made as a pass does.
void expect_chains(Backend& backend, const TreeCase& c, const std::string& where) {
  const int rows = int(c.parents.size());
  SCOPED_TRACE(fmt::format("{} {} at {} rows {}", where, name_of(c.form), c.first_entry, rows));
  NsaCase tree(backend, c.form, c.shape, c.first_entry), chain(backend, c.form, c.shape, c.first_entry);
  Ints last;
  for (int x = 0; x < rows; ++x) {
    store_row(backend, tree.kv, c.first_entry + x, x);
    last.push_back(int32_t(c.first_entry) + int32_t(path_to(c.parents, x).size()) - 1);
  }
  NsaRequest request = nsa_request(c.shape, last, 21);
  request.parents = c.parents, request.tree_entry = c.first_entry;
  const NsaResult whole = nsa_one(tree, request);
  const size_t width = c.shape.width();
  for (int x = 0; x < rows; ++x) {
    if (std::ranges::find(c.parents, x) != c.parents.end()) continue;
    const auto path = path_to(c.parents, x);
    chain.kv.store->poison(chain.kv.pages(), c.first_entry, std::ssize(chain.kv.table) * kPageLen);
    chain.rows->poison(chain.row_pages(), c.form.rows_of(c.first_entry), std::ssize(chain.table) * kPageLen);
    NsaRequest line;
    for (size_t d = 0; d < path.size(); ++d) {
      store_row(backend, chain.kv, c.first_entry + int64_t(d), path[d]);
      const NsaRequest row = nsa_rows_of(request, path[d], 1, c.shape);
      line.last.push_back(row.last[0]);
      append(line.q, row.q), append(line.gates, row.gates);
    }
    chain.compress(c.first_entry, c.first_entry + std::ssize(path));
    const NsaResult expected = nsa_one(chain, line);
    for (size_t d = 0; d < path.size(); ++d)
      ASSERT_TRUE(same_bits(&whole.out[path[d] * width], &expected.out[d * width], width)) << "row " << path[d];
  }
  ASSERT_LE(distance(whole.out, whole.out), 0);
  // A row alone, with NaN in every row that is no ancestor of it.
  const int x = rows - 1;
  poison_beside(tree.kv, c.first_entry, rows, path_to(c.parents, x));
  const NsaResult part = nsa_one(tree, nsa_rows_of(request, size_t(x), 1, c.shape));
  ASSERT_TRUE(stands_at(part.out, whole.out, x * c.shape.width())) << "alone";
}

TEST(CpuNsaTree, GivesARowTheBitsOfItsTokensInAChain) {
  std::mt19937 random(3);
  int turn = 0;
  for (const std::string& isa : available_isas())
    for (const NsaShape& form : forms())
      for (const int64_t first_entry : {0, 3, 15, 31, 60, 63, 64, 127, 250}) {
        const KvShape shape{kTypes[turn % 3], 1 + turn % 2, 1 + turn % 3, 24};
        const auto backend = make_cpu(isa, 1 + turn % 3);
        const double straight = turn++ % 2 ? 0.85 : 0.3;
        expect_chains(*backend, {form, shape, random_tree(2 + int(random() % 40), straight, random), first_entry}, isa);
      }
}

TEST(CpuNsaTree, HoldsOnTheReferenceToo) {
  std::mt19937 random(4);
  ReferenceBackend reference;
  for (const NsaShape& form : {nsa_std(8, 4, 16, 4, 24), nsa_fla(16, 3, 20)})
    for (const int64_t first_entry : {0, 6, 63, 130})
      expect_chains(reference, {form, {DType::BF16, 2, 2, 16}, random_tree(24, 0.6, random), first_entry}, "reference");
}

// More rows than an owner word has bits, more than one page of paths.
TEST(CpuNsaTree, HoldsForTheLargestTrees) {
  std::mt19937 random(5);
  for (const std::string& isa : available_isas()) {
    const auto backend = make_cpu(isa, 2);
    expect_chains(*backend, {nsa_std(4, 1, 16, 6, 40), {DType::BF16, 1, 1, 16}, random_tree(100, 0.98, random), 61}, isa);
    expect_chains(*backend, {nsa_std(8, 4, 16, 6, 40), {DType::F32, 1, 2, 16}, random_tree(110, 0.5, random), 33}, isa);
  }
}

}
}
