// The readers behind the table of keys of body.cpp, by subject. Each gets the value of one key that is not null.
#pragma once

#include "api/body.h"
#include "api/call.h"
#include "api/json_values.h"

namespace hunch {

struct BodyReader {
  BodyKind kind;
  Body& out;
  BodyFault& fault;
};

// At most kMaxBodyKeys keys, each once.
Status check_keys(const object& fields, BodyFault& fault);

// All keys of a body, and what they say together. In a batch the keys "id" and "custom_id" are the caller's.
Status read_fields(const object& fields, BodyReader& in);

// An error with a word for programs.
inline Error coded(BodyReader& in, std::string_view code, Error error) {
  in.fault.code = code;
  return error;
}

// call.cpp, for HTTP bodies: a refusal as the API says it; the keys of a body, alive as long as the parser.
ApiError refused(const Error& error, const BodyFault& fault = {});
std::optional<ApiError> read_object(
    std::string_view json, const ApiLimits& limits, simdjson::dom::parser& parser, object& fields);

using KeyReader = Status(const Field& v, BodyReader& in);

// body_prompt.cpp: what the model reads.
KeyReader read_prompt, read_messages, read_template_kwargs;

// body_structure.cpp: what its output must look like, and the tools it may call.
KeyReader read_response_format, read_structured_outputs, read_tools, read_tool_choice;
KeyReader read_guided;  // one constraint by its own key

// body_speculation.cpp
KeyReader read_speculative_config, read_lossless;
// An error if an unknown key was meant for speculation: that would silently cost its user what he asked for.
Status check_no_speculation_meant(std::string_view key);

}
