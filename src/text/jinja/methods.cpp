// Methods of Python's str, list, tuple and dict that templates may call. Those that change their object are not here.

#include "text/jinja/interpreter.h"
#include "text/jinja/python_text.h"

namespace hunch::jinja {
namespace {

using In = Interpreter&;
using Args = const Arguments&;

Value part(In in, const Value& self, size_t begin, size_t end) {
  return make_text(in.heap(), part_of(*self.text, begin, end, in.heap()));
}

// Where a text's characters that are in `chars` (null: white space) end at its front and begin at its back.
std::pair<size_t, size_t> stripped(const Text& text, const Text* chars, bool left, bool right) {
  const std::string_view bytes = text.bytes;
  size_t begin = 0, end = bytes.size();
  if (!chars) {
    if (left) begin = skip_space(bytes, 0);
    if (right) end = std::max(begin, space_at_end(bytes));
    return {begin, end};
  }
  const auto strips = [&](std::string_view character) { return chars->bytes.find(character) != character.npos; };
  if (left)
    each_character(bytes, [&](std::string_view character, uint32_t) {
      if (!strips(character)) return false;
      begin += character.size();
      return true;
    });
  while (right && end > begin) {
    size_t at = end - 1;
    while (at > begin && (uint8_t(bytes[at]) & 0xC0) == 0x80) --at;
    if (!strips(bytes.substr(at, end - at))) break;
    end = at;
  }
  return {begin, end};
}

template <bool kLeft, bool kRight>
Result<Value> strip(In in, const Value& self, Args args) {
  HUNCH_TRY(const Params params, args.bind("strip", {"chars"}));
  const Text* chars = nullptr;
  if (params.given(0)) { HUNCH_TRY(chars, params.text(0)); }
  const auto [begin, end] = stripped(*self.text, chars, kLeft, kRight);
  return part(in, self, begin, end);
}

template <Case kCase>
Result<Value> cased(In in, const Value& self, Args args) {
  HUNCH_OK(args.none("this method"));
  HUNCH_OK(in.spend(1 + int64_t(self.bytes().size() / 64)));
  return in.text(with_case(self.bytes(), kCase), self.text->runs.empty() && self.text->trusted);
}

template <CharClass kClass>
Result<Value> all_of(In, const Value& self, Args args) {
  HUNCH_OK(args.none("this method"));
  return Value::of(is_all(self.bytes(), kClass));
}

// The part of the text that start and end (arguments 1 and 2) choose; none: nothing, not even the empty text.
Result<std::optional<std::string_view>> window(const Value& self, const Params& params) {
  const int64_t length = self.text->length();
  int64_t bounds[2] = {0, length};
  for (size_t i = 0; i < 2; ++i) {
    if (!params[i + 1] || params[i + 1]->is(Kind::None)) continue;
    HUNCH_TRY(bounds[i], params.integer(i + 1, 0));
    if (bounds[i] < 0) bounds[i] = std::max<int64_t>(0, bounds[i] + length);
  }
  bounds[1] = std::min(bounds[1], length);
  if (bounds[0] > bounds[1]) return std::optional<std::string_view>();
  const size_t begin = self.text->byte_of(bounds[0]);
  return std::optional(self.bytes().substr(begin, self.text->byte_of(bounds[1]) - begin));
}

template <bool kStart>
Result<Value> affix(In, const Value& self, Args args) {
  HUNCH_TRY(const Params params, args.bind(kStart ? "startswith" : "endswith", {"prefix", "start", "end"}));
  if (!params[0]) return type_error("startswith and endswith need an argument");
  HUNCH_TRY(const auto text, window(self, params));
  if (!text) return Value::of(false);
  std::span<const Value> options(params[0], 1);
  if (params[0]->is(Kind::Sequence) && params[0]->sequence->kind == Tuple) options = params[0]->sequence->items;
  for (const Value& option : options) {
    if (!option.is(Kind::String))
      return type_error("startswith and endswith take a str or a tuple of str, not {}", type_name(option));
    if (kStart ? text->starts_with(option.bytes()) : text->ends_with(option.bytes())) return Value::of(true);
  }
  return Value::of(false);
}

template <bool kFirst, bool kMust>
Result<Value> find(In in, const Value& self, Args args) {
  HUNCH_TRY(const Params params, args.bind("find", {"sub", "start", "end"}, 1));
  HUNCH_TRY(const Text* wanted, params.text(0));
  HUNCH_OK(in.spend(1 + int64_t(self.bytes().size() / 256)));
  HUNCH_TRY(const auto text, window(self, params));
  const size_t at = !text ? std::string_view::npos : kFirst ? text->find(wanted->bytes) : text->rfind(wanted->bytes);
  if (at != std::string_view::npos) {
    const std::string_view before(self.bytes().data(), text->data() + at);
    return Value::of(Text{.bytes = before}.length());
  }
  if (kMust) return type_error("substring not found");
  return Value::of(int64_t(-1));
}

Result<Value> count(In in, const Value& self, Args args) {
  HUNCH_TRY(const Params params, args.bind("count", {"sub", "start", "end"}, 1));
  HUNCH_TRY(const Text* wanted, params.text(0));
  HUNCH_TRY(const auto text, window(self, params));
  if (!text) return Value::of(int64_t(0));
  HUNCH_OK(in.spend(1 + int64_t(self.bytes().size() / 64)));
  if (wanted->bytes.empty()) return Value::of(Text{.bytes = *text}.length() + 1);
  int64_t found = 0;
  for (size_t at = 0; (at = text->find(wanted->bytes, at)) != text->npos; at += wanted->bytes.size()) ++found;
  return Value::of(found);
}

template <bool kFromLeft>
Result<Value> split(In in, const Value& self, Args args) {
  HUNCH_TRY(const Params params, args.bind("split", {"sep", "maxsplit"}));
  const Text* separator = nullptr;
  if (params.given(0)) { HUNCH_TRY(separator, params.text(0)); }
  HUNCH_TRY(int64_t limit, params.integer(1, -1));
  if (limit < 0) limit = INT64_MAX;
  if (separator && separator->bytes.empty()) return type_error("empty separator");
  const std::string_view text = self.bytes();
  std::vector<std::pair<size_t, size_t>> parts;
  if (separator && kFromLeft) {
    size_t begin = 0;
    for (size_t at; limit-- > 0 && (at = text.find(separator->bytes, begin)) != text.npos; begin = at + separator->bytes.size())
      parts.push_back({begin, at});
    parts.push_back({begin, text.size()});
  } else if (separator) {
    size_t end = text.size();
    while (limit-- > 0) {
      const size_t at = end < separator->bytes.size() ? text.npos : text.rfind(separator->bytes, end - separator->bytes.size());
      if (at == text.npos) break;
      parts.push_back({at + separator->bytes.size(), end});
      end = at;
    }
    parts.push_back({0, end});
    std::ranges::reverse(parts);
  } else if (kFromLeft) {
    for (size_t at = skip_space(text, 0); at < text.size();) {
      size_t end = at;
      if (limit-- > 0)
        each_character(text.substr(at), [&](std::string_view character, uint32_t code) {
          if (is_space(code)) return false;
          end += character.size();
          return true;
        });
      else end = text.size();
      parts.push_back({at, end});
      at = skip_space(text, end);
    }
  } else {
    for (size_t end = space_at_end(text); end > 0;) {
      size_t begin = end;
      while (limit > 0 && begin > 0) {
        size_t at = begin - 1;
        while (at > 0 && (uint8_t(text[at]) & 0xC0) == 0x80) --at;
        if (is_space(utf8_step(text.substr(at, begin - at)).code)) break;
        begin = at;
      }
      if (limit-- <= 0) begin = 0;
      parts.push_back({begin, end});
      end = space_at_end(text.substr(0, begin));
    }
    std::ranges::reverse(parts);
  }
  std::vector<Value> out;
  out.reserve(parts.size());
  HUNCH_OK(in.spend(int64_t(parts.size() + text.size() / 256)));
  for (const auto& [begin, end] : parts) out.push_back(part(in, self, begin, end));
  return in.list(out);
}

Result<Value> splitlines(In in, const Value& self, Args args) {
  HUNCH_TRY(const Params params, args.bind("splitlines", {"keepends"}));
  const bool keep = params.flag(0);
  const std::string_view text = self.bytes();
  HUNCH_OK(in.spend(1 + int64_t(text.size() / 64)));
  std::vector<Value> out;
  size_t begin = 0, at = 0;
  const auto add = [&](size_t end) { out.push_back(part(in, self, begin, end)); };
  while (at < text.size()) {
    const Utf8Step step = utf8_step(text.substr(at));
    const uint32_t c = step.code;
    size_t after = at + step.length;
    if ((c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029) {
      if (c == '\r' && after < text.size() && text[after] == '\n') ++after;
      add(keep ? after : at);
      begin = after;
    }
    at = after;
  }
  if (begin < text.size()) add(text.size());
  return in.list(out);
}

Result<Value> replace(In in, const Value& self, Args args) {
  HUNCH_TRY(const Params params, args.bind("replace", {"old", "new", "count"}));
  HUNCH_TRY(const Text* old_text, params.text(0));
  HUNCH_TRY(const Text* new_text, params.text(1));
  if (!old_text || !new_text) return type_error("replace needs two arguments");
  HUNCH_TRY(int64_t limit, params.integer(2, -1));
  if (limit < 0) limit = INT64_MAX;
  const std::string_view text = self.bytes(), wanted = old_text->bytes;
  TextBuilder out(in.text_limit());
  size_t begin = 0;
  if (wanted.empty()) {  // before every character and at the end
    while (limit-- > 0 && !out.full()) {
      out.append(*new_text);
      if (begin == text.size()) return in.finish(out);
      const size_t end = begin + utf8_step(text.substr(begin)).length;
      out.append(*self.text, begin, end);
      begin = end;
    }
  } else {
    for (size_t at; limit-- > 0 && !out.full() && (at = text.find(wanted, begin)) != text.npos; begin = at + wanted.size()) {
      out.append(*self.text, begin, at);
      out.append(*new_text);
    }
  }
  out.append(*self.text, begin, text.size());
  return in.finish(out);
}

Result<Value> join(In in, const Value& self, Args args) {
  HUNCH_TRY(const Params params, args.bind("join", {"iterable"}, 1));
  HUNCH_TRY(const auto items, in.iterate(*params[0]));
  TextBuilder out(in.text_limit());
  for (size_t i = 0; i < items.size(); ++i) {
    if (!items[i].is(Kind::String))
      return type_error("sequence item {}: expected str instance, {} found", i, type_name(items[i]));
    if (i > 0) out.append(*self.text);
    out.append(*items[i].text);
  }
  return in.finish(out);
}

template <bool kPrefix>
Result<Value> remove_affix(In in, const Value& self, Args args) {
  HUNCH_TRY(const Params params, args.bind(kPrefix ? "removeprefix" : "removesuffix", {"affix"}));
  HUNCH_TRY(const Text* text, params.text(0));
  if (!text) return type_error("removeprefix and removesuffix need an argument");
  const std::string_view all = self.bytes();
  if (kPrefix) return part(in, self, all.starts_with(text->bytes) ? text->bytes.size() : 0, all.size());
  return part(in, self, 0, all.ends_with(text->bytes) ? all.size() - text->bytes.size() : all.size());
}

template <bool kFirst>
Result<Value> partition(In in, const Value& self, Args args) {
  HUNCH_TRY(const Params params, args.bind("partition", {"sep"}));
  HUNCH_TRY(const Text* text, params.text(0));
  if (!text || text->bytes.empty()) return type_error("empty separator");
  const std::string_view all = self.bytes();
  const size_t at = kFirst ? all.find(text->bytes) : all.rfind(text->bytes);
  const Value empty = in.text("");
  if (at == all.npos)
    return in.list(kFirst ? std::vector<Value>{self, empty, empty} : std::vector<Value>{empty, empty, self}, Tuple);
  const size_t after = at + text->bytes.size();
  return in.list({part(in, self, 0, at), part(in, self, at, after), part(in, self, after, all.size())}, Tuple);
}

Result<Value> format(In in, const Value& self, Args args) { return format_braces(in, self, args); }

// --- list and tuple.
Result<Value> sequence_count(In in, const Value& self, Args args) {
  HUNCH_TRY(const Params params, args.bind("count", {"value"}, 1));
  HUNCH_TRY(const auto items, in.iterate(self));
  return Value::of(int64_t(std::ranges::count_if(items, [&](const Value& v) { return equal(v, *params[0]); })));
}

Result<Value> sequence_index(In in, const Value& self, Args args) {
  HUNCH_TRY(const Params params, args.bind("index", {"value"}, 1));
  HUNCH_TRY(const auto items, in.iterate(self));
  for (size_t i = 0; i < items.size(); ++i)
    if (equal(items[i], *params[0])) return Value::of(int64_t(i));
  return type_error("the value is not in the list");
}

Result<Value> copy(In, const Value& self, Args args) {
  HUNCH_OK(args.none("copy"));
  return self;
}

// --- dict.
Result<Value> dict_get(In, const Value& self, Args args) {
  if (!args.named.empty()) return type_error("get() takes no keyword arguments");
  HUNCH_TRY(const Params params, args.bind("get", {"key", "default"}, 1));
  HUNCH_OK(hash_of(*params[0]));
  const Value* found = self.dict->find(*params[0]);
  return found ? *found : params[1] ? *params[1] : Value::none();
}

template <SequenceKind kKind>
Result<Value> dict_view(In in, const Value& self, Args args) {
  HUNCH_OK(args.none("this method"));
  std::vector<Value> out;
  for (const auto& [key, value] : self.dict->entries) {
    if (kKind == Items) {
      HUNCH_TRY(out.emplace_back(), make_sequence(in.heap(), {key, value}, Tuple));
    } else {
      out.push_back(kKind == Keys ? key : value);
    }
  }
  return in.list(out, kKind);
}

constexpr std::pair<std::string_view, Function> kText[] = {{"capitalize", cased<Case::Capital>}, {"casefold", cased<Case::Lower>},
    {"count", count}, {"endswith", affix<false>}, {"find", find<true, false>}, {"format", format}, {"index", find<true, true>},
    {"isalnum", all_of<CharClass::Alnum>}, {"isalpha", all_of<CharClass::Alpha>}, {"isascii", all_of<CharClass::Ascii>},
    {"isdecimal", all_of<CharClass::Decimal>}, {"isdigit", all_of<CharClass::Digit>}, {"islower", all_of<CharClass::Lower>},
    {"isnumeric", all_of<CharClass::Numeric>}, {"isspace", all_of<CharClass::Space>}, {"isupper", all_of<CharClass::Upper>},
    {"join", join}, {"lower", cased<Case::Lower>}, {"lstrip", strip<true, false>}, {"partition", partition<true>},
    {"removeprefix", remove_affix<true>}, {"removesuffix", remove_affix<false>}, {"replace", replace},
    {"rfind", find<false, false>}, {"rindex", find<false, true>}, {"rpartition", partition<false>}, {"rsplit", split<false>},
    {"rstrip", strip<false, true>}, {"split", split<true>}, {"splitlines", splitlines}, {"startswith", affix<true>},
    {"strip", strip<true, true>}, {"swapcase", cased<Case::Swapped>}, {"title", cased<Case::Title>},
    {"upper", cased<Case::Upper>}};
constexpr std::pair<std::string_view, Function> kSequence[] = {{"count", sequence_count}, {"index", sequence_index}};
constexpr std::pair<std::string_view, Function> kDict[] = {
    {"get", dict_get},
    {"items", dict_view<Items>},
    {"keys", dict_view<Keys>},
    {"values", dict_view<Values>},
    {"copy", copy},
};

}

Function find_method(const Value& object, std::string_view name) {
  if (object.is(Kind::String)) return look_up(kText, name);
  if (object.is(Kind::Dict)) return look_up(kDict, name);
  if (!object.is(Kind::Sequence) || !object.sequence->indexable()) return nullptr;
  if (name == "copy" && object.sequence->kind == List) return copy;
  return look_up(kSequence, name);
}

}
