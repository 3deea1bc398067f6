// Runs: what suites do with whole engines again and again: many requests at once, a run step by step.
#pragma once

#include "engine/test_engines.h"

namespace hunch::test {

// All requests in their order, before the first is waited for.
inline Streams submit(Engine& engine, const std::vector<Request>& requests) {
  Streams streams;
  for (const Request& request : requests) streams.push_back(good(engine.submit(request)));
  return streams;
}
inline std::vector<Generation> generate_together(Engine& engine, const std::vector<Request>& requests) {
  std::vector<Generation> out;
  for (auto& stream : submit(engine, requests)) out.push_back(good(stream->result()));
  return out;
}

inline constexpr const char* kKvTypes[] = {"f32", "f16", "bf16", "q8_0", "fp8", "i16"};

// Drafts of `self` over a share of the cache.
inline Request self_drafting(Ints prompt, int64_t max_tokens, double ratio, int gamma, std::string_view policy = "vegas") {
  auto out = ask(std::move(prompt), max_tokens);
  guess(out, "self", gamma);
  out.speculation.policy = policy, out.speculation.ratio = ratio;
  return out;
}

inline int64_t bytes_of_pages(Engine& engine, int pages) {
  return pages * int64_t(engine.parts().backend->kv_page_bytes(engine.parts().geometry));
}

// The prompt, then rounds until there are so many tokens, prompt included.
inline void decode_to(Solo& step, int64_t len) {
  HUNCH_CHECK(step.prefill(nullptr).ok());
  while (step.sequence().len() < len) HUNCH_CHECK(step.round().ok());
}
inline void decode_to_the_end(Solo& step) { decode_to(step, step.sequence().max_len); }

// What a run leaves.
struct State {
  Ints tokens;
  std::vector<float> kv;
};
inline void expect_same_state(const State& got, const State& want, const std::string& what) {
  EXPECT_EQ(got.tokens, want.tokens) << what;
  EXPECT_TRUE(same_bits(got.kv, want.kv)) << what;
}

}
