// A finished generation as people and as programs read it: the statistics block of --stats and the object of --json.
#pragma once

#include <fmt/format.h>

#include "api/json_text.h"
#include "cli/terminal.h"

namespace hunch {

struct Report {
  const Generation& generation;
  std::string text;  // of the continuation
  std::string model;
  double kv_bytes_per_entry = 0;  // of one token in the KV cache; 0: unknown

  // KV bytes that plain decoding reads per token of this run: the context, on average over the continuation.
  double plain_kv_bytes_per_token() const;
};

nlohmann::ordered_json report_json(const Report& report);

// At most 80 columns. Ends with the line that llama.cpp's users grep for where the run speculated.
std::string report_text(const Report& report, const Paint& paint);

// Acceptance by position as a small picture, one line a position, indented by two.
std::string acceptance_picture(const std::vector<double>& acceptance, const Paint& paint);

// For a command that ends with one line of JSON.
inline int print_json_and_exit_code(const nlohmann::ordered_json& json) { return print_and_exit_code(json_line(json) + "\n"); }

// Lines of a name, `width` columns wide, and a value.
struct NamedLines {
  int width;
  std::string text{}, indent{};
  void operator()(std::string_view name, const std::string& value) {
    text += fmt::format("{}{:<{}}{}\n", indent, name, width, value);
  }
  template <class... T>
  requires(sizeof...(T) > 0) void operator()(std::string_view name, fmt::format_string<T...> value, T&&... values) {
    (*this)(name, fmt::format(value, std::forward<T>(values)...));
  }
  // Bytes of all weights and of each encoding, as JSON has them.
  void weights(const nlohmann::ordered_json& json, int encoding_width);
};

// "12.3 MB"
std::string bytes_text(double bytes);
// "lossless: yes, the same stream as plain decoding" and so on.
std::string lossless_text(const Generation& generation);

}
