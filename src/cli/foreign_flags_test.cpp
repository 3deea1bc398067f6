// What people bring along from llama-server, vLLM and SGLang.
#include "cli/foreign_flags.h"

#include "base/test_results.h"

namespace hunch {
namespace {

std::string message(const std::string& line) {
  FlagSet set("hunch serve", "Serves.");
  add_foreign_server_flags(set), add_foreign_flags(set);
  std::vector<std::string> arguments;
  for (const std::string_view word : words(line)) arguments.emplace_back(word);
  const Status status = set.parse(arguments);
  return status.ok() ? "" : status.error().message;
}

TEST(ForeignFlags, AreWelcomeWhereTheyAskForNothing) {
  for (const char* line :
      {"--dtype auto --block-size 16 --swap-space 4 --fingerprint-mode full -O3 -cc {} --hf-overrides {} --task generate",
          "--disable-cascade-attn --attention-backend FLASH_ATTN --root-path /x --runner auto --logprobs-mode raw_logprobs -tp 1",
          "--tp-size 1 --page-size 16 --disable-cuda-graph --schedule-policy fcfs",
          "--reuse-port --no-ui --sleep-idle-seconds -1",
          "-cram 8192 -ctxcp 32 --log-colors auto --log-prefix -td 2 --spec-ngram-mod-n-match 24 --draft-p-min 0.8 -bs",
          "--yarn-attn-factor 1.0 --yarn-beta-slow -1 --yarn-beta-fast 32.0 --repeat-last-n -1 --reasoning-budget -1"})
    EXPECT_EQ(message(line), "") << line;
}

TEST(ForeignFlags, AreRefusedWhereTheyAskForWhatIsNotHere) {
  for (const auto& [line, part] :
      {std::pair{"--tp 2", "--tp: one device runs a model here"}, {"--hf-overrides {\"a\":1}", "leave it out or at {}, null"},
          {"--task embed", "leave it out or at auto, generate, none"}, {"--reasoning-budget 0", "leave it out or at -1"},
          {"--yarn-beta-fast 31", "leave it out or at -1, 32"}, {"--tokenizer x", "a model is read with its own"},
          {"--pooling mean", "not available"}, {"--context-shift", "ends where the context is full"},
          {"--rope-scaling linear", "as the model says"}})
    test::expect_part(message(line), part);
}

}
}
