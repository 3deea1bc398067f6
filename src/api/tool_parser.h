// How models write tool calls, by the names that vLLM's --tool-call-parser knows: hermes (Hermes, Qwen2.5, Qwen3:
// <tool_call>{...}</tool_call>), llama3_json (Llama 3.x: bare JSON, perhaps behind <|python_tag|>). Harmony's calls are read by
// its reasoning parser.
#pragma once

#include <memory>

#include "api/reply_reader.h"

namespace hunch {

// "hermes, llama3_json, ..."; aliases included.
std::string tool_parser_names();
bool is_tool_parser(std::string_view name);
// The one that fits a chat template; empty: none that is known.
std::string_view tool_parser_for(std::string_view chat_template);

// `names`: the functions that may be called; bare JSON that calls none of them is content.
ReplyReaderPtr make_tool_parser(std::string_view name, std::vector<std::string> names);

// Replies that a schema forces: a list of calls [{"name", "parameters"}], or nothing but the arguments of one function.
ReplyReaderPtr make_call_list_reader();
ReplyReaderPtr make_arguments_reader(std::string name);

}
