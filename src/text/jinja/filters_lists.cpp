// Filters over sequences and mappings, and the table of all filters.

#include <charconv>

#include "text/excerpt.h"
#include "text/jinja/filters.h"
#include "text/jinja/python_text.h"

namespace hunch::jinja {
namespace filters {
namespace {

using enum Kind;

// "address.city" or 0: what sort, map and others take as their attribute. None or nothing: the item itself.
class Getter {
 public:
  static Result<Getter> make(In in, const Value* path, const Value* fallback, bool ignore_case) {
    Getter out(in, fallback, ignore_case);
    if (!path || path->is(None)) return out;
    if (path->is_int()) {
      out.parts_.push_back(*path);
      return out;
    }
    if (!path->is(String)) return type_error("an attribute is a string or an integer");
    std::string_view rest = path->bytes();
    while (true) {
      const size_t dot = std::min(rest.find('.'), rest.size());
      const std::string_view part = rest.substr(0, dot);
      int64_t index = 0;
      const bool digits =
          is_all(part, CharClass::Digit) && std::from_chars(part.data(), part.data() + part.size(), index).ec == std::errc();
      out.parts_.push_back(digits ? Value::of(index) : in.text(part));
      if (dot == rest.size()) return out;
      rest.remove_prefix(dot + 1);
    }
  }

  Result<Value> operator()(const Value& item) const {
    Value value = item;
    for (const Value& part : parts_) {
      HUNCH_TRY(value, in_->item(value, part));
      if (fallback_ && value.is(Undefined)) value = *fallback_;
    }
    if (ignore_case_ && value.is(String)) return in_->text(with_case(value.bytes(), Case::Lower));
    return value;
  }

 private:
  Getter(In in, const Value* fallback, bool ignore_case) : in_(&in), fallback_(fallback), ignore_case_(ignore_case) {}
  Interpreter* in_;
  std::vector<Value> parts_;
  const Value* fallback_;
  bool ignore_case_;
};

using Keyed = std::vector<std::pair<Value, Value>>;  // items behind what they are ordered by

// Stable, as Python sorts. `reverse` keeps equal ones in order too.
Status sort_by_key(In in, Keyed& keyed, bool reverse) {
  HUNCH_OK(in.spend(std::ssize(keyed) * 8));
  Status failed;
  std::ranges::stable_sort(keyed, [&](const auto& a, const auto& b) {
    if (!failed.ok()) return false;
    const auto before = reverse ? less(b.first, a.first) : less(a.first, b.first);
    if (!before.ok()) failed = before.error();
    return before.ok() && before.value();
  });
  return failed;
}

std::vector<Value> items_of(const Keyed& keyed) {
  std::vector<Value> out;
  for (const auto& [key, item] : keyed) out.push_back(item);
  return out;
}

Result<Value> length(In in, const Value& value, Args args) {
  HUNCH_OK(args.none("the filter 'length'"));
  switch (value.kind) {
    case Undefined: return Value::of(int64_t(0));
    case String: return Value::of(value.text->length());
    case Dict: return Value::of(std::ssize(value.dict->entries));
    case Loop: HUNCH_OK(in.pull(*value.loop, INT64_MAX)); return Value::of(std::ssize(value.loop->items));
    case Sequence:
      if (value.sequence->kind != Generator) return Value::of(std::ssize(value.sequence->items));
      [[fallthrough]];
    default: return type_error("object of type '{}' has no len()", type_name(value));
  }
}

Result<Value> first(In in, const Value& value, Args args) {
  HUNCH_OK(args.none("the filter 'first'"));
  HUNCH_TRY(const auto items, in.iterate(value));
  return items.empty() ? in.undefined("No first item, sequence was empty.") : items.front();
}

Result<Value> last(In in, const Value& value, Args args) {
  HUNCH_OK(args.none("the filter 'last'"));
  if (value.is(Sequence) && value.sequence->kind == Generator) return type_error("'generator' object is not reversible");
  HUNCH_TRY(const auto items, in.iterate(value));
  return items.empty() ? in.undefined("No last item, sequence was empty.") : items.back();
}

Result<Value> to_list(In in, const Value& value, Args args) {
  HUNCH_OK(args.none("the filter 'list'"));
  HUNCH_TRY(const auto items, in.iterate(value));
  return in.list({items.begin(), items.end()});
}

Result<Value> join(In in, const Value& value, Args args) {
  HUNCH_TRY(const Params params, args.bind("the filter 'join'", {"d", "attribute"}));
  HUNCH_TRY(const Getter getter, Getter::make(in, params[1], nullptr, false));
  HUNCH_TRY(const auto items, in.iterate(value));
  const Value nothing = in.text("", true);
  HUNCH_TRY(const Value separator, in.str(params[0] ? *params[0] : nothing));
  TextBuilder out(in.text_limit());
  for (size_t i = 0; i < items.size() && !out.full(); ++i) {
    if (i > 0) out.append(*separator.text);
    HUNCH_TRY(const Value item, getter(items[i]));
    HUNCH_OK(append_str(item, out));
  }
  return in.finish(out);
}

Result<Value> reverse(In in, const Value& value, Args args) {
  HUNCH_OK(args.none("the filter 'reverse'"));
  HUNCH_TRY(const auto items, in.iterate(value));
  std::vector<Value> out(items.rbegin(), items.rend());
  const bool walks = value.is(Sequence) && value.sequence->kind == Generator;  // Python copies it
  if (!value.is(String)) return in.list(out, walks ? List : Generator);
  TextBuilder text(in.text_limit());
  for (const Value& character : out) text.append(*character.text);
  return in.finish(text);
}

Result<Value> sort(In in, const Value& value, Args args) {
  HUNCH_TRY(const Params params, args.bind("the filter 'sort'", {"reverse", "case_sensitive", "attribute"}));
  HUNCH_TRY(const auto items, in.iterate(value));
  std::vector<Getter> getters;  // "age,name": by the one, then by the other
  if (params[2] && params[2]->is(String)) {
    std::string_view rest = params[2]->bytes();
    for (bool more = true; more;) {
      const size_t comma = std::min(rest.find(','), rest.size());
      const Value path = in.text(rest.substr(0, comma));
      HUNCH_TRY(Getter getter, Getter::make(in, &path, nullptr, !params.flag(1)));
      getters.push_back(std::move(getter));
      more = comma < rest.size();
      rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
  } else {
    HUNCH_TRY(Getter getter, Getter::make(in, params[2], nullptr, !params.flag(1)));
    getters.push_back(std::move(getter));
  }
  Keyed keyed;
  for (const Value& item : items) {
    std::vector<Value> keys;
    for (const Getter& getter : getters) { HUNCH_TRY(keys.emplace_back(), getter(item)); }
    HUNCH_TRY(const Value key, in.list(keys));
    keyed.push_back({key, item});
  }
  HUNCH_OK(sort_by_key(in, keyed, params.flag(0)));
  return in.list(items_of(keyed));
}

Result<Value> dictsort(In in, const Value& value, Args args) {
  HUNCH_TRY(const Params params, args.bind("the filter 'dictsort'", {"case_sensitive", "by", "reverse"}));
  if (!value.is(Dict)) return type_error("the filter 'dictsort' takes a dict, not {}", type_name(value));
  const Text by_key{.bytes = "key"};
  HUNCH_TRY(const Text* by, params.text(1, &by_key));
  if (by->bytes != "key" && by->bytes != "value") return type_error("You can only sort by either \"key\" or \"value\"");
  HUNCH_TRY(const Getter fold, Getter::make(in, nullptr, nullptr, !params.flag(0)));
  Keyed keyed;
  for (const auto& [key, entry] : value.dict->entries) {
    HUNCH_TRY(const Value order, fold(by->bytes == "key" ? key : entry));
    HUNCH_TRY(const Value pair, in.list({key, entry}, Tuple));
    keyed.push_back({order, pair});
  }
  HUNCH_OK(sort_by_key(in, keyed, params.flag(2)));
  return in.list(items_of(keyed));
}

Result<Value> unique(In in, const Value& value, Args args) {
  HUNCH_TRY(const Params params, args.bind("the filter 'unique'", {"case_sensitive", "attribute"}));
  HUNCH_TRY(const Getter getter, Getter::make(in, params[1], nullptr, !params.flag(0)));
  HUNCH_TRY(const auto items, in.iterate(value));
  DictBuilder seen(in.heap());
  std::vector<Value> out;
  for (const Value& item : items) {
    HUNCH_TRY(const Value key, getter(item));
    const size_t before = seen.size();
    HUNCH_OK(seen.set(key, Value::none()));
    if (seen.size() > before) out.push_back(item);
  }
  return in.list(out, Generator);
}

Result<Value> extreme(In in, const Value& value, Args args, bool greatest) {
  HUNCH_TRY(const Params params, args.bind("the filter 'min' or 'max'", {"case_sensitive", "attribute"}));
  HUNCH_TRY(const Getter getter, Getter::make(in, params[1], nullptr, !params.flag(0)));
  HUNCH_TRY(const auto items, in.iterate(value));
  if (items.empty()) return in.undefined("No aggregated item, sequence was empty.");
  Value best = items[0];
  HUNCH_TRY(Value best_key, getter(best));
  for (const Value& item : items.subspan(1)) {
    HUNCH_TRY(const Value key, getter(item));
    HUNCH_TRY(const bool better, greatest ? less(best_key, key) : less(key, best_key));
    if (better) best = item, best_key = key;
  }
  return best;
}
Result<Value> smallest(In in, const Value& value, Args args) { return extreme(in, value, args, false); }
Result<Value> greatest(In in, const Value& value, Args args) { return extreme(in, value, args, true); }

Result<Value> sum(In in, const Value& value, Args args) {
  HUNCH_TRY(const Params params, args.bind("the filter 'sum'", {"attribute", "start"}));
  HUNCH_TRY(const Getter getter, Getter::make(in, params[0], nullptr, false));
  HUNCH_TRY(const auto items, in.iterate(value));
  Value total = params[1] ? *params[1] : Value::of(int64_t(0));
  if (total.is(String)) return type_error("sum() can't sum strings [use ''.join(seq) instead]");
  for (const Value& item : items) {
    HUNCH_TRY(const Value one, getter(item));
    HUNCH_TRY(total, in.arithmetic(Operator::Add, total, one));
  }
  return total;
}

Result<Value> items(In in, const Value& value, Args args) {
  HUNCH_OK(args.none("the filter 'items'"));
  if (value.is(Undefined)) return in.list({}, Generator);
  if (!value.is(Dict)) return type_error("Can only get item pairs from a mapping.");
  HUNCH_TRY(const Value pairs, find_method(value, "items")(in, value, {}));
  HUNCH_TRY(const auto all, in.iterate(pairs));
  return in.list({all.begin(), all.end()}, Generator);
}

// Of what is false jinja2 takes nothing, not even the other arguments.
Result<Value> map(In in, const Value& value, Args args) {
  std::vector<Value> out;
  if (!truth(value)) return in.list(out, Generator);
  if (args.positional.empty()) {
    const Value *path = nullptr, *fallback = nullptr;
    for (const auto& [name, given] : args.named) {
      if (name == "attribute") path = &given;
      else if (name == "default") fallback = &given;
      else return type_error("Unexpected keyword argument '{}'", name);
    }
    if (!path) return type_error("map requires a filter argument");
    HUNCH_TRY(const Getter getter, Getter::make(in, path, fallback, false));
    HUNCH_TRY(const auto items, in.iterate(value));
    for (const Value& item : items) { HUNCH_TRY(out.emplace_back(), getter(item)); }
    return in.list(out, Generator);
  }
  if (!args.positional[0].is(String)) return type_error("map requires the name of a filter");
  const Function function = find_filter(args.positional[0].bytes());
  if (!function) return type_error("the filter {} is not supported", excerpt(args.positional[0].bytes()));
  HUNCH_TRY(const auto items, in.iterate(value));
  for (const Value& item : items) { HUNCH_TRY(out.emplace_back(), function(in, item, {args.positional.subspan(1), args.named})); }
  return in.list(out, Generator);
}

template <bool kKeep, bool kByAttribute>
Result<Value> choose(In in, const Value& value, Args args) {
  if (!truth(value)) return in.list({}, Generator);
  auto rest = args.positional;
  std::optional<Getter> getter;
  if (kByAttribute) {
    if (rest.empty()) return type_error("Missing parameter for attribute name");
    HUNCH_TRY(getter, Getter::make(in, &rest[0], nullptr, false));
    rest = rest.subspan(1);
  }
  Function test = nullptr;
  if (!rest.empty()) {
    if (!rest[0].is(String)) return type_error("the name of a test is a string");
    test = find_test(rest[0].bytes());
    if (!test) return type_error("the test {} is not supported", excerpt(rest[0].bytes()));
    rest = rest.subspan(1);
  }
  HUNCH_TRY(const auto items, in.iterate(value));
  std::vector<Value> out;
  for (const Value& item : items) {
    HUNCH_OK(in.spend(1));
    Value tested = item;
    if (getter) { HUNCH_TRY(tested, (*getter)(item)); }
    if (test) { HUNCH_TRY(tested, test(in, tested, {rest, args.named})); }
    if (truth(tested) == kKeep) out.push_back(item);
  }
  return in.list(out, Generator);
}

constexpr std::pair<std::string_view, Function> kFilters[] = {{"abs", absolute}, {"capitalize", capitalize}, {"count", length},
    {"d", otherwise}, {"default", otherwise}, {"dictsort", dictsort}, {"e", escape}, {"escape", escape}, {"first", first},
    {"float", to_float}, {"format", format}, {"indent", indent}, {"int", to_int}, {"items", items}, {"join", join},
    {"last", last}, {"length", length}, {"list", to_list}, {"lower", lower}, {"map", map}, {"max", greatest}, {"min", smallest},
    {"reject", choose<false, false>}, {"rejectattr", choose<false, true>}, {"replace", replace}, {"reverse", reverse},
    {"round", round}, {"safe", safe}, {"select", choose<true, false>}, {"selectattr", choose<true, true>}, {"sort", sort},
    {"string", string}, {"sum", sum}, {"title", title}, {"tojson", tojson}, {"trim", trim}, {"unique", unique}, {"upper", upper}};

}
}  // namespace filters

Function find_filter(std::string_view name) { return look_up(filters::kFilters, name); }

}
