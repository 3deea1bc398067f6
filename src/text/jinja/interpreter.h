// Interpreter: walks a Program for one rendering. Called by ChatTemplate; filters, tests and methods get it to call back.
#pragma once

#include <ctime>
#include <initializer_list>

#include "base/clock.h"
#include "base/failure.h"
#include "text/jinja/program.h"

namespace hunch::jinja {

// Levels of statements and expressions within each other, macros' bodies included: about a MiB of stack.
inline constexpr int kMaxRunDepth = 1000;

struct Budget {
  int64_t steps = 1'000'000;
  std::chrono::milliseconds time{250};
  size_t output_bytes = size_t(4) << 20;  // of the result, and of every string on the way
  std::time_t now = 0;                    // what strftime_now shows, as local time
};

class Params;
struct Arguments {
  std::span<const Value> positional;
  std::span<const std::pair<std::string_view, Value>> named;
  // By the parameters' places; the first `needed` must be there. `what` is for errors: "the filter 'join'".
  Result<Params> bind(std::string_view what, std::initializer_list<std::string_view> names, size_t needed = 0) const;
  Status none(std::string_view what) const;  // error: there are some
};

// Variables of a body; looked up outwards.
struct Scope {
  Scope* parent = nullptr;
  std::pmr::vector<std::pair<uint32_t, Value>> variables;
};

struct Namespace {
  std::pmr::vector<std::pair<std::string_view, Value>> attributes;
};

struct Callable {
  std::string_view name;
  Function function = nullptr;  // of a global or a method, whose self is `self`
  Value self;
  const Macro* macro = nullptr;
  Scope* closure = nullptr;
};

struct Loop {
  const Stmt* stmt = nullptr;
  Scope* outer = nullptr;
  // Where a test chooses among them: those found so far, those that it has not seen, and where the next one is put.
  mutable std::span<const Value> items, unseen;
  Value* room = nullptr;
  mutable int64_t index = 0;  // from 0
  int depth = 0;
  mutable std::optional<Value> last_seen;  // of changed(): its arguments as a tuple
};

struct Joiner {
  const Text* text = nullptr;  // of every call but the first
  bool called = false;
};

class Interpreter {
 public:
  Interpreter(const Program& program, Heap& heap, const Budget& budget);

  void define(std::string_view name, const Value& value);  // a variable of the template
  Status run(TextBuilder& out);
  int line() const { return line_; }

  // --- For filters, tests and methods.
  Heap& heap() { return heap_; }
  size_t text_limit() const { return budget_.output_bytes; }
  std::time_t now() const { return budget_.now; }
  // Counts work. Error: a limit is passed.
  Status spend(int64_t steps);
  // The finished text as a value. Error: the limit stopped its building.
  Result<Value> finish(const TextBuilder& text);
  Value text(std::string_view bytes, bool trusted = false) { return make_text(heap_, bytes, trusted); }
  Value undefined(std::string_view hint) { return make_undefined(heap_, hint); }
  Result<Value> list(const std::vector<Value>& items, SequenceKind kind = List);
  Result<std::span<const Value>> iterate(const Value& value);
  Status pull(const Loop& loop, int64_t count);  // until it has so many items, or no more
  Result<Value> attribute(const Value& object, std::string_view name);
  Result<Value> item(const Value& object, const Value& index);
  Result<Value> call(const Value& callee, const Arguments& args);
  Result<bool> contains(const Value& container, const Value& item);
  Result<Value> arithmetic(Operator op, const Value& a, const Value& b);
  Result<Value> str(const Value& value);  // as str() and jinja's soft_str
  Result<Value> slice(const Value& object, const Value& lower, const Value& upper, const Value& step);

 private:
  enum class Flow { Next, Break, Continue };

  Result<Flow> run(Block block, Scope& scope, TextBuilder& out);
  Result<Flow> run(const Stmt& stmt, Scope& scope, TextBuilder& out);
  Result<Flow> run_for(const Stmt& stmt, Scope& outer, const Value& iterable, int depth, TextBuilder& out);
  Status run_set(const Stmt& stmt, Scope& scope);
  Result<Flow> run_captured(const Stmt& stmt, Scope& scope, TextBuilder& out);
  Status run_call(const Stmt& stmt, Scope& scope, TextBuilder& out);
  Status print(const Value& value, TextBuilder& out);
  Status assign(const Target& target, const Value& value, Scope& scope);

  using Evaluation = Result<Value>(const Expr&, Scope&);
  Evaluation eval, eval_name, eval_sequence, eval_dict, eval_item, eval_function, eval_arith, eval_concat, eval_compare,
      eval_sign, eval_logic;
  Result<Value> eval_call(const Expr& expr, Scope& scope, const Value* caller = nullptr);
  struct Evaluated {
    std::vector<Value> positional;
    std::vector<std::pair<std::string_view, Value>> named;
  };
  Status eval_args(const CallArgs& args, Scope& scope, Evaluated& out);
  Result<Value> call_macro(const Callable& callable, const Arguments& args);
  Result<Value> loop_attribute(const Value& loop, std::string_view name);

  Scope* inner(Scope* parent);
  void set(Scope& scope, uint32_t id, const Value& value);
  const Value* find(Scope& scope, uint32_t id) const;
  std::optional<Value> global(std::string_view name);

  const Program& program_;
  Heap& heap_;
  const Budget& budget_;
  Clock::time_point deadline_;
  int64_t steps_left_;
  int until_clock_ = 0;
  int depth_ = 0, line_ = 1;
  Scope* root_;
  std::vector<std::optional<Value>> root_values_;  // variables of root_ by id: it has many
};

// Positional and named arguments by the parameter's place. Null where absent.
class Params {
 public:
  explicit Params(std::initializer_list<std::string_view> names) : values_(names.size()), names_(names) {}
  const Value* operator[](size_t i) const { return values_[i]; }
  bool given(size_t i) const { return values_[i] && !values_[i]->is(Kind::None); }
  bool flag(size_t i) const { return values_[i] && truth(*values_[i]); }
  // Error: no integer. `none_too`: None stands for absent.
  Result<int64_t> integer(size_t i, int64_t otherwise) const;
  Result<const Text*> text(size_t i, const Text* otherwise = nullptr) const;  // error: no string

 private:
  friend struct Arguments;
  std::vector<const Value*> values_;
  std::vector<std::string_view> names_;
};

// The function of this name; null: there is none.
using FunctionTable = std::span<const std::pair<std::string_view, Function>>;
inline Function look_up(FunctionTable table, std::string_view name) {
  const auto at = std::ranges::find(table, name, &FunctionTable::element_type::first);
  return at == table.end() ? nullptr : at->second;
}
// Methods of str, list, tuple and dict, by type and name; null: no such method here.
Function find_method(const Value& object, std::string_view name);
// Functions every template can call: range, namespace, raise_exception...
Function find_global(std::string_view name);
// "%d of %s" % arguments, and "{}".format(...).
Result<Value> format_percent(Interpreter& in, const Text& format, const Value& arguments);
Result<Value> format_braces(Interpreter& in, const Value& format, const Arguments& args);
// json.dumps. `indent` negative: on one line.
struct JsonStyle {
  bool ascii = false, sort_keys = false, lines = false;
  std::string indent, item_separator = ", ", key_separator = ": ";
};
Status append_json(const Value& value, const JsonStyle& style, int depth, TextBuilder& out);

// The error of what a template may not do; kind Usage: a conversation caused it.
inline Error type_error(std::string_view message) { return usage_error(std::string(message)); }
template <class First, class... Rest>
Error type_error(fmt::format_string<First, Rest...> text, First&& first, Rest&&... rest) {
  return usage_error(text, std::forward<First>(first), std::forward<Rest>(rest)...);
}
inline Error undefined_error(const Value& value) { return type_error(value.hint ? value.hint->bytes : "a value is undefined"); }
Error too_deep();

}
