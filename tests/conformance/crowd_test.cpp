// K and V of requests that were preempted, shared pages, and ran in chunks and trees of any size beside each other are, byte for
// byte, those of each decoded alone: what the prefix cache gives is as good as computed.
#include "engine/step.h"
#include "methods.h"

namespace hunch {
namespace {

using namespace test;

// Requests through scheduler and step, without a service: the entries of each can be read before its pages go.
class Crowd {
 public:
  explicit Crowd(Engine& engine)
      : parts_(engine.parts()),
        scheduler_(parts_.limits, *parts_.pool, parts_.prefix_cache ? &*parts_.prefix_cache : nullptr),
        step_(parts_, parts_.limits) {
    step_.after_commit = [this](Running& who) {
      for (size_t i = 0; i < who.path_rows.size(); ++i) closed_up += who.path_rows[i] != int32_t(i);
    };
  }

  void add(const Request& request) {
    auto made = good(Running::make(parts_, good(plan_request(request, {}, parts_.options.max_draft)), request));
    step_.prepare(*made);
    scheduler_.add(*made);
    running_.push_back(std::move(made));
  }
  // To the end of all; `over` sees each, by its number, while it still has its pages.
  void run(const std::function<void(size_t, const Running&)>& over) {
    for (size_t left = running_.size(); left > 0;) {
      for (const auto& who : running_) {
        if (!who) continue;
        who->want_drafts = 0;
        if (who->seated_now && !who->prefilling()) who->decide_as_asked();
      }
      const StepPlan& plan = scheduler_.next();
      HUNCH_CHECK(!plan.empty());
      step_.run(plan);
      for (const auto& decode : plan.decodes) scheduler_.committed(*decode.who);
      for (const auto& chunk : plan.chunks) scheduler_.committed(*chunk.who);
      for (size_t i = 0; i < running_.size(); ++i) {
        if (!running_[i] || running_[i]->sequence.len() < running_[i]->sequence.max_len) continue;
        HUNCH_CHECK(running_[i]->failure.ok());
        over(i, *running_[i]);
        scheduler_.remove(*running_[i]);
        running_[i].reset(), --left;
      }
    }
    running_.clear();
  }
  const SchedulerStats& stats() const { return scheduler_.stats(); }

  int64_t closed_up = 0;  // rows of trees that were kept and had to move

 private:
  EngineParts& parts_;
  Scheduler scheduler_;
  Step step_;
  std::vector<std::unique_ptr<Running>> running_;
};

void expect_entries_of_each_alone(const EngineOptions& roomy, bool caching, int turn) {
  const auto where = fmt::format("{} {} {} {} cache {}", roomy.model, roomy.device, roomy.isa, roomy.kv_dtype, caching);
  auto alone = load(roomy);
  EngineOptions options = roomy;
  options.max_num_seqs = 5, options.prefix_caching = caching;
  options.chunk_len = 33 + 10 * turn, options.max_num_batched_tokens = 80 + 7 * turn;
  options.kv_memory_bytes = bytes_of_pages(*alone, 7);
  auto crowded = load(options);

  std::vector<Request> requests;
  std::vector<State> plain;
  for (int i = 0; i < 8; ++i) {
    auto request = ask(phrases(70 + 25 * (i % 4), 66, i % 3), 70, i % 2 ? 0.8 : 0.0);
    auto step = make_step(*alone, request);
    decode_to_the_end(*step);
    plain.push_back({step->sequence().tokens, kv_of(*alone, *step, step->sequence().committed_len)});
    int method = 1 + (i + 3 * turn) % (kNumMethods - 3);  // auto, the first and the last two, belongs to a service
    set_method(request, kMethods[method], 2 + (i + turn) % 6);
    requests.push_back(request);
  }
  Crowd crowd(*crowded);
  for (int wave = 0; wave < 2; ++wave) {  // the second finds what the first left in the cache
    for (const Request& request : requests) crowd.add(request);
    size_t over = 0;
    crowd.run([&](size_t i, const Running& who) {
      ++over;
      expect_same_state({who.sequence.tokens, kv_of(*crowded, who.sequence, who.sequence.committed_len)}, plain[i],
          fmt::format("{} request {} wave {} {} tree {}", where, i, wave, who.plan.proposer, who.plan.nodes - who.plan.gamma));
    });
    EXPECT_EQ(over, requests.size());
  }
  EXPECT_GT(crowd.closed_up, 0) << where;
  EXPECT_GT(crowd.stats().preemptions, 0) << where;
  EXPECT_EQ(crowd.stats().prefix_found > 0, caching) << where;
}

TEST(Crowd, LeavesTheEntriesThatEachRequestAloneLeaves) {
  int turn = 0;
  const auto isas = available_isas();
  for (const char* model : {"qwen3-tied", "llama-linear", "qwen3-q8_0.gguf"})
    for (const char* device : kHosts)
      for (const bool caching : {true, false}) {
        EngineOptions options{.model = tiny_path(model), .device = device, .threads = 1 + turn % 2, .context_len = 256};
        options.kv_dtype = kKvTypes[(turn + turn / 6) % 6], options.max_num_seqs = 1, options.prefix_caching = false;
        if (std::string(device) == "cpu") options.isa = isas[turn / 2 % isas.size()];
        expect_entries_of_each_alone(options, caching, turn++);
      }
}

}
}
