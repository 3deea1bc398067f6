// The readers behind the table of keys of body.cpp, by subject. Each gets the value of one key that is not null.
#pragma once

#include <simdjson.h>

#include "api/body.h"
#include "api/json_values.h"

namespace hunch {

struct BodyReader {
  BodyKind kind;
  Body& out;
  BodyFault& fault;
};

// All keys of a body, and what they say together. In a batch the keys "id" and "custom_id" are the caller's.
Status read_fields(const simdjson::dom::object& fields, BodyReader& in);

// An error with a word for programs.
inline Error coded(BodyReader& in, std::string_view code, Error error) {
  in.fault.code = code;
  return error;
}

// body_prompt.cpp: what the model reads.
Status read_prompt(std::string_view key, const simdjson::dom::element& v, BodyReader& in);
Status read_messages(std::string_view key, const simdjson::dom::element& v, BodyReader& in);
Status read_template_kwargs(std::string_view key, const simdjson::dom::element& v, BodyReader& in);

// body_structure.cpp: what its output must look like, and the tools it may call.
Status read_response_format(std::string_view key, const simdjson::dom::element& v, BodyReader& in);
Status read_structured_outputs(std::string_view key, const simdjson::dom::element& v, BodyReader& in);
Status read_guided(std::string_view key, const simdjson::dom::element& v, BodyReader& in);  // one constraint by its own key
Status read_tools(std::string_view key, const simdjson::dom::element& v, BodyReader& in);
Status read_tool_choice(std::string_view key, const simdjson::dom::element& v, BodyReader& in);

// body_speculation.cpp
Status read_speculative_config(std::string_view key, const simdjson::dom::element& v, BodyReader& in);
Status read_lossless(std::string_view key, const simdjson::dom::element& v, BodyReader& in);
// An error if an unknown key was meant for speculation: that would silently cost its user what he asked for.
Status check_no_speculation_meant(std::string_view key);

}
