// Every method gives the output of plain decoding: alone on every KV type, and in a crowd with far too few pages, with and
// without a prefix cache, under every rule of logits and ends.
#include "methods.h"

namespace hunch {
namespace {

using namespace test;

constexpr int kNewTokens = 60;
constexpr const char* kModels[] = {"qwen3-tied", "llama", "qwen2-window", "llama-q4_k_m.gguf"};

TEST(Methods, GiveThePlainStreamAloneOnEveryKvType) {
  int turn = 0;
  std::map<std::string, Tally> kept;
  for (const char* device : kHosts)
    for (const char* kv : kKvTypes) {
      const auto model = tiny_path(kModels[turn % 4]);
      auto engine = load({.model = model, .device = device, .threads = 1 + turn % 2, .kv_dtype = kv, .context_len = 256});
      auto request = ask(phrases(160, 40, 1), kNewTokens, turn % 2 ? 0.8 : 0.0);
      const auto plain = generate_plain(*engine, request);
      for (const auto& method : kMethods) {
        set_method(request, method, 1 + turn++ % 6);
        const auto what = fmt::format("{} {} {}", device, kv, name_of(method));
        const auto run = generate_same(*engine, request, plain, what);
        EXPECT_LE(run.drafted_by_position.size(), size_t(request.speculation.num_tokens)) << what;
        kept[name_of(method)].add(run);
      }
    }
  for (const auto& [name, tally] : kept)
    if (!name.starts_with("auto")) tally.expect_kept_and_dropped(name);  // its planner may find that nothing pays
}

// Rows of [latent | rotated key] serve as keys and as values (docs/decisions/2026-11-22-latent-attention.md).
TEST(Methods, GiveThePlainStreamOverLatentAttention) {
  int turn = 0;
  std::map<std::string, int64_t> accepted;
  for (const char* model : {"deepseek-v3", "deepseek-v2-lite"})
    for (const char* device : kHosts) {
      auto engine =
          load({.model = tiny_path(model), .device = device, .threads = 2, .kv_dtype = kKvTypes[turn % 6], .context_len = 256});
      auto request = ask(phrases(160, 40, 1), kNewTokens);
      const auto plain = generate_plain(*engine, request);
      for (const auto& method : kMethods) {
        set_method(request, method, 1 + turn++ % 6);
        const auto what = fmt::format("{} {} {}", model, device, name_of(method));
        accepted[method.proposer] += generate_same(*engine, request, plain, what).accepted;
      }
    }
  for (const char* proposer : {"ngram", "suffix", "cascade", "self", "staged"}) EXPECT_GE(accepted[proposer], 1) << proposer;
}

TEST(Methods, GiveThePlainOutputsInACrowdWithFarTooFewPages) {
  int turn = 0, ended_by_id = 0;
  for (const char* device : kHosts)
    for (const char* kv : kKvTypes) {
      const char* model = kModels[(turn + turn / 4) % 4];
      ended_by_id += expect_plain_outputs_in_a_crowd(model, device, kv, turn % 2 == 0, turn);
      ++turn;
    }
  ended_by_id += expect_plain_outputs_in_a_crowd("qwen3-untied", "cpu", "bf16", true, turn);
  ended_by_id += expect_plain_outputs_in_a_crowd("qwen3-untied", "cpu", "q8_0", false, turn + 1);
  ended_by_id += expect_plain_outputs_in_a_crowd("deepseek-v3", "cpu", "f16", true, turn + 2);
  EXPECT_GE(ended_by_id, 1) << "behind min tokens";
}

}
}
