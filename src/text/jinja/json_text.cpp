// json.dumps as the filter 'tojson' of chat templates calls it.

#include <cmath>

#include "text/jinja/interpreter.h"
#include "text/unicode.h"

namespace hunch::jinja {
namespace {

void append_string(std::string_view bytes, bool ascii, TextBuilder& out) {
  std::string quoted = "\"";
  for (size_t at = 0; at < bytes.size();) {
    const uint8_t byte = uint8_t(bytes[at]);
    if (byte >= 0x80 && ascii) {
      const Utf8Step step = utf8_step(bytes.substr(at));
      if (step.code < 0x10000) quoted += fmt::format("\\u{:04x}", step.code);
      else quoted += fmt::format("\\u{:04x}\\u{:04x}", 0xD7C0 + (step.code >> 10), 0xDC00 + (step.code & 0x3FF));
      at += step.length;
      continue;
    }
    switch (byte) {
      case '"': quoted += "\\\""; break;
      case '\\': quoted += "\\\\"; break;
      case '\n': quoted += "\\n"; break;
      case '\r': quoted += "\\r"; break;
      case '\t': quoted += "\\t"; break;
      case '\b': quoted += "\\b"; break;
      case '\f': quoted += "\\f"; break;
      default:
        if (byte < 0x20) quoted += fmt::format("\\u{:04x}", byte);
        else quoted += char(byte);
    }
    ++at;
  }
  quoted += '"';
  out.append(quoted);
}

std::string json_float(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
  return python_float(value);
}

Result<std::string> key_text(const Value& key) {
  switch (key.kind) {
    case Kind::String: return std::string(key.bytes());
    case Kind::None: return std::string("null");
    case Kind::Bool: return std::string(key.boolean ? "true" : "false");
    case Kind::Int: return std::to_string(key.integer);
    case Kind::Float: return json_float(key.real);
    default: return type_error("keys must be str, int, float, bool or None, not {}", type_name(key));
  }
}

void new_line(const JsonStyle& style, int depth, TextBuilder& out) {
  if (!style.lines) return;
  out.append("\n");
  for (int i = 0; i < depth && !style.indent.empty(); ++i) out.append(style.indent);
}

Status append_dict(const Dict& dict, const JsonStyle& style, int depth, TextBuilder& out) {
  if (dict.entries.empty()) {
    out.append("{}");
    return {};
  }
  std::vector<Dict::Entry> entries(dict.entries.begin(), dict.entries.end());
  if (style.sort_keys) {
    Status failed;
    std::ranges::stable_sort(entries, [&](const Dict::Entry& a, const Dict::Entry& b) {
      const auto before = less(a.first, b.first);
      if (!before.ok()) failed = before.error();
      return before.ok() && before.value();
    });
    HUNCH_OK(failed);
  }
  out.append("{");
  for (size_t i = 0; i < entries.size() && !out.full(); ++i) {
    if (i > 0) out.append(style.item_separator);
    new_line(style, depth + 1, out);
    HUNCH_TRY(const std::string key, key_text(entries[i].first));
    append_string(key, style.ascii, out);
    out.append(style.key_separator);
    HUNCH_OK(append_json(entries[i].second, style, depth + 1, out));
  }
  new_line(style, depth, out);
  out.append("}");
  return {};
}

}

Status append_json(const Value& value, const JsonStyle& style, int depth, TextBuilder& out) {
  switch (value.kind) {
    case Kind::None: out.append("null"); return {};
    case Kind::Bool: out.append(value.boolean ? "true" : "false"); return {};
    case Kind::Int: out.append(std::to_string(value.integer)); return {};
    case Kind::Float: out.append(json_float(value.real)); return {};
    case Kind::String: append_string(value.bytes(), style.ascii, out); return {};
    case Kind::Dict: return append_dict(*value.dict, style, depth, out);
    case Kind::Sequence:
      if (value.sequence->kind > Tuple) break;
      if (value.sequence->items.empty()) {
        out.append("[]");
        return {};
      }
      out.append("[");
      for (size_t i = 0; i < value.sequence->items.size() && !out.full(); ++i) {
        if (i > 0) out.append(style.item_separator);
        new_line(style, depth + 1, out);
        HUNCH_OK(append_json(value.sequence->items[i], style, depth + 1, out));
      }
      new_line(style, depth, out);
      out.append("]");
      return {};
    default: break;
  }
  return type_error("an object of type {} cannot be written as JSON", type_name(value));
}

}
