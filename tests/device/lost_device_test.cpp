// A device that is lost in the middle of requests: each ends with its message, so does every later one, and nobody waits forever.
#include "../conformance/equality.h"
#include "../conformance/methods.h"
#include "engine/token_run.h"
#include "late_backend.h"

namespace hunch {
namespace {

constexpr const char* kLost = "the device was lost";

EngineOptions tiny(int seqs) {
  return {.model = test::tiny_path("qwen3-tied"), .device = "late", .context_len = 256, .chunk_len = 40, .max_num_seqs = seqs};
}

TEST(LostDevice, EndsARequestOfEveryMethodWithItsMessage) {
  int turn = 0;
  for (const auto& method : test::kMethods)
    for (const int64_t waits : {0, 1, 2, 5, 11}) {
      auto engine = test::load(tiny(2));
      Request request = test::request(test::phrases(100, 40, 3), 100);
      test::set_method(request, method, 1 + turn++ % 5);
      test::lose_late_device(*engine->parts().backend, waits);
      for (int again = 0; again < 2; ++again) {
        const auto done = engine->generate(request);
        ASSERT_FALSE(done.ok()) << test::name_of(method) << " after " << waits;
        EXPECT_NE(done.error().message.find(kLost), std::string::npos) << done.error().message;
      }
    }
}

TEST(LostDevice, EndsACrowdAndWhoComesLater) {
  for (const int64_t waits : {0, 3, 12, 40}) {
    auto engine = test::load(tiny(3));
    std::vector<Request> requests;
    for (int i = 0; i < 8; ++i) {  // more than run at once: some wait
      requests.push_back(test::request_of_kind(*engine, i, test::phrases(90 + 5 * i, 40, uint64_t(i)), 40));
      test::set_method(requests.back(), test::kMethods[i % test::kNumMethods], 3);
    }
    std::vector<std::unique_ptr<TokenStream>> streams;
    test::lose_late_device(*engine->parts().backend, waits);
    for (const Request& request : requests) {
      auto stream = engine->submit(request);
      ASSERT_TRUE(stream.ok()) << stream.error().message;
      streams.push_back(std::move(*stream));
    }
    int failed = 0;
    for (auto& stream : streams) {
      const auto done = stream->result();
      if (done.ok()) continue;  // had ended before
      EXPECT_NE(done.error().message.find(kLost), std::string::npos) << done.error().message;
      ++failed;
    }
    EXPECT_GT(failed, 0) << waits;
    const auto later = engine->generate(test::request(test::random_prompt(20, 256, 1), 5));
    ASSERT_FALSE(later.ok());
    EXPECT_NE(later.error().message.find(kLost), std::string::npos) << later.error().message;
  }
}

TEST(LostDevice, ShowsInTheStatusOfARunOfTokens) {
  auto engine = test::load(tiny(1));
  const auto run = TokenRun::make(engine->parts(), 100);
  ASSERT_TRUE(run.ok());
  const auto ids = test::random_prompt(90, 256, 1);
  (*run.value()).feed(std::span(ids).first(30), 10, TokenRun::Logits::All);
  EXPECT_TRUE((*run.value()).status().ok());
  test::lose_late_device(*engine->parts().backend, 2);
  (*run.value()).feed(std::span(ids).subspan(30), 10, TokenRun::Logits::All);
  ASSERT_FALSE((*run.value()).status().ok());
  EXPECT_NE((*run.value()).status().error().message.find(kLost), std::string::npos);
}

}  // namespace
}  // namespace hunch
