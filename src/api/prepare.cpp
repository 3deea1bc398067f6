#include "api/prepare.h"

#include <fmt/format.h>

#include <algorithm>

#include "api/speculation_settings.h"
#include "engine/parts.h"
#include "engine/plan.h"
#include "engine/running.h"
#include "engine/sampling_options.h"
#include "text/grammar.h"

namespace hunch {
namespace {

constexpr int64_t kMostScores = int64_t(4) << 20;  // 300 MB of answer
constexpr size_t kMostCut = 4 << 20;               // bytes of a prompt that are split into tokens though few of them stay

// The flag's messages, in the words of a body.
Error as_key(Error error) {
  const auto say = [&text = error.message](std::string_view flag, const std::string& key) {
    for (size_t at = 0; (at = text.find(flag, at)) != text.npos; at += key.size()) {
      const std::string behind = text.substr(at + flag.size());
      if (behind.empty() || !(behind[0] == '-' || std::isalnum(uint8_t(behind[0])))) text = text.substr(0, at) + key + behind;
    }
  };
  say("--speculative-config", "speculative_config");
  for (const SpeculationSetting& setting : speculation_settings()) say(setting.flag, fmt::format("\"{}\"", setting.key));
  return error;
}

class Preparer {
 public:
  Preparer(Body& body, Engine& engine, BodyFault& fault)
      : body_(body),
        parts_(engine.parts()),
        tokenizer_(parts_.tokenizer ? &*parts_.tokenizer : nullptr),
        context_(parts_.context_len),
        vocab_(parts_.model->shape().vocab_size),
        fault_(fault) {}

  Result<PreparedBody> run(const ChatPrompts& chat) {
    PreparedBody out;
    Request& request = out.request = body_.request;
    HUNCH_OK(speculation(request));
    HUNCH_OK(words(request));
    // A prompt that is echoed with log-probabilities is scored like the rest.
    SamplingOptions& sampling = request.sampling;
    if (body_.echo && sampling.logprobs >= 0) sampling.prompt_logprobs = std::max(sampling.prompt_logprobs, sampling.logprobs);
    if (body_.input == Body::Input::Chat) {
      HUNCH_TRY(ChatPrompts::Prompt prompt, chat.encode(body_, fault_));
      // A base model may not know its own template's end mark as an end of text.
      if (!request.ignore_eos) request.stop_ids.insert(request.stop_ids.end(), prompt.stop_ids.begin(), prompt.stop_ids.end());
      out.prompts.push_back(std::move(prompt.ids));
    }
    for (size_t i = 0; i < body_.prompts.size(); ++i) {
      at("prompt");
      HUNCH_TRY(auto ids, ids_of(body_.prompts[i], i));
      out.prompts.push_back(std::move(ids));
    }
    for (size_t i = 0; i < out.prompts.size(); ++i) HUNCH_OK(check_length(out.prompts[i], i, sampling.prompt_logprobs));
    // One for all choices: the seed that is reported makes them come again.
    if (!sampling.seed && body_.samples > 1 && out.prompts.size() == 1) sampling.seed = drawn_seed();
    HUNCH_OK(check_options(request));
    if (body_.scores_only()) request.max_tokens = 1;
    return out;
  }

 private:
  void at(std::string_view param) { fault_.param = param; }

  Status speculation(Request& request) {
    at("speculative_config");
    if (!body_.speculation.empty()) {
      SpeculationFlags flags;
      flags.config = body_.speculation;
      flags.loaded = &parts_.options.drafters;
      auto options = resolve_speculation(flags);
      if (!options.ok()) return as_key(options.error());
      request.speculation = std::move(*options);
    }
    if (body_.lossless_required && !request.speculation.lossless()) {
      at("lossless");
      if (body_.speculation.empty())
        return usage_error(
            "\"lossless\" is required, and this server's own speculation is lossy: say another speculative_config");
      return usage_error("\"lossless\" is required, and {} is lossy: leave one out",
          request.speculation.sparse.on ? "\"verify\": \"sparse\"" : "precision_class " + request.speculation.precision_class);
    }
    return {};
  }

  // The words as they begin a text, and behind a blank.
  Status words(Request& request) {
    at("bad_words");
    if (!body_.bad_words.empty() && !tokenizer_) return no_tokenizer();
    for (const std::string& word : body_.bad_words) {
      if (word.size() > kMaxStopBytes)
        return usage_error("\"bad_words\" holds a text of {} bytes; at most {}", word.size(), kMaxStopBytes);
      const std::string bare = word.substr(std::min(word.find_first_not_of(" \t\r\n"), word.size()));
      HUNCH_TRY(const auto first, tokenizer_->encode(bare, {.add_bos = false}));
      HUNCH_TRY(const auto inside, tokenizer_->encode(" " + bare, {.add_bos = false}));
      if (first.empty()) return usage_error("\"bad_words\" holds a word that is only white space");
      auto& out = request.sampling.bad_words;
      if (!inside.empty() && inside != first) out.push_back(inside);
      out.push_back(first);
    }
    at("stop");
    return request.stop.empty() || tokenizer_ ? Status() : no_tokenizer();
  }

  static Error no_tokenizer() { return usage_error("this model has no tokenizer: give \"prompt\" as token ids"); }

  Result<Tokens> ids_of(Body::Prompt& prompt, size_t number) {
    Tokens ids;
    if (!prompt.is_text) {
      for (size_t i = 0; i < prompt.ids.size(); ++i)
        if (prompt.ids[i] >= vocab_)
          return usage_error("prompt token {} is {}; ids must lie in [0, {})", i, prompt.ids[i], vocab_);
      ids = body_.echo ? prompt.ids : std::move(prompt.ids);
    } else {
      if (!tokenizer_) return no_tokenizer();
      // No work on what cannot fit, however few tokens it makes; cutting it short is another wish.
      if (prompt.text.size() / tokenizer_->longest_token_bytes() > size_t(context_) && body_.truncate_prompt == 0)
        return too_long(fmt::format("more than {}", context_));
      if (body_.truncate_prompt > 0 && prompt.text.size() > kMostCut)
        return usage_error("\"prompt\" has {} bytes; at most {} are cut to tokens", prompt.text.size(), kMostCut);
      HUNCH_TRY(ids, tokenizer_->encode(prompt.text, {.parse_special = true, .add_bos = body_.add_special_tokens}));
      if (ids.empty())
        return usage_error(body_.one_prompt ? "\"prompt\" is empty: give at least one character"
                                            : fmt::format("\"prompt\": item {} is empty: give at least one character", number));
    }
    const size_t keep = body_.truncate_prompt;
    if (keep > 0 && ids.size() > keep) ids.erase(ids.begin(), ids.end() - keep);
    return ids;
  }

  Error too_long(const std::string& tokens) {
    fault_.code = "context_length_exceeded";
    return usage_error("the prompt has {} tokens, the context holds {}: shorten the prompt", tokens, context_);
  }

  Status check_length(const Tokens& ids, size_t number, int prompt_logprobs) {
    at(body_.input == Body::Input::Chat ? "messages" : "prompt");
    const int64_t length = std::ssize(ids);
    if (length >= context_) return too_long(std::to_string(length));
    if ((scores_ += length * (prompt_logprobs + 1) * body_.samples) > kMostScores) {
      at(prompt_logprobs > body_.request.sampling.prompt_logprobs ? "logprobs" : "prompt_logprobs");
      return usage_error("more than {} log-probabilities of prompts are asked for: fewer, or a lower \"n\"", kMostScores);
    }
    if (body_.limited && body_.request.max_tokens > context_ - length) {
      at(body_.limit_key);
      fault_.code = "context_length_exceeded";
      return usage_error("the prompt{} has {} tokens and \"{}\" is {}: the context holds {} together",
          body_.prompts.size() > 1 ? fmt::format(" {}", number) : "", length, body_.limit_key, body_.request.max_tokens,
          context_);
    }
    return {};
  }

  // What the engine would refuse when the request reaches it.
  Status check_options(const Request& request) {
    at("stop_token_ids");
    for (size_t i = 0; i < request.stop_ids.size(); ++i)
      if (request.stop_ids[i] >= vocab_)
        return usage_error("stop_token_ids: item {} is {}; ids must lie in [0, {})", i, request.stop_ids[i], vocab_);
    at("");
    if (auto rules = logit_rules(request.sampling, vocab_, end_ids_of(request, parts_)); !rules.ok()) {
      const std::string& message = rules.error().message;  // begins with the field's name
      at(std::string_view(message).substr(0, message.find_first_not_of("abcdefghijklmnopqrstuvwxyz_")));
      return rules.error();
    }
    at("speculative_config");
    if (auto plan = plan_on(parts_, request); !plan.ok()) return plan.error();
    at("");
    return check_structure(request.structured);
  }

  // Compiled here, on a worker: the engine then finds it in its cache.
  Status check_structure(const StructuredOutput& structured) {
    if (structured.kind == StructuredOutput::Kind::None) return {};
    at(body_.structure_key);
    HUNCH_TRY(GrammarCompiler * compiler, parts_.grammars());
    const auto compiled = compiler->compile(structured);
    if (!compiled.ok()) {
      if (compiled.error().message.find("schema_too_complex") != std::string::npos) fault_.code = "schema_too_complex";
      return compiled.error();
    }
    at("");
    return {};
  }

  Body& body_;
  EngineParts& parts_;
  const Tokenizer* tokenizer_;
  int64_t context_, vocab_;
  int64_t scores_ = 0;  // of prompts
  BodyFault& fault_;
};

}

Result<PreparedBody> prepare_body(Body& body, Engine& engine, const ChatPrompts& chat, BodyFault& fault) {
  return Preparer(body, engine, fault).run(chat);
}

}
