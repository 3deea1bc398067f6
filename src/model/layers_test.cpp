// Rows that are only stored leave in the cache what rows that attend leave there, to the bit.
#include "model/layers.h"

#include "backend/test_inputs.h"
#include "kv/page_pool.h"

namespace hunch {
namespace {

constexpr int64_t kRows = 5, kFirst = 62, kHidden = 24;

ModelShape shape_of(bool latent) {
  ModelShape s{.vocab_size = 8, .hidden = kHidden, .ffn = 8, .layers = 1, .heads = 4, .kv_heads = latent ? 1 : 2, .head_dim = 16};
  s.rope_dim = latent ? 4 : 16;
  if (latent) s.latent = {.kv_rank = 12, .nope = 8, .rope = 4, .value = 6, .scale = 0.3};
  return s;
}

// K and V of the rows; `attends`: by attend().
std::vector<float> stored(bool latent, bool attends) {
  const auto backend = Register<Backend>::find("reference")->make({}).value();
  const ModelShape s = shape_of(latent);
  uint64_t seed = 0;
  const auto matrix = [&](int64_t out, int64_t in) { return backend->random_weight(DType::F32, out, in, ++seed); };
  AttentionWeights w;
  w.o = matrix(kHidden, s.attended());
  if (latent) {
    w.latent = std::make_unique<LatentWeights>();
    w.latent->shape = s.latent;
    w.latent->q = matrix(s.heads * 12, kHidden), w.latent->kv_down = matrix(16, kHidden);
    for (int head = 0; head < s.heads; ++head) w.latent->key.push_back(matrix(12, 8)), w.latent->value.push_back(matrix(6, 12));
    w.latent->kv_norm = backend->constant(std::vector<float>(12, 1.5f));
  } else {
    w.q = matrix(64, kHidden), w.k = matrix(32, kHidden), w.v = matrix(32, kHidden);
    w.k_bias = backend->constant(std::vector<float>(32, 0.5f)), w.v_bias = backend->constant(std::vector<float>(32, -0.5f));
    w.k_norm = backend->constant(std::vector<float>(16, 1.25f));
  }
  PagePool pool(4);
  Sequence sequence;
  sequence.tokens.assign(kFirst + kRows, 1), sequence.committed_len = kFirst, sequence.pages = PageTable(128);
  EXPECT_TRUE(sequence.pages.grow_to(kFirst + kRows, pool));
  const auto store = backend->make_kv_store({DType::F32, 1, s.kv_heads, s.head_dim}, 4);
  Pass pass(*backend, s, *store, {.max_rows = int(kRows)});
  const Segment segment{.sequence = &sequence, .first_position = kFirst, .num_rows = int(kRows)};
  const Ints ids(kRows, 1);
  pass.begin(View<const int32_t, 1>(ids.data(), kRows), std::span(&segment, 1));
  const auto in = test::gaussian(kRows * kHidden);
  std::vector<float> x(in.size()), k(16), v(16), out;
  BlockScratch scratch(pass.arena(), s, kRows);
  RopeTable(*backend, s).angles(pass, scratch);
  const View<const float, 2> rows(in.data(), kRows, kHidden);
  if (attends) attend(pass, 0, s, w, scratch, rows, View<float, 2>(x.data(), kRows, kHidden));
  else store_rows(pass, 0, s, w, scratch, rows);
  for (int64_t entry = kFirst; entry < kFirst + kRows; ++entry)
    for (int head = 0; head < s.kv_heads; ++head) {
      store->read(0, head, sequence.pages.view(), entry, k.data(), v.data());
      out.insert(out.end(), k.begin(), k.end()), out.insert(out.end(), v.begin(), v.end());
    }
  return out;
}

TEST(StoredRows, AreThoseOfAttention) {
  for (const bool latent : {false, true}) EXPECT_EQ(stored(latent, false), stored(latent, true)) << latent;
}

}
}
