#include "engine/service.h"

#include <pthread.h>

#include <algorithm>
#include <bit>
#include <chrono>

#include "base/clock.h"
#include "base/failure.h"
#include "engine/approximation.h"
#include "engine/ending.h"
#include "engine/sampling_options.h"

namespace hunch {
namespace {

double now_ms() { return ms_since({}); }
Clock::duration clock_time(double ms) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(ms));
}

Status check_prompt(const Request& request, const EngineParts& parts) {
  const int64_t vocab = parts.model->shape().vocab_size, length = std::ssize(request.prompt);
  if (length == 0) return usage_error("the prompt is empty: give at least one token");
  if (length >= parts.context_len)
    return failure("the prompt has {} tokens, the context holds {}: shorten the prompt or raise -c (and --kv-memory)", length,
        parts.context_len);
  for (int64_t i = 0; i < length; ++i)
    if (request.prompt[i] < 0 || request.prompt[i] >= vocab)
      return usage_error("prompt token {} is {}; ids must lie in [0, {})", i, request.prompt[i], vocab);
  if (request.max_tokens < -1 || request.max_tokens == 0)
    return usage_error("max tokens is {}; it must be at least 1, or -1 for no limit", request.max_tokens);
  return {};
}

// A drafter that is never right (a mismatch of models, taps, norm sides) costs only speed, so nobody would notice. Under `auto`
// it soon drafts no more, and this is the only trace of it.
void watch_acceptance(EngineParts& parts, Running& run) {
  constexpr int64_t kLuckless = 64;
  for (const Running::Drafter& used : run.drafters)
    for (EngineParts::Learned& drafter : parts.learned) {
      if (drafter.name != used.name || used.rounds == 0) continue;
      drafter.luckless = used.kept > 0 ? 0 : drafter.luckless + used.rounds;
      if (drafter.luckless >= kLuckless)
        run.stats.warning = fmt::format("{} has drafted {} rounds without one token being kept: was it made for this model? ({})",
            drafter.name, drafter.luckless, drafter.path);
    }
}

}

// One request that was admitted, with its way out.
struct Service::Session : Running::Owner {
  Session(Channel* channel, std::unique_ptr<Running> run, Ending ending, double since_ms)
      : channel(channel), running(std::move(run)), ending(std::move(ending)), since_ms(since_ms) {}

  Channel* channel;
  std::unique_ptr<Running> running;
  Ending ending;
  double since_ms, first_ms = 0, last_ms = 0;
  struct Counts {
    int64_t tokens = 0, rounds = 0, drafted = 0, accepted = 0;
  } counted;         // what the engine's totals hold of it
  int64_t lane = 0;  // of the trace
  bool began = false;
  bool over = false;

  void say(int64_t at, int drafter);
};

Service::Service(EngineParts& parts)
    : parts_(parts),
      scheduler_(parts.limits, *parts.pool, parts.prefix_cache ? &*parts.prefix_cache : nullptr),
      step_(parts, parts.limits),
      controller_(parts) {
  running_.reserve(parts.limits.max_seqs), unsaid_.reserve(parts.limits.max_seqs);
  step_.meanwhile = [this] { say_rest(); };
  stats_.kv_pages_total = parts.pool->num_pages();
}

Service::~Service() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  woken_.notify_all();
  if (thread_.joinable()) thread_.join();
  for (const auto& session : sessions_) scheduler_.remove(*session->running);
  (void)parts_.backend->synchronize();  // drafters may have queued work behind the last pass, on memory that goes now
  HUNCH_CHECK(channels_.empty());
}

Result<Channel*> Service::enqueue(const Request& request, OnNews on_news) {
  HUNCH_OK(check_prompt(request, parts_));
  HUNCH_TRY(RequestPlan plan, plan_on(parts_, request));
  pace(request, parts_.options.max_draft, plan);
  if (plan.planned && parts_.model->shape().nsa.used()) {  // arms keep their places, nothing is made for this one
    std::ranges::replace(plan.drafters, std::string("self"), std::string("none"));
    plan.draft_weights.reset();
  }
  if (plan.planned)
    for (const EngineParts::Learned& drafter : parts_.learned) {
      if (plan.drafters.size() == kMaxArms) break;
      plan.drafters.push_back(drafter.name);
    }
  // Trees of the planner's, unless the request has its own idea of them.
  if (plan.planned && plan.nodes == plan.gamma) plan.planned_nodes = controller_.tree_nodes();
  // On a device rule ratio leaves trees to the host; match has the same law and does not.
  const bool branches = plan.nodes > plan.gamma || plan.planned_nodes > 0;
  if (branches && parts_.backend->asynchronous() && request.speculation.rule.empty()) plan.rule = "match";
  HUNCH_OK(check_stop_texts(request.stop));
  HUNCH_TRY(const LogitRules rules, logit_rules(request.sampling, parts_.model->shape().vocab_size, end_ids_of(request, parts_)));
  (void)rules;  // made again when the request is opened; here it is only checked
  if (request.structured.kind != StructuredOutput::Kind::None) {
    HUNCH_TRY(GrammarCompiler * compiler, parts_.grammars());
    HUNCH_TRY(plan.grammar, compiler->compile(request.structured));
  }
  const std::lock_guard lock(mutex_);
  const int free_seats = std::max(0, parts_.limits.max_seqs - stats_.running);
  if (stats_.waiting + int(orders_.size()) >= parts_.options.max_waiting + free_seats) {
    ++stats_.requests_refused;
    return failure("{} requests are waiting, no more are taken: try again later", parts_.options.max_waiting);
  }
  channels_.push_back(std::make_unique<Channel>(std::move(on_news)));
  orders_.push_back({request, std::move(plan), channels_.back().get(), now_ms()});
  awake_ = busy_ = true;
  woken_.notify_all();
  return channels_.back().get();
}

void Service::release(Channel* channel) {
  // Its session must be gone before the channel goes.
  channel->cancelled = true;
  wake();
  while (!channel->ended()) {
    if (!try_step()) {
      bool drained = false;
      channel->take_until(Clock::now() + std::chrono::milliseconds(5), drained);
    }
  }
  const std::lock_guard lock(mutex_);
  channels_.remove_if([&](const auto& owned) { return owned.get() == channel; });
}

void Service::wake() {
  const std::lock_guard lock(mutex_);
  awake_ = true;
  woken_.notify_all();
}

void Service::background() {
  pthread_setname_np(pthread_self(), "hunch engine");
  for (;;) {
    bool ran;
    {
      const std::lock_guard lock(driving_);
      ran = step_once(true);
    }
    std::unique_lock lock(mutex_);
    if (closing_) return;
    if (!ran && !awake_) {
      busy_ = false;
      woken_.wait(lock, [&] { return awake_ || closing_; });
      busy_ = true;
    }
    awake_ = false;
    if (closing_) return;
  }
}

bool Service::step_once(bool background) {
  later_ = background && parts_.backend->asynchronous();
  steps_.fetch_add(1, std::memory_order_relaxed);
  admit_orders();
  end_cancelled();
  decide();
  const StepPlan& plan = scheduler_.next();
  const bool any = !plan.empty();
  if (any) {
    begin(plan);
    const auto start = Clock::now();
    step_.run(plan);
    running_.clear();
    for (const auto& decode : plan.decodes) running_.push_back(&running(decode));
    count_step(plan);
    controller_.record(step_.report(), running_);
    for (Running* run : running_)  // what prompts beside it cost says nothing about a strategy
      if (run->plan.profiled && plan.chunks.empty())
        run->record_profiled(step_.report().draft_ms + step_.report().pass_ms + step_.report().select_ms);
    if (parts_.trace) trace_step(plan, start);
    for (const auto& decode : plan.decodes) collect(running(decode));
    for (const auto& chunk : plan.chunks) {
      if (parts_.options.progress && plan.decodes.empty() && plan.chunks.size() == 1)
        parts_.options.progress("prefill", chunk.who->sequence.committed_len, chunk.who->prefill_target);
      collect(running(chunk));
    }
    sessions_.remove_if([](const auto& session) { return session->over; });
  }
  update_stats(any);
  return any;
}

// The step that just ran: its tokens, and what it took beside what plain decoding would have, for its requests and in all.
void Service::count_step(const StepPlan& plan) {
  const StepReport& report = step_.report();
  const double plain = controller_.plain_ms(report);
  int64_t made = 0, step_tokens = 0;
  double plain_all = 0;
  for (const auto& chunk : plan.chunks) {
    const Running& run = running(chunk);
    step_tokens += chunk.rows + run.sequence.len() - run.emitted_first;
  }
  for (Running* run : running_) {
    const int64_t tokens = run->sequence.len() - run->emitted_first;
    step_tokens += tokens;
    if (plain <= 0 || !run->failure.ok()) continue;
    run->stats.plain_tokens += tokens, run->stats.plain_milliseconds += plain * tokens;
    made += tokens, plain_all += plain * tokens / running_.size();
  }
  const std::lock_guard lock(mutex_);
  stats_.step_tokens += step_tokens;
  const size_t power = std::bit_width(uint64_t(std::max<int64_t>(1, step_tokens) - 1));
  ++stats_.steps_by_tokens[std::min(power, stats_.steps_by_tokens.size() - 1)];
  stats_.experts_read += report.experts_read;
  stats_.draft_ms += report.draft_ms, stats_.pass_ms += report.pass_ms, stats_.select_ms += report.select_ms;
  if (made == 0) return;
  stats_.compared_tokens += made, stats_.compared_plain_ms += plain_all;
  stats_.compared_ms += report.draft_ms + report.pass_ms + report.select_ms;
}

void Service::trace_step(const StepPlan& plan, Clock::time_point start) {
  Trace& trace = *parts_.trace;
  const StepReport& report = step_.report();
  double at = 0;
  const auto part = [&](std::string_view name, double ms, const std::string& args) {
    if (ms > 0) trace.span(0, name, start + clock_time(at), ms, args);
    at += ms;
  };
  int64_t prompt_rows = 0;
  for (const auto& chunk : plan.chunks) prompt_rows += chunk.rows;
  part("draft", report.draft_ms, "");
  part("pass", report.pass_ms,
      fmt::format(R"("requests":{},"verify_rows":{},"prompt_rows":{},"entries":{},"learning":{},"launched":{})", report.decodes,
          report.verify_rows, prompt_rows, report.entries, report.learning, report.launched));
  part("select", report.select_ms, fmt::format(R"("requests":{})", report.learning));
  for (const auto& decode : plan.decodes) {
    const Running& run = running(decode);
    const int drafted = run.tree().size;
    trace.span(static_cast<const Session*>(run.owner)->lane, drafted > 0 ? "round" : "token", start, at,
        fmt::format(R"("drafter":"{}","drafted":{},"accepted":{},"tokens":{})",
            run.chosen < 0 ? "" : run.drafters[run.chosen].name, drafted, run.emitted_drafts,
            run.sequence.len() - run.emitted_first));
  }
  for (const auto& chunk : plan.chunks)
    trace.span(static_cast<const Session*>(running(chunk).owner)->lane, "prompt", start, at,
        fmt::format(R"("rows":{},"done":{},"of":{})", chunk.rows, chunk.who->sequence.committed_len, chunk.who->prefill_target));
}

// Who waited until now.
void Service::begin(const StepPlan& plan) {
  for (const auto& chunk : plan.chunks) {
    Session& session = *static_cast<Session*>(running(chunk).owner);
    if (std::exchange(session.began, true)) continue;
    session.running->stats.milliseconds.queued = now_ms() - session.since_ms;
    if (!parts_.trace) continue;
    session.lane = ++lanes_;
    parts_.trace->lane(session.lane, fmt::format("request {}", session.lane));
    const double waited = session.running->stats.milliseconds.queued;
    parts_.trace->span(session.lane, "wait", Clock::now() - clock_time(waited), waited,
        fmt::format(R"("prompt_tokens":{})", session.running->stats.prompt_tokens));
  }
}

// How every request that decodes drafts in the next step.
void Service::decide() {
  running_.clear();
  for (const auto& session : sessions_) {
    Running& run = *session->running;
    run.paused = session->channel->full();
    run.want_drafts = 0;
    if (!run.seated_now || run.prefilling() || run.paused) continue;
    if (run.plan.planned || run.plan.paced) running_.push_back(&run);
    else if (run.plan.profiled) run.decide_as_profiled();
    else run.decide_as_asked();
  }
  controller_.decide(running_, step_);
}

void Service::admit_orders() {
  std::vector<Order> orders;
  {
    const std::lock_guard lock(mutex_);
    orders.swap(orders_);
    stats_.waiting += int(orders.size());  // until the step has counted them
  }
  for (Order& order : orders) open_session(std::move(order));
}

void Service::open_session(Order&& order) {
  if (order.plan.planned && order.request.speculation.ratio == 0) order.plan.policy.ratio = controller_.ratio();
  auto running = Running::make(parts_, order.plan, order.request);
  if (!running.ok()) return order.channel->end(running.error());
  const Tokenizer* tokenizer = parts_.tokenizer ? &*parts_.tokenizer : nullptr;
  sessions_.push_back(std::make_unique<Session>(
      order.channel, std::move(*running), Ending(order.request, end_ids_of(order.request, parts_), tokenizer), order.since_ms));
  Session& session = *sessions_.back();
  Running& run = *session.running;
  run.owner = &session;
  Generation& stats = run.stats;
  const RequestPlan& plan = run.plan;
  stats.prompt_tokens = run.sequence.prompt_len;
  stats.proposer = plan.proposer, stats.rule = plan.rule, stats.seed = plan.noise.seed;
  stats.policy = run.policy ? plan.policy_name : "";
  stats.ratio = run.policy && stats.policy != "full" ? plan.policy.ratio : 0;
  stats.gamma = run.drafting() ? plan.gamma : 0;
  stats.approximation = plan.approximation;
  stats.lossless = run.lossless();
  stats.milliseconds.load = parts_.load_ms;
  step_.prepare(run);
  controller_.get_ready(run);
  scheduler_.add(run);
}

void Service::end_cancelled() {
  for (const auto& session : sessions_)
    if (session->channel->cancelled) say_rest(), finish(*session, {});
  sessions_.remove_if([](const auto& session) { return session->over; });
}

// The token at position `at` of the sequence, guessed by a drafter or (-1) the target's own.
void Service::Session::say(int64_t at, int drafter) {
  Running& run = *running;
  Generation& stats = run.stats;
  const int32_t id = run.sequence.tokens[at];
  Ending::Said said = ending.take(id, at + 1 >= run.sequence.max_len);
  over = said.end;
  if (!said.emitted) return;
  TokenEvent event{
      .id = id,
      .from = drafter >= 0 ? TokenEvent::From::Draft : TokenEvent::From::Target,
      .index = std::ssize(stats.tokens),
      .text = std::move(said.text),
  };
  if (drafter >= 0) event.drafter = Register<Proposer>::find(run.drafters[drafter].name)->name;
  if (run.plan.logprobs >= 0) {
    const size_t nth = at - run.emitted_first;
    event.logprob = run.logprobs[nth], event.top = run.top[nth];
    stats.logprobs.push_back(event.logprob), stats.top.push_back(event.top);
  }
  stats.tokens.push_back(id);
  channel->push(std::move(event));
}

// What the step gave a request: on to its consumer, up to the end if there is one.
void Service::collect(Running& run) {
  Session& session = *static_cast<Session*>(run.owner);
  if (!run.failure.ok()) return finish(session, run.failure);
  const Sequence& sequence = run.sequence;
  const int64_t first = run.emitted_first;
  run.stats.reused_tokens = run.found;
  const Given given{&session, first, sequence.len(), run.emitted_drafts, run.chosen};
  bool later = later_ && session.first_ms > 0 && run.plan.verify && run.plan.logprobs < 0;
  for (int64_t at = first; at < given.end && later; ++at)
    later = !session.ending.may_end(sequence.tokens[at], at + 1 >= sequence.max_len);
  if (later) unsaid_.push_back(given);
  for (int64_t at = first; at < given.end && !session.over && !later; ++at) {
    session.say(at, given.by(at));
    // Drafts behind the end were never said.
    for (int64_t i = at - first + 1; session.over && run.plan.verify && i < run.emitted_drafts; ++i)
      --run.stats.accepted, --run.stats.accepted_by_position[i], --run.stats.draft_rounds.back().accepted;
  }
  if (sequence.len() > first) {
    session.last_ms = now_ms();
    if (session.first_ms == 0) session.first_ms = session.last_ms;
  }
  scheduler_.committed(run);
  if (session.over) finish(session, {});
  else if (!later) count(session), session.channel->tell();
}

void Service::say_rest() {
  for (const Given& given : unsaid_) {
    for (int64_t at = given.first; at < given.end; ++at) given.session->say(at, given.by(at));
    count(*given.session), given.session->channel->tell();
  }
  unsaid_.clear();
}

// Into the totals: what a request has written and guessed since it was counted last.
void Service::count(Session& session) {
  const Generation& run = session.running->stats;
  const Session::Counts now{std::ssize(run.tokens), run.rounds, run.drafted, run.accepted};
  const Session::Counts then = std::exchange(session.counted, now);
  const std::lock_guard lock(mutex_);
  stats_.generated_tokens += now.tokens - then.tokens, stats_.rounds += now.rounds - then.rounds;
  stats_.drafted += now.drafted - then.drafted, stats_.accepted += now.accepted - then.accepted;
}

void Service::finish(Session& session, Status failure) {
  session.over = true;
  Running& run = *session.running;
  scheduler_.remove(run);
  Generation& out = run.stats;
  run.label();
  session.ending.flush();
  out.text = session.ending.text();
  out.finish = session.ending.reason();
  out.stopped_by = session.ending.stopped_by(), out.stopped_by_id = session.ending.stopped_by_id();
  watch_acceptance(parts_, run);
  count(session);
  out.milliseconds.first_to_last_token = session.last_ms - session.first_ms;
  {
    const std::lock_guard lock(mutex_);
    ++(session.channel->cancelled ? stats_.requests_aborted : stats_.requests_finished);
    stats_.prompt_tokens += out.prompt_tokens;
    stats_.corrupted += !failure.ok() && failure.error().message.starts_with("numerical_error");
    add_to(stats_.drafted_by_position, out.drafted_by_position), add_to(stats_.accepted_by_position, out.accepted_by_position);
  }
  update_stats(false);  // whoever sees the end of the stream sees that its pages are free
  if (failure.ok()) session.channel->end(std::move(out));
  else session.channel->end(failure.error());
}

void Service::update_stats(bool ran) {
  const SchedulerStats& scheduled = scheduler_.stats();
  const std::lock_guard lock(mutex_);
  stats_.running = scheduler_.num_running();
  stats_.waiting = scheduler_.num_waiting();
  stats_.kv_pages_cached = parts_.pool->num_kept();
  stats_.kv_pages_used = stats_.kv_pages_total - parts_.pool->num_free();
  stats_.prefix_tokens_asked = scheduled.prefix_asked, stats_.prefix_tokens_hit = scheduled.prefix_found;
  stats_.preemptions = scheduled.preemptions, stats_.drafts_dropped = scheduled.drafts_dropped;
  stats_.entries_offered = parts_.pass->entries_offered(), stats_.entries_selected = parts_.pass->entries_selected();
  stats_.passes += ran;
}

Heartbeat Service::heartbeat() const {
  return {.beats = steps_.load(std::memory_order_relaxed) + parts_.pass->layers_run(),
      .busy = busy_.load(std::memory_order_relaxed),
      .lost = step_.device_lost(),
      .doing = step_.doing()};
}
}
