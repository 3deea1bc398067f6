#include "text/jinja/value.h"

#include <utf8proc.h>

#include <charconv>
#include <cmath>
#include <functional>

#include "base/failure.h"
#include "text/unicode.h"

namespace hunch::jinja {
namespace {

constexpr size_t kSmallDict = 8;  // entries that are searched one after another

size_t mix(size_t a, size_t b) { return (a ^ (b + 0x9E3779B97F4A7C15u + (a << 6) + (a >> 2))) * 0xD6E8FEB86659FD93u; }

size_t hash_text(std::string_view bytes) { return std::hash<std::string_view>{}(bytes); }

Error unorderable(const Value& a, const Value& b) {
  return failure("'<' not supported between instances of '{}' and '{}'", type_name(a), type_name(b));
}

bool list_or_tuple(const Value& v) { return v.is(Kind::Sequence) && (v.sequence->kind == List || v.sequence->kind == Tuple); }

bool printable(uint32_t code) {
  switch (utf8proc_category(utf8proc_int32_t(code))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    case UTF8PROC_CATEGORY_ZS: return code == ' ';
    default: return true;
  }
}

// Double quotes only where that saves escapes, as Python does.
std::string repr_of(std::string_view bytes) {
  const bool single = bytes.find('\'') != bytes.npos && bytes.find('"') == bytes.npos;
  const char quote = single ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Step step = utf8_step(bytes.substr(at));
    const uint32_t code = step.code;
    if (code == uint32_t(quote) || code == '\\') (out += '\\') += char(code);
    else if (code == '\n') out += "\\n";
    else if (code == '\r') out += "\\r";
    else if (code == '\t') out += "\\t";
    else if (code < 0x20 || code == 0x7F) out += fmt::format("\\x{:02x}", code);
    else if (code < 0x7F || printable(code)) out += bytes.substr(at, step.length);
    else if (code < 0x100) out += fmt::format("\\x{:02x}", code);
    else out += code < 0x10000 ? fmt::format("\\u{:04x}", code) : fmt::format("\\U{:08x}", code);
    at += step.length;
  }
  return out += quote;
}

Status append_items(const Sequence& sequence, std::string_view open, std::string_view close, TextBuilder& out) {
  out.append(open);
  for (size_t i = 0; i < sequence.items.size() && !out.full(); ++i) {
    if (i > 0) out.append(", ");
    HUNCH_OK(append_repr(sequence.items[i], out));
  }
  out.append(close);
  return {};
}

Status append_sequence(const Sequence& sequence, TextBuilder& out) {
  switch (sequence.kind) {
    case List: return append_items(sequence, "[", "]", out);
    case Tuple: return append_items(sequence, "(", sequence.items.size() == 1 ? ",)" : ")", out);
    case Keys: return append_items(sequence, "dict_keys([", "])", out);
    case Values: return append_items(sequence, "dict_values([", "])", out);
    case Items: return append_items(sequence, "dict_items([", "])", out);
    case Range:
      out.append(sequence.step == 1 ? fmt::format("range({}, {})", sequence.start, sequence.stop)
                                    : fmt::format("range({}, {}, {})", sequence.start, sequence.stop, sequence.step));
      return {};
    case Generator: break;
  }
  return Error{"a generator cannot be printed: add the filter 'list'"};
}

}

const Value* Dict::find(const Value& key) const {
  if (slots.empty()) {
    for (const Entry& entry : entries)
      if (equal(entry.first, key)) return &entry.second;
    return nullptr;
  }
  const auto hash = hash_of(key);
  if (!hash.ok()) return nullptr;
  for (size_t at = hash.value();; ++at) {
    const uint32_t slot = slots[at & (slots.size() - 1)];
    if (slot == 0) return nullptr;
    if (equal(entries[slot - 1].first, key)) return &entries[slot - 1].second;
  }
}

const Value* Dict::find(std::string_view key) const {
  const Text text{.bytes = key};
  return find(Value::of(&text));
}

void DictBuilder::grow() {
  slots_.assign(std::max<size_t>(2 * slots_.size(), 32), 0);
  for (size_t i = 0; i < entries_.size(); ++i) {
    size_t at = hash_of(entries_[i].first).value();
    while (slots_[at & (slots_.size() - 1)] != 0) ++at;
    slots_[at & (slots_.size() - 1)] = uint32_t(i + 1);
  }
}

Status DictBuilder::set(const Value& key, const Value& value) {
  HUNCH_TRY(const size_t hash, hash_of(key));
  if (2 * entries_.size() >= slots_.size()) grow();
  size_t at = hash;
  for (; slots_[at & (slots_.size() - 1)] != 0; ++at) {
    Dict::Entry& entry = entries_[slots_[at & (slots_.size() - 1)] - 1];
    if (equal(entry.first, key)) {
      entry.second = value;
      return {};
    }
  }
  entries_.push_back({key, value});
  slots_[at & (slots_.size() - 1)] = uint32_t(entries_.size());
  return {};
}

namespace {
int depth_of(const Value& value) {
  if (value.is(Kind::Sequence)) return value.sequence->depth;
  return value.is(Kind::Dict) ? value.dict->depth : 0;
}
int64_t weight_of(const Value& value) {
  if (value.is(Kind::Sequence)) return value.sequence->weight;
  return value.is(Kind::Dict) ? value.dict->weight : 1;
}
Error too_heavy() { return usage_error("a value holds more than {} others", kMaxWeight); }
Error too_deep() { return usage_error("a value is nested deeper than {}", kMaxDepth); }
}

Result<Value> DictBuilder::finish() {
  Dict dict{.entries = heap_.copy(entries_)};
  if (entries_.size() > kSmallDict) dict.slots = heap_.copy(slots_);
  for (const auto& [key, value] : entries_) {
    dict.depth = std::max({dict.depth, depth_of(key) + 1, depth_of(value) + 1});
    dict.weight += weight_of(key) + weight_of(value);
    if (dict.weight > kMaxWeight) return too_heavy();
  }
  if (dict.depth > kMaxDepth) return too_deep();
  return Value::of(heap_.make<Dict>(dict));
}

Value make_text(Heap& heap, std::string_view bytes, bool trusted) {
  return make_text(heap, Text{.bytes = heap.copy(bytes), .trusted = trusted});
}

Value make_text(Heap& heap, const Text& text) { return Value::of(heap.make<Text>(text)); }

Value make_undefined(Heap& heap, std::string_view hint) { return {.hint = heap.make<Text>(Text{.bytes = heap.copy(hint)})}; }

Result<Value> make_sequence(Heap& heap, const std::vector<Value>& items, SequenceKind kind) {
  Sequence sequence{.kind = kind, .items = heap.copy(items)};
  for (const Value& item : items) {
    sequence.depth = std::max(sequence.depth, depth_of(item) + 1);
    sequence.weight += weight_of(item);
    if (sequence.weight > kMaxWeight) return too_heavy();
  }
  if (sequence.depth > kMaxDepth) return too_deep();
  return Value::of(heap.make<Sequence>(sequence));
}

std::string_view type_name(const Value& value) {
  using enum Kind;
  switch (value.kind) {
    case Undefined: return "Undefined";
    case None: return "NoneType";
    case Bool: return "bool";
    case Int: return "int";
    case Float: return "float";
    case String: return "str";
    case Sequence: break;
    case Dict: return "dict";
    case Namespace: return "Namespace";
    case Callable: return "function";
    case Loop: return "LoopContext";
    case Joiner: return "Joiner";
  }
  switch (value.sequence->kind) {
    case List: return "list";
    case Tuple: return "tuple";
    case Range: return "range";
    case Keys: return "dict_keys";
    case Values: return "dict_values";
    case Items: return "dict_items";
    case Generator: break;
  }
  return "generator";
}

bool truth(const Value& value) {
  using enum Kind;
  switch (value.kind) {
    case Undefined:
    case None: return false;
    case Bool: return value.boolean;
    case Int: return value.integer != 0;
    case Float: return value.real != 0;
    case String: return !value.bytes().empty();
    case Sequence: return value.sequence->kind == Generator || !value.sequence->items.empty();
    case Dict: return !value.dict->entries.empty();
    default: return true;
  }
}

bool equal(const Value& a, const Value& b) {
  if (a.is_int() && b.is_int()) return a.as_int() == b.as_int();
  if (a.is_number() && b.is_number()) return a.as_real() == b.as_real();
  if (a.kind != b.kind) return false;
  switch (a.kind) {
    case Kind::Undefined:
    case Kind::None: return true;
    case Kind::String: return a.bytes() == b.bytes();
    case Kind::Sequence: {
      const Sequence &x = *a.sequence, &y = *b.sequence;
      if (&x == &y) return true;
      return x.kind == y.kind && x.kind != Generator && std::ranges::equal(x.items, y.items, equal);
    }
    case Kind::Dict: {
      if (a.dict == b.dict) return true;
      if (a.dict->entries.size() != b.dict->entries.size()) return false;
      for (const auto& [key, value] : a.dict->entries) {
        const Value* other = b.dict->find(key);
        if (!other || !equal(value, *other)) return false;
      }
      return true;
    }
    default: return a.callable == b.callable;  // the same object: all pointers of the union lie alike
  }
}

Result<bool> less(const Value& a, const Value& b) {
  if (a.is_int() && b.is_int()) return a.as_int() < b.as_int();
  if (a.is_number() && b.is_number()) return a.as_real() < b.as_real();
  if (a.is(Kind::String) && b.is(Kind::String)) return a.bytes() < b.bytes();  // UTF-8 sorts as its code points do
  if (!list_or_tuple(a) || !list_or_tuple(b) || a.sequence->kind != b.sequence->kind) return unorderable(a, b);
  const auto x = a.sequence->items, y = b.sequence->items;
  for (size_t i = 0; i < x.size() && i < y.size(); ++i)
    if (!equal(x[i], y[i])) return less(x[i], y[i]);
  return x.size() < y.size();
}

Result<size_t> hash_of(const Value& value) {
  switch (value.kind) {
    case Kind::Undefined: return size_t(1);
    case Kind::None: return size_t(2);
    case Kind::Bool:
    case Kind::Int: return mix(3, std::hash<double>{}(double(value.as_int())));
    case Kind::Float: return mix(3, std::hash<double>{}(value.real));
    case Kind::String: return hash_text(value.bytes());
    case Kind::Sequence:
      if (value.sequence->kind == Tuple) {
        size_t hash = 5;
        for (const Value& item : value.sequence->items) {
          HUNCH_TRY(const size_t one, hash_of(item));
          hash = mix(hash, one);
        }
        return hash;
      }
      [[fallthrough]];
    case Kind::Dict: return failure("unhashable type: '{}'", type_name(value));
    default: return mix(7, std::hash<const void*>{}(value.callable));
  }
}

Status append_str(const Value& value, TextBuilder& out) {
  if (value.is(Kind::Undefined)) return {};
  if (!value.is(Kind::String)) return append_repr(value, out);
  out.append(*value.text);
  return {};
}

Status append_repr(const Value& value, TextBuilder& out) {
  switch (value.kind) {
    case Kind::Undefined: out.append("Undefined"); return {};
    case Kind::None: out.append("None"); return {};
    case Kind::Bool: out.append(value.boolean ? "True" : "False"); return {};
    case Kind::Int: out.append(fmt::format_int(value.integer).c_str()); return {};
    case Kind::Float: out.append(python_float(value.real)); return {};
    case Kind::String: {
      const std::string repr = repr_of(value.bytes());
      out.append(value.text->markup ? fmt::format("Markup({})", repr) : repr);
      return {};
    }
    case Kind::Sequence: return append_sequence(*value.sequence, out);
    case Kind::Dict:
      out.append("{");
      for (size_t i = 0; i < value.dict->entries.size() && !out.full(); ++i) {
        if (i > 0) out.append(", ");
        HUNCH_OK(append_repr(value.dict->entries[i].first, out));
        out.append(": ");
        HUNCH_OK(append_repr(value.dict->entries[i].second, out));
      }
      out.append("}");
      return {};
    default: return failure("an object of type {} cannot be printed", type_name(value));
  }
}

// The shortest digits that read back the same; as plain decimals for exponents from -4 to 15.
std::string python_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr;
  std::string_view shown(buffer, size_t(end - buffer));
  std::string out;
  if (shown[0] == '-') {
    out = "-";
    shown.remove_prefix(1);
  }
  const size_t e = shown.find('e');
  std::string digits(1, shown[0]);
  if (e > 1) digits += shown.substr(2, e - 2);
  int exponent = 0;
  const char* first = shown.data() + e + (shown[e + 1] == '+' ? 2 : 1);
  std::from_chars(first, shown.data() + shown.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) (out += '.') += digits.substr(1);
    return out += fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return out += fmt::format("0.{}{}", std::string(-exponent - 1, '0'), digits);
  const size_t whole = exponent + 1;
  if (digits.size() <= whole) return out += fmt::format("{}{}.0", digits, std::string(whole - digits.size(), '0'));
  return out += fmt::format("{}.{}", digits.substr(0, whole), digits.substr(whole));
}

}
