// The parts of the server that need no socket.
#include <gtest/gtest.h>

#include <unistd.h>

#include <fstream>

#include "server/access.h"
#include "server/answer_text.h"
#include "server/listen.h"
#include "server/log.h"
#include "server/metrics.h"
#include "server/router.h"
#include "server/sha256.h"
#include "server/stacks.h"
#include "server/watchdog.h"
#include "server/worker_pool.h"

namespace hunch {
namespace {

std::string hex_of(std::string_view text) {
  std::string out;
  for (const uint8_t byte : sha256(text)) out += "0123456789abcdef"[byte >> 4], out += "0123456789abcdef"[byte & 15];
  return out;
}

TEST(Sha256, GivesThePublishedDigests) {
  EXPECT_EQ(hex_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
      "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex_of(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(ApiKeys, AcceptsItsKeysAndNothingElse) {
  ApiKeys keys;
  ASSERT_TRUE(keys.set({"one", "two"}, "").ok());
  EXPECT_TRUE(keys.any());
  EXPECT_TRUE(keys.accepts("one"));
  EXPECT_TRUE(keys.accepts("two"));
  for (const char* wrong : {"", "on", "onee", "One", "three"}) EXPECT_FALSE(keys.accepts(wrong)) << wrong;
}

TEST(ApiKeys, AFileWithoutAKeyIsRefusedAndLeavesTheKeysAsTheyWere) {
  const auto path = testing::TempDir() + "/hunch_keys";
  std::ofstream(path) << "# a comment\n\nsecret \r\n";
  ApiKeys keys;
  ASSERT_TRUE(keys.set({}, path).ok());
  EXPECT_TRUE(keys.accepts("secret"));
  EXPECT_FALSE(keys.accepts("# a comment"));
  std::ofstream(path) << "# nothing\n";
  EXPECT_FALSE(keys.set({}, path).ok());
  EXPECT_FALSE(keys.set({}, path + ".absent").ok());
  EXPECT_FALSE(keys.set({""}, "").ok());
  EXPECT_TRUE(keys.accepts("secret"));
}

TEST(Routes, AreFoundByMethodAndPath) {
  EXPECT_EQ(match_route("POST", "/v1/completions").route, Route::Completions);
  EXPECT_EQ(match_route("GET", "/v1/completions").allow, "POST, OPTIONS");
  for (const auto& [method, path, status] : {std::tuple("POST", "/v1/completions?api-version=1", 0), {"HEAD", "/health", 0},
           {"GET", "/v1/completions", 405}, {"get", "/health", 405}, {"OPTIONS", "/tokenize", 204}, {"OPTIONS", "*", 204},
           {"GET", "/health/", 404}, {"GET", "/health#top", 0}, {"GET", "/v1/models/", 404}})
    EXPECT_EQ(match_route(method, path).status, status) << method << " " << path;
  for (const char* path : {"/v1/models/org/my%20model", "/v1/models/org%2Fmy%20model"}) {
    const RouteMatch model = match_route("GET", path);
    EXPECT_EQ(model.route, Route::Model);
    EXPECT_EQ(model.argument, "org/my model");
  }
}

TEST(Routes, PathsNotInPlainFormAre400) {
  for (const char* path : {"", "health", "*", "//health", "/v1//models", "/v1/../metrics", "/v1/./models", "/..", "/.", "/a%00",
           "/a%2f", "/v1/models/a%2f..", "/%2e%2e/metrics", "/a%2E", "/a%5c", "/a\\b", "/a%", "/a%2", "/a%zz", "/a%25", "/a%0a",
           "http://x/health", "/a\x7f"})
    EXPECT_EQ(match_route("GET", path).status, 400) << path;
}

HttpRequest asked(Headers headers) {
  HttpRequest request;
  request.headers = std::move(headers);
  return request;
}

int status_of(const Access& access, const HttpRequest& request, bool open) {
  const auto error = access.check(request, open);
  return error ? error->status : 200;
}

TEST(Access, OnLoopbackOnlyOwnNamesAreNames) {
  ServerOptions options;
  options.allowed_hosts = {"box.example"};
  Access access(options);
  for (const char* host : {"localhost", "LocalHost:8000", "127.0.0.1:1", "127.9.9.9", "[::1]:8000", "box.example:8000"})
    EXPECT_EQ(status_of(access, asked({{"host", host}}), true), 200) << host;
  for (const char* host :
      {"evil.example", "localhost.evil.example", "", "192.168.0.1", "127.evil.example:8000", "127.0.0.1@evil", "[::2]:80"})
    EXPECT_EQ(status_of(access, asked({{"host", host}}), true), 403) << host;
  const auto any_host = [&] { return status_of(access, asked({{"host", "evil.example"}}), true) == 200; };
  options.allowed_hosts = {"*"};
  EXPECT_TRUE(any_host());
  options.allowed_hosts = {}, options.host = "/run/hunch.sock";
  EXPECT_TRUE(any_host());
  options.host = "127.0.0.1";
  EXPECT_FALSE(any_host());
  access.set_loopback(false);
  EXPECT_TRUE(any_host());
}

TEST(Access, OriginsAreTheOwnOneOrNamed) {
  ServerOptions options;
  options.cors_origins = {"https://a.example"};
  const Access access(options);
  const auto from = [](const char* origin) { return asked({{"Host", "localhost:8000"}, {"Origin", origin}}); };
  EXPECT_EQ(status_of(access, from("http://localhost:8000"), true), 200);
  EXPECT_EQ(status_of(access, from("https://a.example"), true), 200);
  for (const char* origin : {"http://localhost:8001", "https://a.example.evil", "null", "", "http://a.example"}) {
    EXPECT_EQ(status_of(access, from(origin), true), 403) << origin;
    EXPECT_TRUE(access.cors_headers(from(origin), true).empty()) << origin;
  }
  const Headers headers = access.cors_headers(from("https://a.example"), true);
  EXPECT_EQ(headers[0], (Headers::value_type("Access-Control-Allow-Origin", "https://a.example")));
  EXPECT_EQ(headers[1], (Headers::value_type("Vary", "Origin")));
  HttpRequest wants = from("https://a.example");
  wants.headers.emplace_back("Access-Control-Request-Headers", "X-Mine");
  const Headers granted = access.cors_headers(wants, true);
  EXPECT_NE(std::ranges::find(granted, Headers::value_type("Access-Control-Allow-Headers", "X-Mine")), granted.end());
}

TEST(ListenSocket, AFileThatIsNoSocketStays) {
  const std::string path = ::testing::TempDir() + "notes.sock";
  std::ofstream(path) << "kept";
  EXPECT_FALSE(open_listen_socket(path, 0).ok());
  EXPECT_TRUE(std::ifstream(path).good());
  (void)unlink(path.c_str());
}

TEST(Access, KeysComeAsBearerOrHeader) {
  ServerOptions options;
  options.api_keys = {"k"};
  Access access(options);
  ASSERT_TRUE(access.load_keys().ok());
  EXPECT_EQ(status_of(access, asked({}), true), 200);
  const std::pair<Headers, int> statuses[] = {{{}, 401}, {{{"AUTHORIZATION", "BEARER k"}}, 200},
      {{{"authorization", "Digest k"}}, 401}, {{{"x-api-key", "k"}}, 200},
      {{{"authorization", "Bearer x"}, {"x-api-key", "k"}}, 401}};
  for (const auto& [headers, status] : statuses) EXPECT_EQ(status_of(access, asked(headers), false), status);
}

TEST(LogLine, EscapesWhatWouldForgeALine) {
  EXPECT_EQ(log_line(0.5, Log::Info, "hello", {{"n", int64_t(3)}, {"s", "a b"}, {"e", "a=b"}, {"x", 1.5}}, false),
      "1970-01-01T00:00:00.500Z info    hello n=3 s=\"a b\" e=\"a=b\" x=1.500\n");
  EXPECT_EQ(log_line(0, Log::Failure, "a\nb\x1b", {{"s", "\"\\"}}, true),
      "{\"time\":\"1970-01-01T00:00:00.000Z\",\"level\":\"error\",\"message\":\"a\\u000ab\\u001b\",\"s\":\"\\\"\\\\\"}\n");
}

TEST(Log, KeepsItsLevelSaysSeldomWhatComesOftenAndLosesNothingAtItsEnd) {
  const std::string path = testing::TempDir() + "hunch_log";
  (void)unlink(path.c_str());
  {
    Log log(path, false, Log::Info);
    for (int i = 0; i < 3; ++i) log.write_seldom(Log::Info, "why", "often", {});
    log.write(Log::Debug, "quiet", {});
    log.write(Log::Info, "last", {});
  }
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(std::ranges::count(text, '\n'), 2) << text;
  EXPECT_TRUE(text.ends_with("last\n")) << text;
}

TEST(Exposition, HistogramsAddUpAndLabelsAreEscaped) {
  constexpr double kBounds[] = {0.1, 1, 10};
  Histogram histogram(kBounds);
  histogram.observe(0.1), histogram.observe(0.5, 2), histogram.observe(11);
  Exposition out;
  out.family("t", "histogram", "Times.");
  out.histogram({{"model", "a\"b\\c\nd"}}, histogram);
  out.family("n", "counter", "Count.");
  out.value({}, 3);
  EXPECT_EQ(out.take(), R"(# HELP t Times.
# TYPE t histogram
t_bucket{model="a\"b\\c\nd",le="0.1"} 1
t_bucket{model="a\"b\\c\nd",le="1"} 3
t_bucket{model="a\"b\\c\nd",le="10"} 3
t_bucket{model="a\"b\\c\nd",le="+Inf"} 4
t_sum{model="a\"b\\c\nd"} 12.1
t_count{model="a\"b\\c\nd"} 4
# HELP n Count.
# TYPE n counter
n 3
)");
}

TEST(Metrics, CountWhatEndedByModelDrafterAndPosition) {
  Metrics metrics({"m"});
  Generation generation;
  generation.tokens = {1, 2, 3};
  generation.proposer = "suffix";
  generation.rounds = 2, generation.drafted = 4, generation.accepted = 1;
  generation.lossless = false;
  generation.prompt_tokens = 9, generation.reused_tokens = 5;
  generation.milliseconds = {.queued = 3000, .prefill = 1000, .draft = 100, .verify = 200, .first_to_last_token = 500};
  metrics.asked(0, 2, -1);
  metrics.tokens_came(0, 4, 2);
  metrics.finished(0, {.generation = &generation, .reason = "stop", .first_token_seconds = 0.03, .total_seconds = 2});
  metrics.finished(0, {.reason = "error"});
  const Generation plain;
  metrics.finished(0, {.generation = &plain, .reason = "length"});
  metrics.refused("queue_full");
  Metrics::EngineNow engine{.lossless = false};
  engine.stats.running = 2, engine.stats.kv_pages_used = 1, engine.stats.kv_pages_total = 4;
  engine.stats.steps_by_tokens[0] = 5, engine.stats.steps_by_tokens[15] = 1, engine.stats.step_tokens = 20005;
  engine.stats.rounds = 10, engine.stats.drafted = 40, engine.stats.accepted = 10;
  metrics.interval_over(0, engine.stats);
  engine.stats.rounds = 14, engine.stats.drafted = 48, engine.stats.accepted = 16;
  metrics.interval_over(0, engine.stats);
  engine.stats.corrupted = 1;
  engine.stats.drafted_by_position = {2, 2}, engine.stats.accepted_by_position = {1, 0};  // of failed requests too
  const std::string text = metrics.text({engine}, {});
  // Of one model; those of vLLM, and what is like them, name an engine, too.
  const auto expect = [&](std::string line, const std::string& labels) {
    const size_t at = std::min(line.find('{'), line.find(' '));
    if (line[at] == '{') line.insert(at + 1, labels + ",");
    else line.insert(at, "{" + labels + "}");
    EXPECT_NE(text.find(line + "\n"), text.npos) << line;
  };
  for (const char* line : {"vllm:num_requests_running 2", "vllm:request_success_total{finished_reason=\"stop\"} 1",
           "vllm:generation_tokens_total 3", "vllm:spec_decode_num_accepted_tokens_per_pos_total{position=\"0\"} 1",
           "hunch:lossy_choices_total 1", "hunch:lossless 0", "vllm:corrupted_requests_total 1",
           "vllm:iteration_tokens_total_bucket{le=\"16384\"} 5", "vllm:iteration_tokens_total_bucket{le=\"+Inf\"} 6",
           "vllm:iteration_tokens_total_sum 20005", "vllm:request_params_n_sum 2", "vllm:request_params_max_tokens_count 0",
           "vllm:inter_token_latency_seconds_count 4", "hunch:longest_queue_time_seconds 3",
           "vllm:request_inference_time_seconds_sum 1.5", "hunch:cached_prompt_tokens_total 5", "vllm:kv_cache_usage_perc 0.25",
           "hunch:failed_choices_total 1", "vllm:time_to_first_token_seconds_bucket{le=\"0.04\"} 1"})
    expect(line, "model_name=\"m\",engine=\"0\"");
  for (const char* line : {"hunch:choices_by_drafter_total{drafter=\"none\"} 1", "hunch:time_seconds_total{part=\"verify\"} 0.2",
           "hunch:drafted_tokens_per_pos_total{position=\"1\"} 2", "hunch:accepted_tokens_by_drafter_total{drafter=\"suffix\"} 1",
           "sglang:spec_accept_length 2.5", "sglang:spec_accept_rate 0.75", "sglang:spec_num_draft_tokens 2"})
    expect(line, "model_name=\"m\"");
  EXPECT_NE(text.find("vllm:admission_rejections_total 1\n"), text.npos);
}

TEST(Limits, AllAreListedWithTheirDefaultsInsideTheirRanges) {
  const ServerLimits defaults;
  const std::string text = limits_text(defaults);
  for (const Limit& limit : limits()) {
    const double value = std::visit([&](auto member) { return double(defaults.*member); }, limit.member);
    EXPECT_GE(value, limit.least) << limit.flag;
    EXPECT_LE(value, limit.most) << limit.flag;
    EXPECT_NE(text.find(limit.flag), text.npos);
  }
  EXPECT_NE(text.find("--max-num-queued-reqs                1024 requests"), text.npos) << text;
}

TEST(StuckTimer, CountsOnlyBusyTimeWithoutBeatsThatItSawItself) {
  StuckTimer timer;
  timer.look({.beats = 1, .busy = true}, 0.25);
  for (int i = 0; i < 8; ++i) timer.look({.beats = 1, .busy = true}, 0.25);
  EXPECT_DOUBLE_EQ(timer.stuck_seconds(), 2);
  timer.look({.beats = 1, .busy = true}, 3600);  // the process was stopped, or the machine slept
  EXPECT_DOUBLE_EQ(timer.stuck_seconds(), 2 + StuckTimer::kMostPerLook);
  timer.look({.beats = 2, .busy = true}, 0.25);
  EXPECT_EQ(timer.stuck_seconds(), 0);
  for (int i = 0; i < 8; ++i) timer.look({.beats = 2, .busy = false}, 0.25);
  EXPECT_EQ(timer.stuck_seconds(), 0) << "who has nothing to do is not stuck";
}

TEST(Watchdog, TellsOfAStuckEngineOnceAndOfLifeOnlyBefore) {
  std::atomic<uint64_t> beats = 0, others = 0;
  std::atomic<bool> stuck = false;
  std::atomic<int> alive = 0, dead = 0;
  Watchdog watchdog(
      {[&] {
         return Heartbeat{stuck ? beats.load() : ++beats, true};
       },
          [&] {
            return Heartbeat{++others, true};
          }},
      0.3, 0.6, [&] { ++alive; }, [&](double) { ++dead; });
  Watchdog never({}, 1, 0, {}, [&](double) { ++dead; });
  while (alive < 2) std::this_thread::yield();
  EXPECT_EQ(dead, 0);
  stuck = true;
  while (dead == 0) std::this_thread::yield();
  EXPECT_GE(watchdog.stuck_seconds(), 0.6);
  const int alive_then = alive;
  std::this_thread::sleep_for(std::chrono::milliseconds(600));
  EXPECT_EQ(alive, alive_then);
  EXPECT_EQ(dead, 1);
}

TEST(Stacks, OfAllThreadsAreToldAlsoOfThoseThatWait) {
  prepare_thread_stacks();
  std::mutex gate;
  gate.lock();
  std::atomic<int> id = 0;
  std::thread waiting([&] {
    id = int(gettid());
    const std::lock_guard lock(gate);
  });
  while (id == 0) std::this_thread::yield();
  const auto stacks = thread_stacks();
  gate.unlock();
  waiting.join();
  for (const int one : {int(gettid()), id.load()}) {
    const auto at = std::ranges::find_if(stacks, [&](const ThreadStack& stack) { return stack.id == one; });
    ASSERT_NE(at, stacks.end());
    EXPECT_NE(at->frames, "");
  }
}

TEST(WorkerPool, RunsWhatItTookAndRefusesWhatIsTooMuch) {
  std::mutex gate;
  gate.lock();
  std::atomic<int> ran = 0;
  WorkerPool pool(1);
  ASSERT_TRUE(pool.submit(
      [&] {
        const std::lock_guard lock(gate);
        ++ran;
      },
      2));
  while (pool.waiting() > 0) std::this_thread::yield();
  ASSERT_TRUE(pool.submit([&] { ++ran; }, 2));
  ASSERT_TRUE(pool.submit([&] { ++ran; }, 2));
  EXPECT_FALSE(pool.submit([&] { ++ran; }, 2));
  gate.unlock();
  while (ran < 3) std::this_thread::yield();
  pool.stop();
  EXPECT_FALSE(pool.submit([&] { ++ran; }, 2));
}

TEST(AnswerHead, SaysHowTheBodyEnds) {
  const std::string date = "Date: Thu, 01 Jan 1970 00:00:01 GMT\r\n";
  EXPECT_EQ(answer_head({.status = 200}, {{"X-Request-Id", "1"}}, Framing::Length, 5, true, 1),
      "HTTP/1.1 200 OK\r\nServer: hunch\r\n" + date +
          "Content-Type: application/json\r\nContent-Length: 5\r\nConnection: keep-alive\r\nX-Request-Id: 1\r\n\r\n");
  EXPECT_EQ(answer_head({.status = 204}, {}, Framing::Length, 0, false, 1),
      "HTTP/1.1 204 No Content\r\nServer: hunch\r\n" + date + "Connection: close\r\n\r\n");
  EXPECT_EQ(error_reply(api_error(503, "", "", 1.2)).headers[0].second, "2");
}

}
}
