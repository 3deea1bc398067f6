// The body of a request in the words of OpenAI's, vLLM's and llama.cpp's APIs, read from JSON that nobody has checked and not yet
// looked at by a model. One table of keys serves the HTTP API and hunch batch. Used by call.cpp, batch_line.cpp and fuzz targets.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "hunch/hunch.h"
#include "text/chat.h"

namespace hunch {

inline constexpr int kMaxSamples = 64;         // n
inline constexpr int kMaxChoices = 256;        // n times prompts
inline constexpr size_t kMaxBodyKeys = 1024;   // of a body, known ones and others
inline constexpr size_t kMaxLogitBias = 1024;  // entries
inline constexpr size_t kMaxIdList = 128;      // stop_token_ids
inline constexpr size_t kMaxSaltBytes = 256, kMaxToolsBytes = size_t(1) << 20;

// Batch: a line of a file, where an unknown key is an error; the others are HTTP bodies, where it is ignored.
enum class BodyKind : uint8_t { Batch, Completions, Chat };

struct Body {
  struct Prompt {
    bool is_text = false;
    std::string text;
    Tokens ids;
  };
  enum class Input : uint8_t { None, Prompts, Chat } input = Input::None;
  std::vector<Prompt> prompts;
  bool one_prompt = false;  // it did not stand in a list of prompts
  // The messages twice: as chat templates read them (contents as texts, arguments of calls as objects), and as turns of text.
  nlohmann::ordered_json messages;
  std::vector<ChatTurn> turns;
  nlohmann::ordered_json tools, template_kwargs;  // null: none
  std::string chat_template;                      // instead of the model's; empty: that
  bool add_generation_prompt = true;
  enum class ToolChoice : uint8_t { None, Auto, Required, Named } tool_choice = ToolChoice::Auto;
  std::string tool_name;  // Named
  bool parallel_tool_calls = true;
  bool include_reasoning = true;

  std::string model;  // empty: not said
  // But its prompt, bad words and, where `speculation` says so, how it speculates. max_tokens is what was said, see limited.
  Request request;
  std::string structure_key = "tools";  // which key constrains the output, if one does
  bool constrained = false;             // the body itself does, not what the server was started with
  bool endless = false;                 // llama.cpp's -1 was said
  bool limited = false;                 // max_tokens was said, in a batch as 0
  std::string limit_key;                // the word for it
  int samples = 1;                      // n
  bool scores_only() const { return limited && request.max_tokens == 0; }  // of the prompt
  bool echo = false;
  std::vector<std::string> bad_words;
  std::string speculation;  // JSON of speculative_config; empty: none
  bool lossless_required = false;
  int64_t truncate_prompt = 0;  // keep the last so many tokens; 0: all of them
  bool add_special_tokens = true;
  double timeout_seconds = 0;  // 0: none

  bool stream = false, include_usage = false, continuous_usage = false;
  bool timings_per_token = false, return_tokens = false, return_token_ids = false, tokens_as_ids = false;
  bool return_token_sources = false;  // streams: which text was guessed, and by whom
  bool include_stop = false;
  std::string request_id;
  int unknown_keys = 0;
};

// What a refusal says beside its message.
struct BodyFault {
  std::string param;  // the key at fault; empty: none, or the whole body
  std::string code;   // for programs; empty: nothing special
};

// Reads on top of what `out` holds: absent keys and null keep it. Errors are usage errors that name the key.
Status read_body(std::string_view json, BodyKind kind, Body& out, BodyFault& fault);

// The keys that a body of this kind may set, for descriptions.
std::vector<std::string_view> settable_keys(BodyKind kind);

}
