// Sections of hunch bench passes that time whole requests and processes.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "cli/bench.h"
#include "cli/demo_book.h"

extern char** environ;

namespace hunch {
namespace {

constexpr uint64_t kSeed = 7;
constexpr int kStarts = 7;

// Milliseconds until the program has written its first byte of text; it runs to its end before this returns.
Result<double> start_once(const std::string& model, int threads) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return failure("cannot make a pipe: {}", std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  std::vector<std::string> words{
      "hunch", "run", "-m", model, "-p", "The captain looked at the", "-n", "1", "--temp", "0", "-t", std::to_string(threads)};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const auto start = Clock::now();
  pid_t child = 0;
  const int error = posix_spawn(&child, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);  // else the read below would wait for this process too
  char byte = 0;
  const bool answered = error == 0 && read(ends[0], &byte, 1) == 1;
  const double ms = ms_since(start);
  char rest[256];
  while (answered && read(ends[0], rest, sizeof rest) > 0) {}
  close(ends[0]);
  if (error == 0) waitpid(child, nullptr, 0);
  if (!answered) return Error{"hunch run wrote nothing when it was started to be timed"};
  return ms;
}

}

Result<BenchTable> bench_start(const std::string& model, int threads) {
  std::vector<double> times;
  for (int i = 0; i <= kStarts; ++i) {
    HUNCH_TRY(const double ms, start_once(model, threads));
    if (i > 0) times.push_back(ms);  // the first one warms the file cache
  }
  std::ranges::sort(times);
  return BenchTable{"start", "From the start of the program to its first token (short prompt, warm file cache)",
      {{{"runs", kStarts}, {"median_ms", times[times.size() / 2]}, {"least_ms", times.front()}, {"most_ms", times.back()}}}, ""};
}

Result<BenchTable> bench_end_to_end(Engine& engine, const BenchFlags& flags, const SpeculationOptions& speculation,
    const InterruptScope& interrupts, ProgressLine& progress) {
  BenchTable table{
      "end-to-end",
      "Whole requests: records copied out of a long book, and the book continued; temperature 0.8",
      {},
      "speedup: over plain decoding of the same request with the same seed; prefill not counted",
  };
  for (int64_t context : flags.contexts) {
    const int64_t room = std::min(context, engine.context_len() - flags.new_tokens - 64);
    HUNCH_TRY(const DemoBook book, fit_demo_book(engine.tokenizer(), room, kSeed));
    std::map<int64_t, double> gains;  // mean speed-up of the two kinds, by gamma
    for (const bool copy : {true, false}) {
      Request request;
      HUNCH_TRY(request.prompt, engine.tokenizer().encode(copy ? book.ask(book.copy_question) : book.text()));
      request.max_tokens = flags.new_tokens;
      request.ignore_eos = true;
      request.cache_prompt = true;
      request.sampling = {.temperature = 0.8, .top_p = 1, .min_p = 0, .top_k = 0, .seed = kSeed};
      double plain_speed = 0;
      std::vector<int64_t> gammas{0};  // plain decoding first: what the others are compared with
      gammas.insert(gammas.end(), flags.gammas.begin(), flags.gammas.end());
      for (int64_t gamma : gammas) {
        request.speculation = speculation;
        request.speculation.proposer = gamma == 0 ? "none" : "self";
        request.speculation.num_tokens = int(gamma);
        HUNCH_TRY(const Generation g,
            engine.generate(
                request, [&](const TokenEvent&) { return progress.clear(), true; }, interrupts.flag()));
        if (interrupts.stopped()) return table;
        const double speed = g.tokens_per_second();
        if (gamma == 0) plain_speed = speed;
        const double speedup = plain_speed > 0 ? speed / plain_speed : 0;
        if (gamma > 0) gains[gamma] += speedup / 2;
        table.rows.push_back({{"prompt", g.prompt_tokens}, {"kind", copy ? "copy" : "continue"}, {"gamma", gamma},
            {"rule", g.rule}, {"tokens_per_s", speed}, {"speedup", speedup}, {"tokens_per_round", g.mean_acceptance_length()}});
      }
    }
    table.note += fmt::format("; mean speedup at {}:", context);
    for (const auto& [gamma, gain] : gains) table.note += fmt::format(" {:.2f} (gamma {})", gain, gamma);
  }
  return table;
}

}
