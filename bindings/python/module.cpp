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

#include "api/answer_json.h"
#include "api/json_text.h"
#include "engine/approximation.h"
#include "engine_handle.h"

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
  Tokens ids(rows.size() * width, -1);
  std::vector<float> logprobs(rows.size() * width, -INFINITY);
  for (size_t i = 0; i < rows.size(); ++i)
    for (size_t k = 0; k < rows[i].size(); ++k) ids[i * width + k] = rows[i][k].id, logprobs[i * width + k] = rows[i][k].logprob;
  return {array(std::move(ids), {rows.size(), width}), array(std::move(logprobs), {rows.size(), width})};
}

// Of a class T, bound as `c`, under their own names: fields that Python may set, fields and functions that it reads.
#define HUNCH_RW(name) c.def_rw(#name, &T::name)
#define HUNCH_RO(name) c.def_ro(#name, &T::name)
#define HUNCH_SAYS(name) c.def_prop_ro(#name, &T::name)

void bind_options(nb::module_& m) {
  {
    using T = EngineOptions;
    nb::class_<T> c(m, "EngineOptions", "How an engine is loaded; the fields of hunch::EngineOptions.");
    c.def(nb::init<>());
    HUNCH_RW(model), HUNCH_RW(device), HUNCH_RW(isa), HUNCH_RW(threads), HUNCH_RW(kv_dtype), HUNCH_RW(context_len),
        HUNCH_RW(kv_memory_bytes), HUNCH_RW(memory_share), HUNCH_RW(fill_memory), HUNCH_RW(max_num_seqs),
        HUNCH_RW(max_num_batched_tokens), HUNCH_RW(max_waiting), HUNCH_RW(prefix_caching), HUNCH_RW(verify_calibration);
    c.def(
        "load_drafters", [](T& options, const std::string& config) { options.drafters = drafters_of(config); }, "config"_a,
        "Names the drafters of a speculative configuration (JSON), to be loaded with the engine.");
  }

  {
    using T = SpeculationOptions;
    nb::class_<T> c(m, "SpeculationOptions", "How a request guesses; made by Engine.speculation().");
    c.def(nb::init<>());
    c.def_ro("method", &T::proposer);
    c.def_ro("num_speculative_tokens", &T::num_tokens);
    c.def_ro("sparse_attn_algorithm", &T::policy);
    c.def_ro("sparse_attn_ratio", &T::ratio);
    HUNCH_RO(rule);
  }

  {
    using T = SamplingOptions;
    nb::class_<T> c(m, "SamplingOptions", "How tokens are chosen; the fields of hunch::SamplingOptions.");
    c.def(nb::init<>());
    HUNCH_RW(temperature), HUNCH_RW(top_p), HUNCH_RW(min_p), HUNCH_RW(top_k), HUNCH_RW(seed), HUNCH_RW(repetition_penalty),
        HUNCH_RW(presence_penalty), HUNCH_RW(frequency_penalty), HUNCH_RW(logit_bias), HUNCH_RW(allowed_token_ids),
        HUNCH_RW(bad_words), HUNCH_RW(min_tokens), HUNCH_RW(logprobs), HUNCH_RW(prompt_logprobs);
  }

  {
    using T = Request;
    nb::class_<T> c(m, "Request", "One sample of one prompt; the fields of hunch::Request.");
    c.def(nb::init<>());
    HUNCH_RW(prompt), HUNCH_RW(max_tokens), HUNCH_RW(ignore_eos), HUNCH_RW(stop_ids), HUNCH_RW(stop), HUNCH_RW(cache_salt),
        HUNCH_RW(skip_special_tokens), HUNCH_RW(priority), HUNCH_RW(sample_index), HUNCH_RW(sampling), HUNCH_RW(speculation);
    c.def(
        "constrain",
        [](T& request, const std::string& kind, std::string text, std::vector<std::string> choices) {
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
}

void bind_results(nb::module_& m) {
  {
    using T = TokenEvent;
    nb::class_<T> c(m, "TokenEvent", "One token of a running request.");
    HUNCH_RO(id), HUNCH_RO(index), HUNCH_RO(text), HUNCH_RO(logprob);
    c.def_prop_ro("drafted", [](const T& e) { return e.from == TokenEvent::From::Draft; });
    c.def_prop_ro("drafter", [](const T& e) { return std::string(e.drafter); });
    c.def_prop_ro("top", [](const T& e) {
      std::vector<std::pair<int32_t, float>> out;
      for (const TokenLogprob& one : e.top) out.emplace_back(one.id, one.logprob);
      return out;
    });
  }

  {
    using T = Generation;
    nb::class_<T> c(m, "Generation", "What came of a request; the fields of hunch::Generation.");
    HUNCH_RO(tokens), HUNCH_RO(text);
    c.def_prop_ro("finish_reason", [](const T& g) { return std::string(finish_name(g.finish)); });
    HUNCH_RO(stopped_by), HUNCH_RO(stopped_by_id);
    c.def_prop_ro(
        "logprobs", [](const T& g) { return array(g.logprobs, {g.logprobs.size()}); }, nb::rv_policy::move);
    c.def_prop_ro(
        "top", [](const T& g) { return ranked(g.top); }, nb::rv_policy::move);
    c.def_prop_ro(
        "prompt_logprobs",
        [](const T& g) {
          std::vector<float> values;
          for (const TokenLogprob& one : g.prompt_logprobs) values.push_back(one.logprob);
          const size_t n = values.size();
          return array(std::move(values), {n});
        },
        nb::rv_policy::move);
    c.def_prop_ro(
        "prompt_top", [](const T& g) { return ranked(g.prompt_top); }, nb::rv_policy::move);
    HUNCH_RO(lossless);
    c.def_prop_ro("approx", [](const T& g) { return g.approximation.any() ? approximation_json(g.approximation).dump() : ""; });
    HUNCH_RO(rule), HUNCH_RO(policy), HUNCH_RO(proposer), HUNCH_RO(warning), HUNCH_RO(seed), HUNCH_RO(gamma),
        HUNCH_RO(prompt_tokens), HUNCH_RO(reused_tokens), HUNCH_RO(rounds), HUNCH_RO(drafted), HUNCH_RO(accepted),
        HUNCH_RO(draft_passes), HUNCH_SAYS(mean_acceptance_length), HUNCH_SAYS(acceptance_by_position),
        HUNCH_SAYS(tokens_per_second), HUNCH_SAYS(plain_tokens_per_second);
    c.def_prop_ro("kv_bytes_read_per_token", &T::kv_bytes_per_token);
    c.def_prop_ro("prefill_ms", [](const T& g) { return g.milliseconds.prefill; });
    c.def_prop_ro("decode_ms", [](const T& g) { return g.milliseconds.first_to_last_token; });
  }

  {
    using T = EngineStats;
    nb::class_<T> c(m, "EngineStats", "What an engine did since it was loaded; the fields of hunch::EngineStats.");
    HUNCH_RO(running), HUNCH_RO(waiting), HUNCH_RO(kv_pages_used), HUNCH_RO(kv_pages_cached), HUNCH_RO(kv_pages_total),
        HUNCH_RO(prefix_tokens_asked), HUNCH_RO(prefix_tokens_hit), HUNCH_RO(requests_finished), HUNCH_RO(requests_refused),
        HUNCH_RO(requests_aborted), HUNCH_RO(preemptions), HUNCH_RO(passes), HUNCH_RO(prompt_tokens), HUNCH_RO(generated_tokens),
        HUNCH_RO(rounds), HUNCH_RO(drafted), HUNCH_RO(accepted), HUNCH_RO(drafts_dropped), HUNCH_RO(compared_tokens),
        HUNCH_RO(compared_ms), HUNCH_RO(compared_plain_ms), HUNCH_RO(draft_ms), HUNCH_RO(pass_ms), HUNCH_RO(select_ms),
        HUNCH_RO(drafted_by_position), HUNCH_RO(accepted_by_position), HUNCH_SAYS(prefix_hit_rate);
  }
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

}
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
