// How models write what they think, by the names that vLLM's --reasoning-parser knows: qwen3 and deepseek_r1
// (<think>...</think>), openai_gptoss (harmony: channels analysis, commentary, final, and calls).
#pragma once

#include <memory>

#include "api/reply_reader.h"

namespace hunch {

std::string reasoning_parser_names();
bool is_reasoning_parser(std::string_view name);
// The one that fits a chat template; empty: none.
std::string_view reasoning_parser_for(std::string_view chat_template);
// Whether its marks are special tokens, which must leave text; and whether it reads calls too.
bool is_harmony(std::string_view name);

// `thinking`: the prompt ends inside thoughts. `content`: reads what is not thought (tool calls); null: it is content as it is.
ReplyReaderPtr make_reasoning_parser(std::string_view name, bool thinking, ReplyReaderPtr content);

}
