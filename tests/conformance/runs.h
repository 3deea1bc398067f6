// Runs: what suites do with whole engines again and again: many requests at once, a step by step run, refusals.
#pragma once

#include "engine/test_engines.h"

namespace hunch::test {

// All requests in their order, before the first is waited for.
inline std::vector<std::unique_ptr<TokenStream>> submit(Engine& engine, const std::vector<Request>& requests) {
  std::vector<std::unique_ptr<TokenStream>> streams;
  for (const Request& request : requests) streams.push_back(good(engine.submit(request)));
  return streams;
}
inline std::vector<Generation> generate_together(Engine& engine, const std::vector<Request>& requests) {
  std::vector<Generation> out;
  for (auto& stream : submit(engine, requests)) out.push_back(good(stream->result()));
  return out;
}

// Drafts of `self` over a share of the cache.
inline Request self_drafting(Ints prompt, int64_t max_tokens, double ratio, int gamma, std::string_view policy = "vegas") {
  auto out = ask(std::move(prompt), max_tokens);
  SpeculationOptions& o = out.speculation;
  o.proposer = "self", o.policy = policy, o.ratio = ratio, o.num_tokens = gamma;
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

// An error whose message holds these words.
template <class Outcome>
void expect_refusal(const Outcome& outcome, const std::string& words, const std::string& what = "") {
  ASSERT_FALSE(outcome.ok()) << words << " " << what;
  EXPECT_NE(outcome.error().message.find(words), std::string::npos) << outcome.error().message;
}

}
