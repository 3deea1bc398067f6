// ChatTemplate: the Jinja template of a model (tokenizer_config.json, chat_template.jinja, GGUF), rendered to a prompt's text as
// transformers renders it with jinja2. Called by ChatRenderer, which makes tokens of it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace hunch {

struct TemplateLimits {
  int64_t steps = 1'000'000;
  std::chrono::milliseconds time{250};
  size_t output_bytes = size_t(4) << 20;  // of the result and of every text on the way; 4 times the context is plenty
};

// What was rendered. Special tokens may be recognised inside of the trusted ranges only: those bytes come from the template and
// its marks, all others from the request.
struct RenderedChat {
  std::string text;
  std::vector<std::pair<size_t, size_t>> trusted;  // [begin, end) in bytes, ascending, with gaps between them
};

class ChatTemplate {
 public:
  // At most 1 MiB of UTF-8. Errors name the line and what is not supported: "chat template line 12: ...".
  static Result<ChatTemplate> compile(std::string_view source);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // `variables`: an object (messages, tools, documents, add_generation_prompt and what the template takes besides); its texts are
  // not trusted, but the well-known roles of `messages`. `marks`: bos_token and the like, trusted texts; they win over variables
  // of the same name. `now`: what strftime_now shows, in local time. Const and safe from many threads.
  // Errors are usage errors with the line: raise_exception's message, what the template could not do with the values, a limit.
  Result<RenderedChat> render(const nlohmann::ordered_json& variables,
      std::span<const std::pair<std::string, std::string>> marks = {}, const TemplateLimits& limits = {},
      std::time_t now = std::time(nullptr)) const;

 private:
  struct Compiled;
  explicit ChatTemplate(std::unique_ptr<Compiled> compiled);
  std::unique_ptr<Compiled> compiled_;
};

}
