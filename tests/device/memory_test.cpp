// How much memory the KV cache takes, and for what.
#include "../conformance/methods.h"

namespace hunch {
namespace {

using namespace test;

EngineOptions small(const std::string& device) {
  return {.model = tiny_path("qwen3-tied"), .device = device, .context_len = 128, .max_num_seqs = 3};  // 2 pages a request
}
int64_t pages(const EngineOptions& options) { return load(options)->parts().pool->num_pages(); }

TEST(LateDevice, FillsAsMuchMemoryAsItIsAskedTo) {
  auto options = small("late");
  const auto engine = load(options);
  EXPECT_EQ(engine->parts().pool->num_pages(), 6);
  options.memory_share = 1e-9;
  EXPECT_EQ(pages(options), 2) << "never less than one context";
  options.fill_memory = true;
  EXPECT_EQ(pages(options), 2);
  options.memory_share = 0.02;
  const int64_t more = pages(options);
  options.memory_share = 0.01;
  const double each = 0.01 * double(engine->parts().backend->total_memory_bytes()) / engine->parts().page_bytes();
  EXPECT_NEAR(more - pages(options), each, 1);
  options.prefix_caching = false;
  EXPECT_EQ(pages(options), 6) << "nothing would use more";
}

TEST(KvMemory, BeyondWhatRequestsHoldKeepsBeginnings) {
  auto options = small("cpu");
  options.max_num_seqs = 1;
  options.kv_memory_bytes = bytes_of_pages(*load(options), 5);
  for (const bool caching : {true, false}) {
    options.prefix_caching = caching;
    const auto engine = load(options);
    EXPECT_EQ(engine->parts().pool->num_pages(), caching ? 5 : 2);
    const auto reused = [&](uint64_t prompt) {
      return generate_plain(*engine, ask(random_prompt(100, 256, prompt), 4)).reused_tokens;
    };
    EXPECT_EQ(reused(1), 0);
    EXPECT_EQ(reused(2), 0);
    EXPECT_EQ(reused(1), caching ? 64 : 0) << "a page that no request holds";
  }
}

}
}
