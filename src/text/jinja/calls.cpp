// Interpreter: attributes, items, calls and the functions that every template has.

#include "text/excerpt.h"
#include "text/jinja/interpreter.h"

namespace hunch::jinja {
namespace {

using In = Interpreter&;
using Args = const Arguments&;

bool among(std::span<const std::string_view> names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

// Attributes of Python's types that change the object: jinja2's immutable sandbox gives something undefined for them.
bool changes(const Value& object, std::string_view name) {
  constexpr std::string_view kList[] = {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"};
  constexpr std::string_view kDict[] = {"clear", "pop", "popitem", "setdefault", "update"};
  if (object.is(Kind::Dict)) return among(kDict, name);
  return object.is(Kind::Sequence) && object.sequence->kind == List && among(kList, name);
}

// Attributes that Python has and we do not.
bool lacks(const Value& object, std::string_view name) {
  constexpr std::string_view kText[] = {"center", "encode", "expandtabs", "format_map", "isidentifier", "isprintable", "istitle",
      "ljust", "maketrans", "rjust", "translate", "zfill"};
  constexpr std::string_view kNumber[] = {"real", "imag", "numerator", "denominator", "bit_length", "bit_count", "conjugate",
      "to_bytes", "hex", "as_integer_ratio", "is_integer"};
  if (object.is(Kind::Dict)) return name == "fromkeys";
  if (object.is_number()) return among(kNumber, name);
  return object.is(Kind::String) && among(kText, name);
}

constexpr int64_t kMaxRange = 100'000;  // jinja2's sandbox

Result<Value> make_range(In in, const Value&, Args args) {
  int64_t bounds[3] = {0, 0, 1};
  const size_t count = args.positional.size();
  if (count < 1 || count > 3 || !args.named.empty()) return type_error("range takes 1 to 3 arguments");
  for (size_t i = 0; i < count; ++i) {
    if (!args.positional[i].is_int())
      return type_error("'{}' object cannot be interpreted as an integer", type_name(args.positional[i]));
    bounds[count == 1 ? 1 : i] = args.positional[i].as_int();
  }
  const auto [start, stop, step] = bounds;
  if (step == 0) return type_error("range() arg 3 must not be zero");
  const __int128 span = step > 0 ? __int128(stop) - start : __int128(start) - stop;
  const __int128 width = step > 0 ? __int128(step) : -__int128(step);
  const __int128 length = span <= 0 ? 0 : (span + width - 1) / width;
  if (length > kMaxRange) return type_error("range of more than {} elements", kMaxRange);
  HUNCH_OK(in.spend(int64_t(length)));
  std::vector<Value> items;
  for (int64_t i = 0; i < int64_t(length); ++i) items.push_back(Value::of(start + i * step));
  const Sequence range{
      .kind = Range,
      .items = in.heap().copy(items),
      .weight = int64_t(length) + 1,
      .start = start,
      .stop = stop,
      .step = step,
  };
  return Value::of(in.heap().make<Sequence>(range));
}

// The entries of dict(...) and namespace(...): one mapping or list of pairs, then names.
Status fill(In in, Args args, DictBuilder& out) {
  if (args.positional.size() > 1) return type_error("at most one positional argument is taken");
  if (!args.positional.empty()) {
    const Value& source = args.positional[0];
    if (source.is(Kind::Dict)) {
      for (const auto& [key, value] : source.dict->entries) HUNCH_OK(out.set(key, value));
    } else {
      HUNCH_TRY(const auto pairs, in.iterate(source));
      for (const Value& pair : pairs) {
        HUNCH_TRY(const auto parts, in.iterate(pair));
        if (parts.size() != 2) return type_error("a dict is made of pairs");
        HUNCH_OK(out.set(parts[0], parts[1]));
      }
    }
  }
  for (const auto& [name, value] : args.named) HUNCH_OK(out.set(in.text(name, true), value));
  return {};
}

Result<Value> make_dict(In in, const Value&, Args args) {
  DictBuilder dict(in.heap());
  HUNCH_OK(fill(in, args, dict));
  return dict.finish();
}

Result<Value> make_namespace(In in, const Value&, Args args) {
  HUNCH_TRY(const Value dict, make_dict(in, {}, args));
  Namespace* space =
      in.heap().make<Namespace>(Namespace{std::pmr::vector<std::pair<std::string_view, Value>>(in.heap().resource())});
  for (const auto& [key, value] : dict.dict->entries) {
    if (!key.is(Kind::String)) return type_error("the names of a namespace are strings");
    space->attributes.emplace_back(key.bytes(), value);
  }
  return Value{.kind = Kind::Namespace, .space = space};
}

Result<Value> make_joiner(In in, const Value&, Args args) {
  HUNCH_TRY(const Params params, args.bind("joiner", {"sep"}));
  const Text* comma = in.heap().make<Text>(Text{.bytes = ", ", .trusted = true});
  HUNCH_TRY(const Text* separator, params.text(0, comma));
  return Value{.kind = Kind::Joiner, .joiner = in.heap().make<Joiner>(Joiner{separator})};
}

Result<Value> raise_exception(In, const Value&, Args args) {
  HUNCH_TRY(const Params params, args.bind("raise_exception", {"message"}));
  if (!params[0]) return type_error("raise_exception needs a message");
  TextBuilder message(4096);
  HUNCH_OK(append_str(*params[0], message));
  return type_error("the template refuses the conversation: {}", message.bytes());
}

Result<Value> strftime_now(In in, const Value&, Args args) {
  HUNCH_TRY(const Params params, args.bind("strftime_now", {"format"}));
  HUNCH_TRY(const Text* format, params.text(0));
  if (!format) return type_error("strftime_now needs a format");
  if (format->bytes.empty()) return in.text("");
  if (format->bytes.size() > 1024) return type_error("the format of strftime_now is too long");
  std::tm local{};
  const std::time_t now = in.now();
  localtime_r(&now, &local);
  char buffer[8192];
  const size_t length = std::strftime(buffer, sizeof(buffer), std::string(format->bytes).c_str(), &local);
  return in.text({buffer, length});
}

Result<Value> loop_cycle(In, const Value& self, Args args) {
  if (args.positional.empty()) return type_error("no items for cycling given");
  return args.positional[self.loop->index % args.positional.size()];
}

Result<Value> loop_changed(In in, const Value& self, Args args) {
  HUNCH_TRY(const Value now, in.list({args.positional.begin(), args.positional.end()}, Tuple));
  const bool changed = !self.loop->last_seen || !equal(*self.loop->last_seen, now);
  if (changed) self.loop->last_seen = now;
  return Value::of(changed);
}

}

Function find_global(std::string_view name) {
  constexpr std::pair<std::string_view, Function> kGlobals[] = {{"range", make_range}, {"dict", make_dict},
      {"namespace", make_namespace}, {"joiner", make_joiner}, {"raise_exception", raise_exception},
      {"strftime_now", strftime_now}};
  return look_up(kGlobals, name);
}

std::optional<Value> Interpreter::global(std::string_view name) {
  if (const Function function = find_global(name))
    return Value::of(heap_.make<Callable>(Callable{.name = name, .function = function}));
  return {};
}

Result<Params> Arguments::bind(std::string_view what, std::initializer_list<std::string_view> names, size_t needed) const {
  Params out(names);
  if (positional.size() > names.size())
    return type_error("{} takes at most {} arguments, not {}", what, names.size(), positional.size());
  for (size_t i = 0; i < positional.size(); ++i) out.values_[i] = &positional[i];
  for (const auto& [name, value] : named) {
    const size_t place = std::ranges::find(out.names_, name) - out.names_.begin();
    if (place == names.size()) return type_error("{} has no argument '{}'", what, name);
    if (out.values_[place]) return type_error("{} got the argument '{}' twice", what, name);
    out.values_[place] = &value;
  }
  for (size_t i = 0; i < needed; ++i)
    if (!out.values_[i]) return type_error("{} needs an argument", what);
  return out;
}

Status Arguments::none(std::string_view what) const {
  HUNCH_OK(bind(what, {}));
  return {};
}

Result<int64_t> Params::integer(size_t i, int64_t otherwise) const {
  if (!values_[i]) return otherwise;
  if (!values_[i]->is_int()) return type_error("'{}' must be an integer, not {}", names_[i], type_name(*values_[i]));
  return values_[i]->as_int();
}

Result<const Text*> Params::text(size_t i, const Text* otherwise) const {
  if (!values_[i]) return otherwise;
  if (!values_[i]->is(Kind::String)) return type_error("'{}' must be a string, not {}", names_[i], type_name(*values_[i]));
  return values_[i]->text;
}

Result<Value> Interpreter::str(const Value& value) {
  if (value.is(Kind::String)) return value;
  TextBuilder out(budget_.output_bytes);
  HUNCH_OK(append_str(value, out));
  return finish(out);
}

// x.name: Python's attribute first, then the entry of this name.
Result<Value> Interpreter::attribute(const Value& object, std::string_view name) {
  switch (object.kind) {
    case Kind::Undefined: return undefined_error(object);
    case Kind::Namespace:
      for (const auto& [known, value] : object.space->attributes)
        if (known == name) return value;
      break;
    case Kind::Loop: return loop_attribute(object, name);
    case Kind::Callable:
      if (object.callable->macro && name == "name") return text(object.callable->name, true);
      break;
    case Kind::Joiner: break;
    default: {
      if (const Function method = find_method(object, name))
        return Value::of(heap_.make<Callable>(Callable{.name = name, .function = method, .self = object}));
      if (lacks(object, name)) return type_error("the attribute '{}' of {} is not supported", name, type_name(object));
      if (changes(object, name))
        return undefined(fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, type_name(object)));
      if (object.is(Kind::Dict))
        if (const Value* value = object.dict->find(name)) return *value;
    }
  }
  return undefined(fmt::format("'{} object' has no attribute {}", type_name(object), excerpt(name)));
}

// x[index]: the element first, then Python's attribute.
Result<Value> Interpreter::item(const Value& object, const Value& index) {
  if (object.is(Kind::Undefined)) return undefined_error(object);
  if (object.is(Kind::Dict)) {
    if (const Value* value = object.dict->find(index)) return *value;
  } else if (index.is_int() && object.is(Kind::String)) {
    int64_t at = index.as_int();
    const int64_t length = object.text->length();
    if (at < 0) at += length;
    if (at >= 0 && at < length) {
      HUNCH_OK(spend(1 + length / 256));
      return make_text(heap_, part_of(*object.text, object.text->byte_of(at), object.text->byte_of(at + 1), heap_));
    }
  } else if (index.is_int() && object.is(Kind::Sequence) && object.sequence->indexable()) {
    int64_t at = index.as_int();
    const int64_t length = std::ssize(object.sequence->items);
    if (at < 0) at += length;
    if (at >= 0 && at < length) return object.sequence->items[at];
  }
  if (!index.is(Kind::String)) return undefined(fmt::format("'{} object' has no such element", type_name(object)));
  if (object.is(Kind::Dict)) {
    const Function method = find_method(object, index.bytes());
    if (!method) return undefined(fmt::format("'dict object' has no attribute {}", excerpt(index.bytes())));
  }
  return attribute(object, index.bytes());
}

Result<Value> Interpreter::loop_attribute(const Value& value, std::string_view name) {
  const Loop& loop = *value.loop;
  const bool all = name == "length" || name.starts_with("revindex");
  if (all || name == "last" || name == "nextitem") HUNCH_OK(pull(loop, all ? INT64_MAX : loop.index + 2));
  const int64_t length = std::ssize(loop.items);
  if (name == "index") return Value::of(loop.index + 1);
  if (name == "index0") return Value::of(loop.index);
  if (name == "revindex") return Value::of(length - loop.index);
  if (name == "revindex0") return Value::of(length - loop.index - 1);
  if (name == "first") return Value::of(loop.index == 0);
  if (name == "last") return Value::of(loop.index + 1 == length);
  if (name == "length") return Value::of(length);
  if (name == "depth") return Value::of(int64_t(loop.depth + 1));
  if (name == "depth0") return Value::of(int64_t(loop.depth));
  if (name == "previtem") return loop.index > 0 ? loop.items[loop.index - 1] : undefined("there is no previous item");
  if (name == "nextitem") return loop.index + 1 < length ? loop.items[loop.index + 1] : undefined("there is no next item");
  if (name == "cycle" || name == "changed") {
    const Callable method{.name = name, .function = name == "cycle" ? loop_cycle : loop_changed, .self = value};
    return Value::of(heap_.make<Callable>(method));
  }
  return undefined(fmt::format("'jinja2.runtime.LoopContext object' has no attribute '{}'", name));
}

Status Interpreter::eval_args(const CallArgs& args, Scope& scope, Evaluated& out) {
  for (const Expr* expr : args.positional) {
    HUNCH_TRY(const Value value, eval(*expr, scope));
    out.positional.push_back(value);
  }
  for (const Keyword& keyword : args.named) {
    HUNCH_TRY(const Value value, eval(*keyword.value, scope));
    out.named.push_back({keyword.name, value});
  }
  if (args.list) {
    HUNCH_TRY(const Value list, eval(*args.list, scope));
    HUNCH_TRY(const auto items, iterate(list));
    out.positional.insert(out.positional.end(), items.begin(), items.end());
  }
  if (args.dict) {
    HUNCH_TRY(const Value dict, eval(*args.dict, scope));
    if (!dict.is(Kind::Dict)) return type_error("argument after ** must be a mapping, not {}", type_name(dict));
    for (const auto& [key, value] : dict.dict->entries) {
      if (!key.is(Kind::String)) return type_error("keywords must be strings");
      for (const auto& known : out.named)
        if (known.first == key.bytes()) return type_error("got multiple values for keyword argument '{}'", known.first);
      out.named.push_back({key.bytes(), value});
    }
  }
  return {};
}

Result<Value> Interpreter::eval_call(const Expr& expr, Scope& scope, const Value* caller) {
  HUNCH_TRY(const Value callee, eval(*expr.parts[0], scope));
  Evaluated args;
  HUNCH_OK(eval_args(*expr.args, scope, args));
  if (caller) args.named.push_back({"caller", *caller});
  line_ = expr.line;
  return call(callee, {args.positional, args.named});
}

Result<Value> Interpreter::call(const Value& callee, Args args) {
  switch (callee.kind) {
    case Kind::Undefined: return undefined_error(callee);
    case Kind::Callable:
      if (callee.callable->macro) return call_macro(*callee.callable, args);
      return callee.callable->function(*this, callee.callable->self, args);
    case Kind::Loop: {
      const Loop& loop = *callee.loop;
      if (!loop.stmt->recursive) return type_error("the loop must have the 'recursive' marker to be called recursively");
      if (args.positional.size() != 1 || !args.named.empty()) return type_error("loop() takes one argument");
      TextBuilder out(budget_.output_bytes);
      HUNCH_OK(run_for(*loop.stmt, *loop.outer, args.positional[0], loop.depth + 1, out));
      return finish(out);
    }
    case Kind::Joiner: return std::exchange(callee.joiner->called, true) ? Value::of(callee.joiner->text) : text("", true);
    default: break;
  }
  return type_error("'{}' object is not callable", type_name(callee));
}

Result<Value> Interpreter::call_macro(const Callable& callable, Args args) {
  const Macro& macro = *callable.macro;
  const size_t count = macro.params.size();
  Scope* scope = inner(callable.closure);
  std::vector<bool> used(args.named.size(), false);
  const size_t given = std::min(count, args.positional.size());
  for (size_t i = 0; i < count; ++i) {
    if (i < given) {
      set(*scope, macro.params[i], args.positional[i]);
      continue;
    }
    const Value* value = nullptr;
    for (size_t k = 0; k < args.named.size(); ++k) {
      if (args.named[k].first != macro.param_names[i]) continue;
      value = &args.named[k].second;
      used[k] = true;
    }
    if (value) {
      set(*scope, macro.params[i], *value);
    } else if (const size_t first_default = count - macro.defaults.size(); i >= first_default) {
      HUNCH_TRY(const Value otherwise, eval(*macro.defaults[i - first_default], *scope));
      set(*scope, macro.params[i], otherwise);
    } else {
      set(*scope, macro.params[i], undefined(fmt::format("parameter '{}' was not provided", macro.param_names[i])));
    }
  }
  const auto is_param = [&](uint32_t id) { return std::ranges::find(macro.params, id) != macro.params.end(); };
  if (macro.uses_varargs && !is_param(kVarargsName)) {
    HUNCH_TRY(const Value rest, list({args.positional.begin() + given, args.positional.end()}, Tuple));
    set(*scope, kVarargsName, rest);
  } else if (args.positional.size() > count) {
    return type_error("macro '{}' takes not more than {} argument(s)", macro.name, count);
  }
  if (macro.uses_caller && !is_param(kCallerName)) {
    Value caller = undefined("No caller defined");
    for (size_t k = 0; k < args.named.size(); ++k)
      if (args.named[k].first == "caller") caller = args.named[k].second, used[k] = true;
    set(*scope, kCallerName, caller);
  }
  DictBuilder rest(heap_);
  for (size_t k = 0; k < args.named.size(); ++k) {
    if (used[k]) continue;
    if (!macro.uses_kwargs || is_param(kKwargsName))
      return type_error("macro '{}' takes no keyword argument '{}'", macro.name, args.named[k].first);
    HUNCH_OK(rest.set(text(args.named[k].first, true), args.named[k].second));
  }
  if (macro.uses_kwargs && !is_param(kKwargsName)) {
    HUNCH_TRY(const Value dict, rest.finish());
    set(*scope, kKwargsName, dict);
  }
  TextBuilder out(budget_.output_bytes);
  HUNCH_OK(run(macro.body, *scope, out));
  return finish(out);
}

}
