// The flags that generating subcommands share, and what they amount to: engine options, prompt source, sampling, speculation,
// output. Names and defaults follow llama.cpp where it has one.
#pragma once

#include "cli/foreign_flags.h"
#include "cli/speculation_flags.h"
#include "cli/terminal.h"

namespace hunch {

struct ModelFlags {
  std::optional<std::string> model;
  std::vector<std::string> models;  // all that were named; `model` is the last
  std::optional<int64_t> context_len, threads;
  bool check_tensors = false;
  int64_t kv_memory_bytes = 0;
  std::optional<std::string> key_dtype, value_dtype;  // must agree
  std::string device = "cpu", isa;
  std::optional<std::string> random;  // a known shape with random weights of random_type, in place of a model
  std::string random_type;
  std::optional<std::string> trace, verify_calibration;
};

struct ChatTemplateFlags {
  std::optional<std::string> name_or_text, file, kwargs;  // of another than the model's; see chat_form.h
};

struct PromptFlags {
  std::optional<std::string> text, file;
  bool escape = false, chat = false, no_bos = false;
  std::optional<std::string> system;
  ChatTemplateFlags chat_template;
};

struct SamplingFlags {
  std::optional<double> temperature, top_p, min_p;
  std::optional<int64_t> top_k;
  std::optional<uint64_t> seed;
  std::optional<int64_t> max_tokens;
  bool ignore_eos = false;
  int64_t repeat_last_n = -1;
  SamplingOptions rules;  // penalties and biases; the rest of it stands above
  StructuredOutput structured;
};

struct OutputFlags {
  std::vector<std::string> stop;
  bool special = false, stats = false, json = false;
  ColorWish color = ColorWish::Auto;
};

// What `hunch run` and `hunch audit` take.
struct RunFlags {
  ModelFlags model;
  PromptFlags prompt;
  SamplingFlags sampling;
  SpeculationFlags speculation;
  OutputFlags output;
};

// Each adds its flags to `set`; the targets must outlive parse().
void add_model_flags(FlagSet& set, ModelFlags& flags);
// --chat-template and its like.
void add_chat_template_flags(FlagSet& set, ChatTemplateFlags& flags);
void add_prompt_flags(FlagSet& set, PromptFlags& flags);
void add_sampling_flags(FlagSet& set, SamplingFlags& flags);  // those of structured output among them
void add_structured_flags(FlagSet& set, StructuredOutput& wanted);
void add_output_flags(FlagSet& set, OutputFlags& flags);
void add_color_flag(FlagSet& set, ColorWish& color);
void add_run_flags(FlagSet& set, RunFlags& flags);  // all of the above
template <class Flags>
void add_generating_flags(FlagSet& set, Flags& flags) {
  add_model_flags(set, flags.model);
  add_sampling_flags(set, flags.sampling);
  add_speculation_flags(set, flags.speculation);
}

// The model to load: as given, else $HUNCH_MODEL, else the shipped one beside the build (../../models/wren-34m.gguf from the
// program).
Result<std::string> model_path(const std::optional<std::string>& given);
// `speculation`: its drafters are loaded too; null: none.
Result<EngineOptions> engine_options(const ModelFlags& flags, const SpeculationFlags* speculation = nullptr);

// The text behind -p or in the file behind -f ("-": the standard input). Errors: none or both given, unreadable, empty, not
// UTF-8.
Result<std::string> prompt_text(const PromptFlags& flags);
// "\\n" and the like as what they stand for; a backslash before anything else stays.
std::string unescaped(std::string_view text);
// A file's bytes, checked to be UTF-8. Errors name the file, and the byte at which it stops being text.
Result<std::string> read_text_file(const std::string& path);
Result<Tokens> read_tokens(const Engine& engine, const std::string& path);  // of such a file
// An error where what is to be written is a file that is read.
Status keeps(const std::optional<std::string>& read, const std::optional<std::string>& written);

// The prompt's ids: raw text (special tokens parsed), or with --chat one user turn of the model's template.
Result<Tokens> prompt_ids(const Engine& engine, const PromptFlags& flags, const std::string& text);

// The request without its prompt.
Request request_of(const SamplingFlags& sampling, const SpeculationOptions& speculation);
Request request_of(const RunFlags& flags, const SpeculationOptions& speculation);

}
