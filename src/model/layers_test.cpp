// Rows that are only stored leave in the cache what rows that attend leave there, to the bit.
#include "model/layers.h"

#include <map>
#include <numeric>

#include "backend/test_inputs.h"
#include "checkpoint/model_info.h"
#include "checkpoint/test_configs.h"
#include "model/decoder.h"
#include "tensor/test_view.h"

namespace hunch {
namespace {

using namespace test;

constexpr int64_t kRows = 5, kFirst = 62, kHidden = 24;

auto reference() { return Register<Backend>::find("reference")->make({}).value(); }

ModelShape shape_of(bool latent) {
  ModelShape s{.vocab_size = 8, .hidden = kHidden, .ffn = 8, .layers = 1, .heads = 4, .kv_heads = latent ? 1 : 2, .head_dim = 16};
  s.rope_dim = latent ? 4 : 16;
  if (latent) s.latent = {.kv_rank = 12, .nope = 8, .rope = 4, .value = 6, .scale = 0.3};
  return s;
}

// The last rows of a sequence in a pass.
struct Rig {
  Rig(Backend& backend, const ModelShape& s)
      : store(backend.make_kv_store({DType::F32, 1, s.kv_heads, s.head_dim}, 2)),
        pass(backend, s, *store, {.max_rows = int(kRows), .max_segments = 2}) {
    sequence.pages = PageTable(128);
    EXPECT_TRUE(sequence.pages.grow_to(kFirst + kRows, pool));
  }
  void begin() { pass.begin(view(ids), std::span(&segment, 1)); }

  PagePool pool{2};
  Sequence sequence;
  std::unique_ptr<KvStore> store;
  Pass pass;
  Segment segment{.sequence = &sequence, .first_position = kFirst, .num_rows = int(kRows)};
  const Ints ids = Ints(kRows, 1);
};

// K and V of the rows; `attends`: by attend().
std::vector<float> stored(bool latent, bool attends) {
  const auto backend = reference();
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
  Rig rig(*backend, s);
  Pass& pass = rig.pass;
  rig.begin();
  const auto in = gaussian(kRows * kHidden);
  std::vector<float> x(in.size()), k(16), v(16), out;
  BlockScratch scratch(pass.arena(), s, kRows);
  RopeTable(*backend, s).angles(pass, scratch);
  const View<const float, 2> rows(in.data(), kRows, kHidden);
  if (attends) attend(pass, 0, s, w, scratch, rows, View<float, 2>(x.data(), kRows, kHidden));
  else store_rows(pass, 0, s, w, scratch, rows);
  for (int64_t entry = kFirst; entry < kFirst + kRows; ++entry)
    for (int head = 0; head < s.kv_heads; ++head) {
      rig.store->read(0, head, rig.sequence.pages.view(), entry, k.data(), v.data());
      out.insert(out.end(), k.begin(), k.end()), out.insert(out.end(), v.begin(), v.end());
    }
  return out;
}

TEST(StoredRows, AreThoseOfAttention) {
  for (const bool latent : {false, true}) EXPECT_EQ(stored(latent, false), stored(latent, true)) << latent;
}

struct Listener final : SparsePolicy {
  ScoreRequest scores(int, const PassInfo& info) override {
    used.assign(info.num_rows, 0), used[info.num_rows - 2] = 1;
    return {.metric = ScoreMetric::Logit, .row_used = view(used), .out = view(out, 2, 128)};
  }
  void learn(int, const PassInfo&, const Observation& seen) override {
    lse.assign(seen.lse.data, seen.lse.data + seen.lse.size());
  }
  std::vector<uint8_t> used;
  std::vector<float> lse, out = std::vector<float>(256);
};

TEST(Pass, SpeaksOfTheRowsThatCount) {
  const auto backend = reference();
  const ModelShape s = shape_of(false);
  Rig rig(*backend, s);
  const auto q = gaussian(kRows * 64), k = gaussian((kFirst + kRows) * 32);
  const auto keys = view(k, kFirst + kRows, 2, 16), own = keys.slice(kFirst, kRows);
  backend->store_kv({.k = keys, .v = keys, .kv = {rig.store.get(), rig.sequence.pages.view()}});
  std::vector<float> out(q.size());
  Listener all, end;
  rig.segment.phase = Segment::Phase::Prefill;
  for (Listener* policy : {&all, &end}) {
    rig.segment.policy = policy, rig.segment.selecting_rows = policy == &all ? int(kRows) : 2;
    rig.begin();
    rig.pass.attend(0, {.q = view(q, kRows, 4, 16), .k = own, .v = own, .out = view(out, kRows, 4, 16)});
  }
  EXPECT_TRUE(std::ranges::equal(end.lse, std::span(all.lse).last(8)));
  EXPECT_TRUE(std::equal(&all.out[0], &all.out[kFirst], &end.out[0]));
  SparseCheck check({.backend = backend.get(), .options = {.thresholds = {1}}});
  const Segment two[] = {{.sequence = &rig.sequence, .num_rows = 2, .check = &check}, {.sequence = &rig.sequence, .num_rows = 3}};
  rig.pass.begin(view(rig.ids), two);
  EXPECT_EQ(rig.pass.parts().back().check, nullptr);
}

TEST(Decoder, HasItsFamilysFormAndKnowsWhatARowReads) {
  const auto backend = reference();
  const auto made = [&](const char* family, bool tied, const Decoder::Form& form) -> std::string {
    const tiny::Bytes file = tiny::safetensors(tiny::folder_tensors(family));
    const auto checkpoint = good(opened(file, with(tiny::config(family), "tie_word_embeddings", tied)));
    auto model = Decoder::make({.backend = backend.get(), .checkpoint = checkpoint.get()}, form);
    if (!model.ok()) return model.error().message;
    size_t matrices = describe(*checkpoint).weight_bytes_per_token;
    for (const Tensor& tensor : checkpoint->tensors()) matrices -= tensor.shape.size() == 1 ? tensor.bytes : 0;
    EXPECT_EQ((*model)->weight_bytes(), matrices) << family;
    return "";
  };
  for (const bool tied : {false, true}) EXPECT_EQ(made("qwen3_moe", tied, {.qk_norm = true}), "");
  expect_part(made("llama", false, {.qk_norm = true}), "the file lacks q/k norm weights");
  expect_part(made("qwen3", false, {}), "the file has q/k norm weights");
  expect_part(made("qwen2", false, {}), "biases are not part of this family");
}

TEST(WeightLoader, TakesEachHeadsPart) {
  const auto backend = reference();
  std::vector<float> up(64);
  std::iota(up.begin(), up.end(), 0.0f);
  const auto* data = reinterpret_cast<const std::byte*>(up.data());
  std::map<std::string, Tensor> tensors;
  const auto put = [&](const std::string& name, tiny::Shape shape) {
    const size_t bytes = 4 * tiny::elements(shape);
    tensors["blk.0." + name + ".weight"] = {name, DType::F32, std::move(shape), data, bytes};
  };
  WeightLoader load(*backend, [&](const std::string& name) { return tensors.contains(name) ? &tensors[name] : nullptr; });
  const auto first = [&](const Weight& weight) {
    const int32_t row = 0;
    std::vector<float> out(weight.in_dim);
    backend->embed(
        {.ids = View<const int32_t, 1>(&row, 1), .table = &weight, .out = View<float, 2>(out.data(), 1, weight.in_dim)});
    return out[0];
  };
  ModelShape s{
      .heads = 2, .kv_heads = 2, .head_dim = 2, .latent = {.kv_rank = 3, .nope = 2, .rope = 2, .value = 4, .split = true}};
  put("attn_q", {8, 4}), put("attn_kv_a_mqa", {5, 4}), put("attn_k_b", {2, 3, 2}), put("attn_v_b", {2, 4, 3});
  const auto latent = load_latent(load, s, 0);
  EXPECT_EQ(first(*latent->key[1]), 6);
  EXPECT_EQ(first(*latent->value[1]), 12);
  s.nsa = {.kind = NsaShape::Kind::Mean, .variant = "std", .cmp_len = 4, .cmp_stride = 2, .block_positions = true};
  s.rope_scaling = {.kind = RopeScaling::Kind::Yarn, .attention_factor = 1.5};
  put("nsa_gate", {6, 4}), put("nsa_cmp_pe", {2, 4, 2});
  const auto nsa = load_nsa(*backend, load, s, 0);
  EXPECT_EQ(std::vector<float>(floats(nsa->offset), floats(nsa->offset) + 4), (std::vector<float>{3, 4, 11, 12}));
  EXPECT_EQ(nsa->magnitude, 1.5f);
}

}
}
