// Engine: the public face. Validates a request, runs it to its end, counts what happened.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "engine/parts.h"
#include "engine/plan.h"
#include "engine/step.h"
#include "hunch/hunch.h"

namespace hunch {
namespace {

double now_ms() { return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

uint64_t kv_bytes(const Backend& backend) {
  const BackendCounters& c = backend.counters();
  return c.kv_bytes + c.score_bytes + c.gather_bytes;
}

Status check_prompt(const Request& request, const EngineParts& parts) {
  const int64_t vocab = parts.model->shape().vocab_size, length = int64_t(request.prompt.size());
  if (length == 0) return usage_error("the prompt is empty: give at least one token");
  if (length >= parts.context_len)
    return Error{fmt::format("the prompt has {} tokens, the context holds {}: shorten the prompt or raise -c (and --kv-memory)",
                             length, parts.context_len)};
  for (int64_t i = 0; i < length; ++i)
    if (request.prompt[size_t(i)] < 0 || request.prompt[size_t(i)] >= vocab)
      return usage_error(fmt::format("prompt token {} is {}; ids must lie in [0, {})", i, request.prompt[size_t(i)], vocab));
  if (request.max_tokens < -1 || request.max_tokens == 0)
    return usage_error(fmt::format("max tokens is {}; it must be at least 1, or -1 for no limit", request.max_tokens));
  return {};
}

}  // namespace

double Generation::mean_acceptance_length() const { return rounds == 0 ? 1.0 : 1.0 + double(accepted) / double(rounds); }

std::vector<double> Generation::acceptance_by_position() const {
  std::vector<double> out;
  for (size_t i = 0; i < drafted_by_position.size() && drafted_by_position[i] > 0; ++i)
    out.push_back(double(accepted_by_position[i]) / double(drafted_by_position[i]));
  return out;
}

double Generation::tokens_per_second() const {
  return tokens.size() < 2 || milliseconds.first_to_last_token <= 0
             ? 0.0
             : double(tokens.size() - 1) * 1e3 / milliseconds.first_to_last_token;
}

double Generation::kv_bytes_per_token() const {
  return tokens.size() < 2 ? 0.0 : double(kv_bytes_read) / double(tokens.size() - 1);
}

Engine::Engine(std::unique_ptr<EngineParts> parts) : parts_(std::move(parts)) {}
Engine::~Engine() = default;

Result<std::unique_ptr<Engine>> Engine::load(const EngineOptions& options) {
  HUNCH_TRY(auto parts, EngineParts::load(options));
  return std::unique_ptr<Engine>(new Engine(std::move(parts)));
}

Result<Generation> Engine::generate(const Request& request, const OnToken& on_token, const std::atomic<bool>* interrupted) {
  HUNCH_OK(check_prompt(request, *parts_));
  HUNCH_TRY(const RequestPlan plan,
            plan_request(request, parts_->checkpoint->sampling(), parts_->options.max_draft, parts_->bits_per_weight()));
  HUNCH_TRY(auto step, Step::make(*parts_, plan, request));
  Sequence& sequence = step->sequence();
  if (request.cache_prompt) step->adopt_kept();
  parts_->forget_kept();  // whatever was not adopted

  std::vector<int32_t> stops = request.stop_ids;
  if (!request.ignore_eos) {
    const auto& eos = parts_->model->shape().eos_ids;
    stops.insert(stops.end(), eos.begin(), eos.end());
  }
  Generation& out = step->stats;
  out.prompt_tokens = sequence.prompt_len;
  out.proposer = plan.proposer;
  out.rule = plan.rule;
  out.policy = plan.proposer == "none" ? "" : plan.policy_name;
  out.gamma = plan.proposer == "none" ? 0 : plan.gamma;
  out.seed = plan.noise.seed;
  out.lossless = step->guarantee() != Guarantee::Lossy;
  out.milliseconds.load = parts_->load_ms;

  HUNCH_TRY(const bool prefilled, step->prefill(interrupted));
  if (!prefilled) {
    out.finish = FinishReason::Interrupted;
    return std::move(out);
  }
  const uint64_t bytes_before = kv_bytes(*parts_->backend);
  const double first_ms = now_ms();
  double last_ms = first_ms;
  bool going = true;
  // Emits tokens [first, end of the sequence); of those the first `drafts` were guessed. Clears `going` at a stop.
  const auto emit = [&](int64_t first, int drafts) {
    for (int64_t at = first; at < sequence.len() && going; ++at) {
      const int32_t id = sequence.tokens[size_t(at)];
      const bool stop = std::find(stops.begin(), stops.end(), id) != stops.end();
      if (stop || at + 1 >= sequence.max_len) {  // drafts behind the end were never said
        going = false;
        for (int64_t i = at - first + 1; plan.verify && i < drafts; ++i) --out.accepted, --out.accepted_by_position[size_t(i)];
      }
      if (stop) {
        out.finish = FinishReason::Stop;
        break;
      }
      out.tokens.push_back(id);
      const TokenEvent event{id, at - first < drafts ? TokenEvent::From::Draft : TokenEvent::From::Target,
                             int64_t(out.tokens.size()) - 1};
      if (on_token && !on_token(event)) out.finish = FinishReason::Interrupted, going = false;
    }
    last_ms = now_ms();
  };
  emit(sequence.prompt_len, 0);
  while (going) {
    if (interrupted && *interrupted) {
      out.finish = FinishReason::Interrupted;
      break;
    }
    HUNCH_TRY(const auto emitted, step->round());
    emit(emitted.first, emitted.drafts);
  }
  out.milliseconds.first_to_last_token = last_ms - first_ms;
  if (request.cache_prompt) step->keep();
  out.kv_bytes_read = kv_bytes(*parts_->backend) - bytes_before;
  return std::move(out);
}

const Tokenizer& Engine::tokenizer() const { return *parts_->tokenizer; }
int64_t Engine::context_len() const { return parts_->context_len; }
std::string Engine::model_name() const { return parts_->model->shape().name; }
std::string Engine::chat_template() const { return parts_->checkpoint->tokenizer().chat_template; }
double Engine::load_milliseconds() const { return parts_->load_ms; }
EngineParts& Engine::parts() { return *parts_; }

std::string Engine::description() const {
  const ModelShape& shape = parts_->model->shape();
  return fmt::format("{}, {}, {:.1f} MB of weights; {}; kv {}", shape.name.empty() ? "model" : shape.name, shape.family,
                     double(parts_->model->weight_bytes()) / 1e6, parts_->backend->description(),
                     dtype_info(parts_->geometry.dtype).name);
}

}  // namespace hunch
