// The extension module hunch._hunch: include/hunch/hunch.h for Python, as thin as it can be. hunch/llm.py is what people use;
// names and defaults here are the engine's.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <limits>
#include <memory>

#include "api/answer_json.h"
#include "api/json_text.h"
#include "engine/approximation.h"
#include "engine_handle.h"
#include "text/tokenizer.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace hunch::python {
namespace {

using Floats = nb::ndarray<nb::numpy, float>;
using Ids = nb::ndarray<nb::numpy, int32_t>;

// An array that owns a copy of `values`.
template <class T>
nb::ndarray<nb::numpy, T> array(std::vector<T> values, std::vector<size_t> shape) {
  auto owned = std::make_unique<std::vector<T>>(std::move(values));
  T* data = owned->data();
  nb::capsule owner(owned.release(), [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::numpy, T>(data, shape.size(), shape.data(), owner);
}

// Rows of the likeliest tokens as two arrays [row][rank]. Rows may be shorter than asked where the vocabulary is: -1 and -inf.
std::pair<Ids, Floats> ranked(const std::vector<std::vector<TokenLogprob>>& rows) {
  size_t width = 0;
  for (const auto& row : rows) width = std::max(width, row.size());
  std::vector<int32_t> ids(rows.size() * width, -1);
  std::vector<float> logprobs(rows.size() * width, -std::numeric_limits<float>::infinity());
  for (size_t i = 0; i < rows.size(); ++i)
    for (size_t k = 0; k < rows[i].size(); ++k) ids[i * width + k] = rows[i][k].id, logprobs[i * width + k] = rows[i][k].logprob;
  return {array(std::move(ids), {rows.size(), width}), array(std::move(logprobs), {rows.size(), width})};
}

void bind_options(nb::module_& m) {
  nb::class_<EngineOptions>(m, "EngineOptions", "How an engine is loaded; the fields of hunch::EngineOptions.")
      .def(nb::init<>())
      .def_rw("model", &EngineOptions::model)
      .def_rw("device", &EngineOptions::device)
      .def_rw("isa", &EngineOptions::isa)
      .def_rw("threads", &EngineOptions::threads)
      .def_rw("kv_dtype", &EngineOptions::kv_dtype)
      .def_rw("context_len", &EngineOptions::context_len)
      .def_rw("kv_memory_bytes", &EngineOptions::kv_memory_bytes)
      .def_rw("max_num_seqs", &EngineOptions::max_num_seqs)
      .def_rw("max_num_batched_tokens", &EngineOptions::max_num_batched_tokens)
      .def_rw("max_waiting", &EngineOptions::max_waiting)
      .def_rw("prefix_caching", &EngineOptions::prefix_caching)
      .def_rw("verify_calibration", &EngineOptions::verify_calibration)
      .def(
          "load_drafters", [](EngineOptions& options, const std::string& config) { options.drafters = drafters_of(config); },
          "config"_a, "Names the drafters of a speculative configuration (JSON), to be loaded with the engine.");

  nb::class_<SpeculationOptions>(m, "SpeculationOptions", "How a request guesses; made by Engine.speculation().")
      .def(nb::init<>())
      .def_ro("method", &SpeculationOptions::proposer)
      .def_ro("num_speculative_tokens", &SpeculationOptions::num_tokens)
      .def_ro("sparse_attn_algorithm", &SpeculationOptions::policy)
      .def_ro("sparse_attn_ratio", &SpeculationOptions::ratio)
      .def_ro("rule", &SpeculationOptions::rule);

  nb::class_<SamplingOptions>(m, "SamplingOptions", "How tokens are chosen; the fields of hunch::SamplingOptions.")
      .def(nb::init<>())
      .def_rw("temperature", &SamplingOptions::temperature)
      .def_rw("top_p", &SamplingOptions::top_p)
      .def_rw("min_p", &SamplingOptions::min_p)
      .def_rw("top_k", &SamplingOptions::top_k)
      .def_rw("seed", &SamplingOptions::seed)
      .def_rw("repetition_penalty", &SamplingOptions::repetition_penalty)
      .def_rw("presence_penalty", &SamplingOptions::presence_penalty)
      .def_rw("frequency_penalty", &SamplingOptions::frequency_penalty)
      .def_rw("logit_bias", &SamplingOptions::logit_bias)
      .def_rw("allowed_token_ids", &SamplingOptions::allowed_token_ids)
      .def_rw("bad_words", &SamplingOptions::bad_words)
      .def_rw("min_tokens", &SamplingOptions::min_tokens)
      .def_rw("logprobs", &SamplingOptions::logprobs)
      .def_rw("prompt_logprobs", &SamplingOptions::prompt_logprobs);

  nb::class_<Request>(m, "Request", "One sample of one prompt; the fields of hunch::Request.")
      .def(nb::init<>())
      .def_rw("prompt", &Request::prompt)
      .def_rw("max_tokens", &Request::max_tokens)
      .def_rw("ignore_eos", &Request::ignore_eos)
      .def_rw("stop_ids", &Request::stop_ids)
      .def_rw("stop", &Request::stop)
      .def_rw("cache_salt", &Request::cache_salt)
      .def_rw("skip_special_tokens", &Request::skip_special_tokens)
      .def_rw("priority", &Request::priority)
      .def_rw("sample_index", &Request::sample_index)
      .def_rw("sampling", &Request::sampling)
      .def_rw("speculation", &Request::speculation)
      .def(
          "constrain",
          [](Request& request, const std::string& kind, std::string text, std::vector<std::string> choices) {
            using Kind = StructuredOutput::Kind;
            const std::pair<std::string_view, Kind> kinds[] = {
                {"json", Kind::JsonSchema},
                {"json_object", Kind::JsonObject},
                {"regex", Kind::Regex},
                {"choice", Kind::Choice},
                {"grammar", Kind::Grammar},
            };
            for (const auto& [name, value] : kinds)
              if (name == kind) {
                request.structured = {value, std::move(text), std::move(choices)};
                return;
              }
            throw UsageError("unknown kind of structured output: " + kind);
          },
          "kind"_a, "text"_a = "", "choices"_a = std::vector<std::string>(),
          "What the output must look like: json (text: a schema), json_object, regex, grammar, choice.");
}

void bind_results(nb::module_& m) {
  nb::class_<TokenEvent>(m, "TokenEvent", "One token of a running request.")
      .def_ro("id", &TokenEvent::id)
      .def_ro("index", &TokenEvent::index)
      .def_ro("text", &TokenEvent::text)
      .def_ro("logprob", &TokenEvent::logprob)
      .def_prop_ro("drafted", [](const TokenEvent& e) { return e.from == TokenEvent::From::Draft; })
      .def_prop_ro("drafter", [](const TokenEvent& e) { return std::string(e.drafter); })
      .def_prop_ro("top", [](const TokenEvent& e) {
        std::vector<std::pair<int32_t, float>> out;
        for (const TokenLogprob& one : e.top) out.emplace_back(one.id, one.logprob);
        return out;
      });

  nb::class_<Generation>(m, "Generation", "What came of a request; the fields of hunch::Generation.")
      .def_ro("tokens", &Generation::tokens)
      .def_ro("text", &Generation::text)
      .def_prop_ro("finish_reason", [](const Generation& g) { return std::string(finish_name(g.finish)); })
      .def_ro("stopped_by", &Generation::stopped_by)
      .def_ro("stopped_by_id", &Generation::stopped_by_id)
      .def_prop_ro(
          "logprobs", [](const Generation& g) { return array(g.logprobs, {g.logprobs.size()}); }, nb::rv_policy::move)
      .def_prop_ro(
          "top", [](const Generation& g) { return ranked(g.top); }, nb::rv_policy::move)
      .def_prop_ro(
          "prompt_logprobs",
          [](const Generation& g) {
            std::vector<float> values;
            for (const TokenLogprob& one : g.prompt_logprobs) values.push_back(one.logprob);
            const size_t n = values.size();
            return array(std::move(values), {n});
          },
          nb::rv_policy::move)
      .def_prop_ro(
          "prompt_top", [](const Generation& g) { return ranked(g.prompt_top); }, nb::rv_policy::move)
      .def_ro("lossless", &Generation::lossless)
      .def_prop_ro(
          "approx", [](const Generation& g) { return g.approximation.any() ? approximation_json(g.approximation).dump() : ""; })
      .def_ro("rule", &Generation::rule)
      .def_ro("policy", &Generation::policy)
      .def_ro("proposer", &Generation::proposer)
      .def_ro("warning", &Generation::warning)
      .def_ro("seed", &Generation::seed)
      .def_ro("gamma", &Generation::gamma)
      .def_ro("prompt_tokens", &Generation::prompt_tokens)
      .def_ro("reused_tokens", &Generation::reused_tokens)
      .def_ro("rounds", &Generation::rounds)
      .def_ro("drafted", &Generation::drafted)
      .def_ro("accepted", &Generation::accepted)
      .def_ro("draft_passes", &Generation::draft_passes)
      .def_prop_ro("mean_acceptance_length", &Generation::mean_acceptance_length)
      .def_prop_ro("acceptance_by_position", &Generation::acceptance_by_position)
      .def_prop_ro("tokens_per_second", &Generation::tokens_per_second)
      .def_prop_ro("plain_tokens_per_second", &Generation::plain_tokens_per_second)
      .def_prop_ro("kv_bytes_read_per_token", &Generation::kv_bytes_per_token)
      .def_prop_ro("prefill_ms", [](const Generation& g) { return g.milliseconds.prefill; })
      .def_prop_ro("decode_ms", [](const Generation& g) { return g.milliseconds.first_to_last_token; });

  nb::class_<EngineStats>(m, "EngineStats", "What an engine did since it was loaded; the fields of hunch::EngineStats.")
      .def_ro("running", &EngineStats::running)
      .def_ro("waiting", &EngineStats::waiting)
      .def_ro("kv_pages_used", &EngineStats::kv_pages_used)
      .def_ro("kv_pages_cached", &EngineStats::kv_pages_cached)
      .def_ro("kv_pages_total", &EngineStats::kv_pages_total)
      .def_ro("prefix_tokens_asked", &EngineStats::prefix_tokens_asked)
      .def_ro("prefix_tokens_hit", &EngineStats::prefix_tokens_hit)
      .def_ro("requests_finished", &EngineStats::requests_finished)
      .def_ro("requests_refused", &EngineStats::requests_refused)
      .def_ro("requests_aborted", &EngineStats::requests_aborted)
      .def_ro("preemptions", &EngineStats::preemptions)
      .def_ro("passes", &EngineStats::passes)
      .def_ro("prompt_tokens", &EngineStats::prompt_tokens)
      .def_ro("generated_tokens", &EngineStats::generated_tokens)
      .def_ro("rounds", &EngineStats::rounds)
      .def_ro("drafted", &EngineStats::drafted)
      .def_ro("accepted", &EngineStats::accepted)
      .def_ro("drafts_dropped", &EngineStats::drafts_dropped)
      .def_ro("compared_tokens", &EngineStats::compared_tokens)
      .def_ro("compared_ms", &EngineStats::compared_ms)
      .def_ro("compared_plain_ms", &EngineStats::compared_plain_ms)
      .def_ro("draft_ms", &EngineStats::draft_ms)
      .def_ro("pass_ms", &EngineStats::pass_ms)
      .def_ro("select_ms", &EngineStats::select_ms)
      .def_ro("drafted_by_position", &EngineStats::drafted_by_position)
      .def_ro("accepted_by_position", &EngineStats::accepted_by_position)
      .def_prop_ro("prefix_hit_rate", &EngineStats::prefix_hit_rate);
}

void bind_engine(nb::module_& m) {
  nb::class_<StreamHandle>(m, "Stream", "A running request. Dropping it cancels the request.")
      .def("take", &StreamHandle::take, "milliseconds"_a,
          "The tokens that came, waiting for the first of them at most so long; ends early on a signal.")
      .def("finished", &StreamHandle::finished, "Whether no more tokens will come.")
      .def("cancel", &StreamHandle::cancel, "Ends it between two passes; tokens that are out stay out.")
      .def("result", &StreamHandle::result, "What came of it; waits for the end.")
      .def("close", &StreamHandle::close, "Ends it and gives its memory back.");

  nb::class_<EngineHandle>(m, "Engine", "A loaded model that runs requests on a thread of its own.")
      .def(nb::init<const EngineOptions&>(), "options"_a)
      .def("submit", &EngineHandle::submit, "request"_a, nb::keep_alive<0, 1>(), "Queues a request and returns at once.")
      .def("wait_any", &EngineHandle::wait_any, "streams"_a,
          "Drops the tokens of these streams until one at least is over; the indices of those that are.")
      .def(
          "encode",
          [](EngineHandle& self, nb::bytes text, bool special, bool bos) {
            return self.encode({text.c_str(), text.size()}, special, bos);
          },
          "text"_a, "parse_special"_a = true, "add_bos"_a = true)
      .def("decode", &EngineHandle::decode, "ids"_a, "skip_special"_a = true)
      .def(
          "token_bytes",
          [](EngineHandle& self, int32_t id) {
            const std::string bytes = self.token_bytes(id);
            return nb::bytes(bytes.data(), bytes.size());
          },
          "id"_a)
      .def("token_id", &EngineHandle::token_id, "text"_a)
      .def("encode_chat", &EngineHandle::encode_chat, "messages"_a, "tools"_a = "null", "kwargs"_a = "null",
          "A conversation (all JSON) to ids by the model's template; also the ids that end an answer.")
      .def("speculation", &EngineHandle::speculation, "config"_a,
          "A speculative configuration (JSON) for this engine's requests, which can name only drafters that it loaded.")
      .def("stats", [](EngineHandle& self) { return self.engine().stats(); })
      .def_prop_ro("context_len", [](EngineHandle& self) { return self.engine().context_len(); })
      .def_prop_ro("vocab_size", [](EngineHandle& self) { return self.tokenizer().vocab_size(); })
      .def_prop_ro("bos_id", [](EngineHandle& self) { return self.tokenizer().bos_id(); })
      .def_prop_ro("eos_ids", [](EngineHandle& self) { return self.tokenizer().eos_ids(); })
      .def_prop_ro("description", [](EngineHandle& self) { return self.engine().description(); })
      .def_prop_ro("model_name", [](EngineHandle& self) { return self.engine().model_name(); })
      .def_prop_ro("chat_template", [](EngineHandle& self) { return self.engine().chat_template(); })
      .def_prop_ro("closed", &EngineHandle::closed)
      .def("close", &EngineHandle::close, "Cancels what runs and frees the model.");
}

}  // namespace
}  // namespace hunch::python

NB_MODULE(_hunch, m) {
  using namespace hunch::python;
  m.doc() = "hunch's engine; see hunch.LLM for what programs use.";
  m.attr("version") = HUNCH_VERSION;
  nb::set_leak_warnings(false);  // a forked child leaves its parent's engine alone, on purpose
  // Messages may quote bytes of a file that are no text.
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    const auto set = [](PyObject* type, const char* what) {
      const nb::object text = nb::steal(PyUnicode_DecodeUTF8(what, Py_ssize_t(std::strlen(what)), "replace"));
      PyErr_SetObject(type, text.ptr());
    };
    try {
      std::rethrow_exception(thrown);
    } catch (const UsageError& e) { set(PyExc_ValueError, e.what()); } catch (const EngineError& e) {
      set(PyExc_RuntimeError, e.what());
    }
  });
  bind_options(m);
  bind_results(m);
  bind_engine(m);
}
