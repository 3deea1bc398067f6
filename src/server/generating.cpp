#include "server/generating.h"

#include <fmt/format.h>

namespace hunch {
namespace {

double seconds_between(Clock::time_point from, Clock::time_point to) { return std::chrono::duration<double>(to - from).count(); }

std::string_view reason_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::Stop: return "stop";
    case FinishReason::Length: return "length";
    default: return "abort";
  }
}

}

Generating::Generating(World& world, std::shared_ptr<Exchange> exchange, Endpoint endpoint, std::string request_id)
    : world_(world),
      exchange_(std::move(exchange)),
      endpoint_(endpoint),
      request_id_(std::move(request_id)),
      body_(exchange_->take_body()) {}

bool Generating::start() {
  exchange_->on_gone = [self = weak_from_this()](std::string_view why) {
    if (const auto job = self.lock()) job->gone(why);
  };
  exchange_->on_room = [self = weak_from_this()] {
    if (const auto job = self.lock()) job->pump();
  };
  const ServerLimits& limits = world_.options.limits;
  body_bytes_ = std::ssize(body_);
  const bool room = (world_.pending_bytes += body_bytes_) <= std::max(limits.max_pending_bytes, body_bytes_);
  if (room && world_.workers.submit([self = shared_from_this()] { self->read(); }, limits.max_queued)) return true;
  world_.pending_bytes -= body_bytes_;
  return false;
}

void Generating::read() {
  if (!cancelled_) {
    auto parsed = Call::parse(endpoint_, body_, world_.models, world_.options.api, request_id_);
    if (auto* error = std::get_if<ApiError>(&parsed)) error_ = std::move(*error);
    else call_ = std::move(std::get<std::unique_ptr<Call>>(parsed));
  }
  std::string().swap(body_);
  world_.pending_bytes -= body_bytes_;
  const size_t choices = call_ ? call_->choices() : 0;
  streams_.reserve(choices);
  for (size_t i = 0; i < choices && !cancelled_ && !error_; ++i) {
    auto stream = call_->model().engine->submit(call_->request(i), [weak = weak_from_this()] {
      const auto job = weak.lock();
      if (job && !job->news_posted_.exchange(true))
        job->world_.loop.post([job] {
          job->news_posted_ = false;
          job->pump();
        });
    });
    if (stream.ok()) streams_.push_back({.stream = std::move(*stream), .last = since_});
    else error_ = api_error(stream.error());
  }
  if (error_) streams_.clear();  // waits until the engine has let go of those that were taken
  world_.loop.post([self = shared_from_this()] { self->admitted(); });
}

void Generating::admitted() {
  admitted_ = true;
  if (call_)
    for (size_t i = 0; i < world_.models.size(); ++i)
      if (&world_.models.at(i) == &call_->model()) model_index_ = i;
  if (over_) {  // the client left meanwhile, or the server closes
    cancel();
    return pump();
  }
  if (error_) {
    if (error_->status == 429) world_.refused("queue_full", 429);
    else if (error_->status < 500) world_.refused(reason_of(*error_), error_->status);
    return fail(*error_, "error");
  }
  generations_.resize(streams_.size());
  world_.metrics.asked(model_index_, int(streams_.size()), call_->request(0).max_tokens);
  world_.metrics.unknown_fields(model_index_, call_->unknown_fields());
  if (call_->stream()) {
    streaming_ = true;
    exchange_->begin(
        {.type = "text/event-stream; charset=utf-8", .headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}}});
    std::string text = call_->opening();
    flush(text);
  }
  pump();
}

// Takes what the engine has for us, as far as the client keeps up.
void Generating::pump() {
  if (pumping_ || !admitted_ || concluded_) return;
  pumping_ = true;
  const auto self = shared_from_this();
  bool more = !over_;
  while (more && !over_) {
    more = false;
    std::string text;
    for (size_t i = 0; i < streams_.size() && !over_; ++i)
      if (!streams_[i].ended) more |= take(i, text);
    if (over_) break;
    flush(text);
    more = more && exchange_->unsent_bytes() < size_t(world_.options.limits.max_unsent_bytes);
    if (!all_ended() || over_) continue;
    if (streaming_) {
      std::string last = call_->closing();
      flush(last);
      over_ = true;
      exchange_->end();
    } else {
      over_ = answering_ = true;
      // With many log-probabilities it takes long. No worker: the server ends.
      const auto make = [self] {
        self->answer_ = self->call_->answer(self->generations_);
        self->world_.loop.post([self] { self->answered(); });
      };
      if (!world_.workers.submit(make, SIZE_MAX)) make();
    }
  }
  pumping_ = false;
  if (over_ && !answering_ && drain()) {
    concluded_ = true;
    streams_.clear();  // here and not wherever the last reference goes: the engine's thread must not wait for itself
    exchange_.reset();
    world_.done(*this);
  }
}

void Generating::answered() {
  answering_ = false;
  exchange_->reply({.body = std::move(answer_)});
  pump();
}

// True: there is more, but the client must take some of its answer first.
bool Generating::take(size_t i, std::string& text) {
  Choice& choice = streams_[i];
  const size_t most = world_.options.limits.max_unsent_bytes;
  int64_t came = 0;
  bool crowded = false;
  for (;;) {
    crowded = streaming_ && exchange_->unsent_bytes() + text.size() >= most;
    if (crowded) break;
    const auto event = choice.stream->next_within(0);
    if (!event) break;
    ++came;
    if (streaming_) text += call_->token(i, *event);
  }
  if (came > 0) {
    const auto now = Clock::now();
    if (choice.tokens == 0) choice.first_token_seconds = seconds_between(since_, now);
    else world_.metrics.tokens_came(model_index_, came, seconds_between(choice.last, now));
    choice.tokens += came;
    choice.last = now;
  }
  if (!crowded && choice.stream->finished()) choice_ended(i, text);
  return crowded;
}

void Generating::choice_ended(size_t i, std::string& text) {
  Choice& choice = streams_[i];
  auto outcome = choice.stream->result();
  choice.ended = true, ++ended_;
  FinishedChoice finished{
      .reason = "error",
      .first_token_seconds = choice.first_token_seconds,
      .total_seconds = seconds_between(since_, Clock::now()),
  };
  if (!outcome.ok()) {
    world_.metrics.finished(model_index_, finished);
    world_.log.write_seldom(
        Log::Failure, "failed", "a request failed", {{"id", call_->id()}, {"error", outcome.error().message}});
    flush(text);
    return fail(api_error(outcome.error()), "error");
  }
  finished.generation = &*outcome, finished.reason = reason_of(outcome->finish);
  world_.metrics.finished(model_index_, finished);
  const Generation& g = *outcome;
  if (!g.warning.empty()) world_.log.write_seldom(Log::Warning, "drafter", g.warning);
  world_.log.write(Log::Info, "done",
      {{"id", call_->id()}, {"choice", int64_t(i)}, {"model", call_->model().id}, {"finish", finished.reason},
          {"prompt_tokens", g.prompt_tokens}, {"cached_tokens", g.reused_tokens}, {"tokens", std::ssize(g.tokens)},
          {"tokens_per_second", g.tokens_per_second()}, {"first_token_seconds", finished.first_token_seconds},
          {"seconds", finished.total_seconds}, {"drafted", g.drafted}, {"accepted", g.accepted}});
  if (streaming_) text += call_->ended(i, g);
  else generations_[i] = std::move(*outcome);
}

void Generating::flush(std::string& text) {
  if (text.empty()) return;
  last_sent_ = Clock::now();
  exchange_->send(text);
  text.clear();
}

void Generating::fail(const ApiError& error, std::string_view reason) {
  if (over_) return;
  over_ = true;
  cancel();
  if (streaming_) {
    exchange_->send(call_->failed(error));
    exchange_->end();
  } else {
    exchange_->reply(error_reply(error));
  }
  world_.log.write(error.status >= 500 ? Log::Warning : Log::Debug, "not answered",
      {{"reason", reason}, {"status", int64_t(error.status)}, {"code", error.code}, {"param", error.param}});
  pump();
}

void Generating::stop(const ApiError& error, std::string_view reason) { fail(error, reason); }

void Generating::gone(std::string_view why) {
  if (over_) return;
  over_ = true;
  cancel();
  world_.log.write(Log::Info, "client left", {{"why", why}, {"id", admitted_ && call_ ? std::string_view(call_->id()) : ""}});
  // Not from here: the connection that closes is still on the stack.
  world_.loop.post([self = shared_from_this()] { self->pump(); });
}

void Generating::cancel() {
  cancelled_ = true;
  if (!admitted_) return;  // the worker has the streams
  for (Choice& choice : streams_)
    if (choice.stream && !choice.ended) choice.stream->cancel();
}

// Empties the streams of a request that is over. True: the engine has let go of all of them.
bool Generating::drain() {
  bool all = true;
  for (Choice& choice : streams_) {
    if (choice.ended) continue;
    while (choice.stream->next_within(0)) {}
    if (!choice.stream->finished()) {
      all = false;
      continue;
    }
    auto outcome = choice.stream->result();
    choice.ended = true, ++ended_;
    world_.metrics.finished(model_index_,
        {.generation = outcome.ok() ? &*outcome : nullptr,
            .reason = "abort",
            .first_token_seconds = choice.first_token_seconds,
            .total_seconds = seconds_between(since_, Clock::now())});
  }
  return all;
}

void Generating::tick(Clock::time_point now) {
  if (over_) return;
  const ServerLimits& limits = world_.options.limits;
  const double own = admitted_ && call_ ? call_->timeout_seconds() : 0,
               most = own > 0 ? std::min(own, limits.request_timeout) : limits.request_timeout;
  if (seconds_between(since_, now) > most) {
    world_.refused("timeout", 504);
    return fail(api_error(504, fmt::format("the request took longer than {:g} s", most), "timeout"), "timeout");
  }
  if (streaming_ && limits.ping_interval > 0 && seconds_between(last_sent_, now) >= limits.ping_interval) {
    std::string ping = ": ping\n\n";
    flush(ping);
  }
}

}
