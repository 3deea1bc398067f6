// Engine: the public face of parts and service.
#include <fmt/format.h>

#include "base/clock.h"
#include "checkpoint/config.h"
#include "engine/parts.h"
#include "engine/service.h"
#include "hunch/hunch.h"

namespace hunch {
namespace {

class ServiceStream final : public TokenStream {
 public:
  ServiceStream(Service& service, Channel* channel) : service_(service), channel_(channel) {}
  ~ServiceStream() override { service_.release(channel_); }

  std::optional<TokenEvent> next() override {
    for (;;) {
      auto event = next_within(1000);
      if (event || finished()) return event;
    }
  }
  std::optional<TokenEvent> next_within(double milliseconds) override {
    bool drained = false;
    auto event = channel_->take_until(Clock::now() + std::chrono::duration<double, std::milli>(milliseconds), drained);
    if (drained) service_.wake();
    return event;
  }
  bool finished() const override { return channel_->ended() && channel_->empty(); }
  void cancel() override {
    channel_->cancelled = true;
    service_.wake();
  }
  Result<Generation> result() override {
    while (!finished()) next();
    if (!outcome_) outcome_.emplace(channel_->take_outcome());
    return *outcome_;
  }

 private:
  Service& service_;
  Channel* channel_;
  std::optional<Result<Generation>> outcome_;
};

// The part of a generation that was taken before its consumer had enough.
void cut(Generation& out, size_t tokens, std::string text) {
  if (out.tokens.size() <= tokens) return;
  out.tokens.resize(tokens);
  out.text = std::move(text);
  if (out.logprobs.size() > tokens) out.logprobs.resize(tokens);
  if (out.top.size() > tokens) out.top.resize(tokens);
}

}

double Generation::mean_acceptance_length() const { return rounds == 0 ? 1.0 : 1.0 + double(accepted) / rounds; }

std::vector<double> Generation::acceptance_by_position() const {
  std::vector<double> out;
  for (size_t i = 0; i < drafted_by_position.size() && drafted_by_position[i] > 0; ++i)
    out.push_back(double(accepted_by_position[i]) / drafted_by_position[i]);
  return out;
}

double Generation::tokens_per_second() const {
  return tokens.size() < 2 || milliseconds.first_to_last_token <= 0
      ? 0.0
      : (tokens.size() - 1) * 1e3 / milliseconds.first_to_last_token;
}

double Generation::plain_tokens_per_second() const {
  return plain_milliseconds > 0 ? plain_tokens * 1e3 / plain_milliseconds : 0.0;
}

double Generation::experts_per_step() const { return steps > 0 ? double(experts_read) / steps : 0.0; }

double Generation::kv_bytes_per_token() const {
  return tokens.size() < 2 ? 0.0 : double(kv_bytes_read) / double(tokens.size() - 1);
}

Engine::Engine(std::unique_ptr<EngineParts> parts) : parts_(std::move(parts)), service_(std::make_unique<Service>(*parts_)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::load(const EngineOptions& options) {
  HUNCH_TRY(auto parts, EngineParts::load(options));
  return std::unique_ptr<Engine>(new Engine(std::move(parts)));
}

Result<std::unique_ptr<TokenStream>> Engine::submit(const Request& request, OnNews on_news) {
  HUNCH_TRY(Channel * channel, service_->enqueue(request, std::move(on_news)));
  service_->run_in_background();
  return std::unique_ptr<TokenStream>(new ServiceStream(*service_, channel));
}

Result<Generation> Engine::generate(const Request& request, const OnToken& on_token, const std::atomic<bool>* interrupted) {
  HUNCH_TRY(Channel * channel, service_->enqueue(request));
  ServiceStream stream(*service_, channel);
  size_t taken = 0;
  bool enough = false;
  std::string text;
  while (!stream.finished()) {
    if (interrupted && *interrupted) channel->cancelled = true;
    // This thread runs the engine unless another one does already.
    const double patience = service_->try_step() ? 0 : channel->empty() ? 5 : 0;
    for (auto event = stream.next_within(patience); event; event = stream.next_within(0)) {
      if (enough) continue;
      ++taken;
      text += event->text;
      if (on_token && !on_token(*event)) enough = true, channel->cancelled = true;
    }
  }
  HUNCH_TRY(Generation out, stream.result());
  if (enough) {
    cut(out, taken, std::move(text));
    out.finish = FinishReason::Interrupted;
  }
  return out;
}

EngineStats Engine::stats() const { return service_->stats(); }
Heartbeat Engine::heartbeat() const { return service_->heartbeat(); }
const Tokenizer& Engine::tokenizer() const { return *parts_->tokenizer; }
int64_t Engine::context_len() const { return parts_->context_len; }
std::string Engine::model_name() const { return parts_->model->shape().name; }
std::string Engine::chat_template() const { return parts_->checkpoint->tokenizer().chat_template; }
std::string Engine::tool_template() const { return hunch::tool_template(parts_->checkpoint->tokenizer()); }
double Engine::load_milliseconds() const { return parts_->load_ms; }
EngineParts& Engine::parts() { return *parts_; }

std::string Engine::description() const {
  const ModelShape& shape = parts_->model->shape();
  return fmt::format("{}, {}, {:.1f} MB of weights; {}; kv {}", shape.name.empty() ? "model" : shape.name, shape.family,
      double(parts_->model->weight_bytes()) / 1e6, parts_->backend->description(), dtype_info(parts_->geometry.dtype).name);
}

}
