// The envelope of a line and its id; the body's keys are read by body.cpp.
#include "api/batch_line.h"

#include <algorithm>

#include "api/body_keys.h"
#include "api/nearest.h"
#include "text/excerpt.h"

namespace hunch {
namespace {

constexpr std::string_view kOuter[] = {"custom_id", "method", "url", "body"};

// The id, kept as JSON so that 7 and "7" stay different.
Status read_id(const object& root, BatchLine& out) {
  element v;
  if (root["custom_id"].get(v) != SUCCESS && root["id"].get(v) != SUCCESS)
    return usage_error("no \"id\": every line needs one, as a string or a whole number");
  if (!v.is_string() && !v.is_int64() && !v.is_uint64()) return wanted({v, "id"}, "a string or a whole number");
  out.id = simdjson::minify(v);
  return {};
}

Status read_envelope(const object& fields, BodyFault& fault) {
  HUNCH_OK(check_keys(fields, fault));
  for (const auto& [name, value] : fields) {
    if (std::find(std::begin(kOuter), std::end(kOuter), name) == std::end(kOuter) && name != "id")
      return usage_error("unknown key {}{}", excerpt(name), did_you_mean(name, kOuter));
    if (name == "url" && !value.is_null()) {
      HUNCH_TRY(const std::string url, text_value({value, name}));
      if (url != "/v1/completions" && url != "/v1/chat/completions")
        return usage_error("\"url\" must be /v1/completions or /v1/chat/completions, not {}", excerpt(url));
    }
  }
  return {};
}

}

Status parse_batch_line(std::string_view json, BatchLine& out) {
  if (json.size() > kMaxBatchLineBytes) return usage_error("the line is longer than {} MiB", kMaxBatchLineBytes >> 20);
  simdjson::dom::parser parser;
  HUNCH_TRY(const element root, parse_json(parser, json));
  object fields;
  if (root.get(fields) != SUCCESS) return wanted({root, "line"}, "an object");
  element body;
  const bool found = fields["body"].get(body) == SUCCESS;
  out.wrapped = found || fields["url"].error() == SUCCESS || fields["method"].error() == SUCCESS;
  HUNCH_OK(read_id(fields, out));
  if (out.wrapped && !found) return usage_error("\"body\" is missing");
  BodyFault fault;
  BodyReader in{BodyKind::Batch, out.body, fault};
  if (!out.wrapped) return read_fields(fields, in);
  HUNCH_OK(read_envelope(fields, fault));
  if (body.get(fields) != SUCCESS) return wanted({body, "body"}, "an object");
  return read_fields(fields, in);
}

}
