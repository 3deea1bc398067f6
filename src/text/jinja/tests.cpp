// What may stand behind "is".

#include "text/jinja/interpreter.h"
#include "text/jinja/python_text.h"

namespace hunch::jinja {
using enum Operator;

namespace {

using enum Kind;

using In = Interpreter&;
using Args = const Arguments&;

// A test without arguments, by a condition on the value.
template <bool (*kHolds)(const Value&)>
Result<Value> simple(In, const Value& value, Args args) {
  HUNCH_OK(args.none("this test"));
  return Value::of(kHolds(value));
}

template <Kind kKind>
bool is(const Value& v) {
  return v.is(kKind);
}
bool callable(const Value& v) { return v.is(Callable) || v.is(Loop) || v.is(Joiner) || v.is(Undefined); }
bool defined(const Value& v) { return !v.is(Undefined); }
bool is_true(const Value& v) { return v.is(Bool) && v.boolean; }
bool is_false(const Value& v) { return v.is(Bool) && !v.boolean; }
bool number(const Value& v) { return v.is_number(); }
bool escaped(const Value& v) { return v.is(String) && v.text->markup; }
bool iterable(const Value& v) { return v.is(String) || v.is(Sequence) || v.is(Dict) || v.is(Undefined) || v.is(Loop); }
bool sequence(const Value& v) {
  return v.is(String) || v.is(Dict) || v.is(Undefined) || (v.is(Sequence) && v.sequence->indexable());
}

template <bool kUpper>
Result<Value> cased(In in, const Value& value, Args args) {
  HUNCH_OK(args.none("this test"));
  HUNCH_TRY(const Value text, in.str(value));
  return Value::of(is_all(text.bytes(), kUpper ? CharClass::Upper : CharClass::Lower));
}

Result<Value> divides(In in, const Value& value, const Value& by, int64_t rest) {
  HUNCH_TRY(const Value left, in.arithmetic(Mod, value, by));
  return Value::of(equal(left, Value::of(rest)));
}
Result<Value> even(In in, const Value& value, Args args) {
  HUNCH_OK(args.none("the test 'even'"));
  return divides(in, value, Value::of(int64_t(2)), 0);
}
Result<Value> odd(In in, const Value& value, Args args) {
  HUNCH_OK(args.none("the test 'odd'"));
  return divides(in, value, Value::of(int64_t(2)), 1);
}
Result<Value> divisibleby(In in, const Value& value, Args args) {
  HUNCH_TRY(const Params params, args.bind("the test 'divisibleby'", {"num"}));
  if (!params[0]) return type_error("the test 'divisibleby' needs a number");
  return divides(in, value, *params[0], 0);
}

template <Operator kOp>
Result<Value> compared(In, const Value& a, Args args) {
  HUNCH_TRY(const Params params, args.bind("a comparing test", {"other"}, 1));
  const Value& b = *params[0];
  if (kOp == Eq || kOp == Ne) return Value::of(equal(a, b) == (kOp == Eq));
  for (const Value* side : {&a, &b})
    if (side->is(Undefined)) return undefined_error(*side);
  const bool swapped = kOp == Gt || kOp == Le;
  HUNCH_TRY(const bool before, swapped ? less(b, a) : less(a, b));
  return Value::of(before != (kOp == Le || kOp == Ge));
}

Result<Value> in(In interpreter, const Value& value, Args args) {
  HUNCH_TRY(const Params params, args.bind("the test 'in'", {"seq"}, 1));
  HUNCH_TRY(const bool found, interpreter.contains(*params[0], value));
  return Value::of(found);
}

Result<Value> sameas(In, const Value& value, Args args) {
  HUNCH_TRY(const Params params, args.bind("the test 'sameas'", {"other"}, 1));
  const Value& other = *params[0];
  if (value.kind != other.kind) return Value::of(false);
  const bool object = value.is(Sequence) || value.is(Dict);
  return Value::of(object ? value.sequence == other.sequence : equal(value, other));
}

template <Function (*kFind)(std::string_view)>
Result<Value> known(In, const Value& value, Args args) {
  HUNCH_OK(args.none("this test"));
  HUNCH_OK(hash_of(value));
  return Value::of(value.is(String) && kFind(value.bytes()) != nullptr);
}

constexpr std::pair<std::string_view, Function> kTests[] = {{"!=", compared<Ne>}, {"<", compared<Lt>}, {"<=", compared<Le>},
    {"==", compared<Eq>}, {">", compared<Gt>}, {">=", compared<Ge>}, {"boolean", simple<is<Bool>>},
    {"callable", simple<callable>}, {"defined", simple<defined>}, {"divisibleby", divisibleby}, {"eq", compared<Eq>},
    {"equalto", compared<Eq>}, {"escaped", simple<escaped>}, {"even", even}, {"false", simple<is_false>},
    {"filter", known<find_filter>}, {"float", simple<is<Float>>}, {"ge", compared<Ge>}, {"greaterthan", compared<Gt>},
    {"gt", compared<Gt>}, {"in", in}, {"integer", simple<is<Int>>}, {"iterable", simple<iterable>}, {"le", compared<Le>},
    {"lessthan", compared<Lt>}, {"lower", cased<false>}, {"lt", compared<Lt>}, {"mapping", simple<is<Dict>>},
    {"ne", compared<Ne>}, {"none", simple<is<None>>}, {"number", simple<number>}, {"odd", odd}, {"sameas", sameas},
    {"sequence", simple<sequence>}, {"string", simple<is<String>>}, {"test", known<find_test>}, {"true", simple<is_true>},
    {"undefined", simple<is<Undefined>>}, {"upper", cased<true>}};

}

Function find_test(std::string_view name) { return look_up(kTests, name); }

}
