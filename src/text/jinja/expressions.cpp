// Interpreter: expressions.

#include <cmath>

#include "text/jinja/interpreter.h"

namespace hunch::jinja {

using enum Kind;
namespace {

using enum Operator;

constexpr std::string_view kSigns[] = {"+", "-", "*", "/", "//", "%", "**"};

Error overflow() { return type_error("an integer grows beyond 64 bits: not supported"); }
Error division_by_zero() { return type_error("division by zero"); }

// Python rounds towards minus infinity.
int64_t floor_div(int64_t a, int64_t b) { return a / b - ((a % b != 0 && (a < 0) != (b < 0)) ? 1 : 0); }
double floor_mod(double a, double b) {
  double m = std::fmod(a, b);
  if (m != 0 && (m < 0) != (b < 0)) m += b;
  return m;
}

Result<Value> power(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return division_by_zero();
    return Value::of(std::pow(double(base), double(exponent)));
  }
  int64_t out = 1;
  for (; exponent > 0; exponent >>= 1) {
    if ((exponent & 1) && __builtin_mul_overflow(out, base, &out)) return overflow();
    if (exponent > 1 && __builtin_mul_overflow(base, base, &base)) return overflow();
  }
  return Value::of(out);
}

Result<Value> integers(Operator op, int64_t a, int64_t b) {
  int64_t out = 0;
  switch (op) {
    case Add:
      if (__builtin_add_overflow(a, b, &out)) return overflow();
      return Value::of(out);
    case Sub:
      if (__builtin_sub_overflow(a, b, &out)) return overflow();
      return Value::of(out);
    case Mul:
      if (__builtin_mul_overflow(a, b, &out)) return overflow();
      return Value::of(out);
    case Pow: return power(a, b);
    default: break;
  }
  if (b == 0) return division_by_zero();
  if (op == Div) return Value::of(double(a) / double(b));
  if (b == -1) return integers(op == Mod ? Mul : Sub, 0, a);  // INT64_MIN traps
  return Value::of(op == FloorDiv ? floor_div(a, b) : a - floor_div(a, b) * b);
}

Result<Value> reals(Operator op, double a, double b) {
  switch (op) {
    case Add: return Value::of(a + b);
    case Sub: return Value::of(a - b);
    case Mul: return Value::of(a * b);
    case Pow:
      if (a < 0 && b != std::floor(b)) return type_error("complex numbers are not supported");
      if (a == 0 && b < 0) return division_by_zero();
      return Value::of(std::pow(a, b));
    default: break;
  }
  if (b == 0) return division_by_zero();
  if (op == Div) return Value::of(a / b);
  const double mod = floor_mod(a, b);
  return Value::of(op == Mod ? mod : std::floor((a - mod) / b + 0.5));
}

Text escaped(const Text& text, Heap& heap, size_t limit) {
  TextBuilder out(limit);
  for (size_t i = 0; i < text.bytes.size(); ++i) {
    const char c = text.bytes[i];
    const std::string_view entity = c == '&' ? "&amp;"
        : c == '<'                           ? "&lt;"
        : c == '>'                           ? "&gt;"
        : c == '\''                          ? "&#39;"
        : c == '"'                           ? "&#34;"
                                             : "";
    if (entity.empty()) out.append(text, i, i + 1);
    else out.append(entity);
  }
  return out.finish(heap);
}

}

Result<Value> Interpreter::eval(const Expr& expr, Scope& scope) {
  using enum ExprKind;
  if (expr.kind == Literal) return expr.value;
  const Deeper deeper(depth_);
  if (depth_ > kMaxRunDepth) return too_deep();
  line_ = expr.line;
  HUNCH_OK(spend(1));
  switch (expr.kind) {
    case Literal: return expr.value;
    case Name: return eval_name(expr, scope);
    case List:
    case Tuple: return eval_sequence(expr, scope);
    case Dict: return eval_dict(expr, scope);
    case Attribute: {
      HUNCH_TRY(const Value object, eval(*expr.parts[0], scope));
      return attribute(object, expr.text);
    }
    case Item: return eval_item(expr, scope);
    case Slice: return type_error("a slice within a tuple of indices is not supported");
    case Call: return eval_call(expr, scope);
    case Filter:
    case Test: return eval_function(expr, scope);
    case Not: {
      HUNCH_TRY(const Value value, eval(*expr.parts[0], scope));
      return Value::of(!truth(value));
    }
    case Negate:
    case Plus: return eval_sign(expr, scope);
    case Arith: return eval_arith(expr, scope);
    case Concat: return eval_concat(expr, scope);
    case Compare: return eval_compare(expr, scope);
    case And:
    case Or:
    case Ternary: return eval_logic(expr, scope);
  }
  return Value();
}

Result<Value> Interpreter::eval_name(const Expr& expr, Scope& scope) {
  if (const Value* value = find(scope, expr.id)) return *value;
  if (const auto known = global(expr.text)) return *known;
  return undefined(fmt::format("'{}' is undefined", expr.text));
}

Result<Value> Interpreter::eval_sequence(const Expr& expr, Scope& scope) {
  std::vector<Value> items;
  items.reserve(expr.parts.size());
  for (const Expr* part : expr.parts) { HUNCH_TRY(items.emplace_back(), eval(*part, scope)); }
  return make_sequence(heap_, items, expr.kind == ExprKind::List ? List : Tuple);
}

Result<Value> Interpreter::eval_dict(const Expr& expr, Scope& scope) {
  DictBuilder dict(heap_);
  for (size_t i = 0; i < expr.parts.size(); i += 2) {
    HUNCH_TRY(const Value key, eval(*expr.parts[i], scope));
    HUNCH_TRY(const Value value, eval(*expr.parts[i + 1], scope));
    HUNCH_OK(dict.set(key, value));
  }
  return dict.finish();
}

Result<Value> Interpreter::eval_item(const Expr& expr, Scope& scope) {
  HUNCH_TRY(const Value object, eval(*expr.parts[0], scope));
  if (expr.parts[1]->kind != ExprKind::Slice) {
    HUNCH_TRY(const Value index, eval(*expr.parts[1], scope));
    return item(object, index);
  }
  Value bounds[3] = {Value::none(), Value::none(), Value::none()};
  for (size_t i = 0; i < 3; ++i)
    if (const Expr* part = expr.parts[1]->parts[i]) { HUNCH_TRY(bounds[i], eval(*part, scope)); }
  return slice(object, bounds[0], bounds[1], bounds[2]);
}

Result<Value> Interpreter::slice(const Value& object, const Value& lower, const Value& upper, const Value& step_value) {
  if (object.is(Undefined)) return undefined_error(object);
  const bool text = object.is(String), sequence = object.is(Sequence) && object.sequence->indexable();
  if (!text && !sequence) return type_error("'{}' object cannot be sliced", type_name(object));
  for (const Value* bound : {&lower, &upper, &step_value})
    if (!bound->is_int() && !bound->is(None)) return type_error("slice indices must be integers or None");
  const int64_t length = text ? object.text->length() : std::ssize(object.sequence->items);
  const int64_t step = step_value.is(None) ? 1 : step_value.as_int();
  if (step == 0) return type_error("slice step cannot be zero");
  // As CPython's PySlice_AdjustIndices.
  const auto clip = [&](const Value& bound, int64_t otherwise) {
    if (bound.is(None)) return otherwise;
    int64_t at = bound.as_int();
    if (at < 0) return at += length, std::max(at, step < 0 ? int64_t(-1) : int64_t(0));
    return std::min(at, step < 0 ? length - 1 : length);
  };
  const int64_t begin = clip(lower, step < 0 ? length - 1 : 0), end = clip(upper, step < 0 ? -1 : length);
  if (text && step == 1) {
    if (begin >= end) return this->text("");
    HUNCH_OK(spend(1 + length / 256));
    return make_text(heap_, part_of(*object.text, object.text->byte_of(begin), object.text->byte_of(end), heap_));
  }
  HUNCH_TRY(const auto items, iterate(object));
  std::vector<Value> kept;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    kept.push_back(items[i]);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  if (!text) return list(kept, object.sequence->kind == Tuple ? Tuple : List);
  TextBuilder out(budget_.output_bytes);
  for (const Value& character : kept) out.append(*character.text);
  return finish(out);
}

Result<Value> Interpreter::eval_function(const Expr& expr, Scope& scope) {
  const bool filter = expr.kind == ExprKind::Filter;
  if (!expr.function) return type_error("the {} '{}' is not supported", filter ? "filter" : "test", expr.text);
  HUNCH_TRY(const Value input, eval(*expr.parts[0], scope));
  Evaluated args;
  if (expr.args) HUNCH_OK(eval_args(*expr.args, scope, args));
  line_ = expr.line;
  return expr.function(*this, input, {args.positional, args.named});
}

Result<Value> Interpreter::eval_sign(const Expr& expr, Scope& scope) {
  HUNCH_TRY(const Value value, eval(*expr.parts[0], scope));
  const bool negate = expr.kind == ExprKind::Negate;
  if (value.is_int()) {
    if (!negate) return Value::of(value.as_int());
    return arithmetic(Sub, Value::of(int64_t(0)), value);
  }
  if (value.is(Float)) return Value::of(negate ? -value.real : value.real);
  if (value.is(Undefined)) return undefined_error(value);
  return type_error("bad operand type for unary {}: '{}'", negate ? '-' : '+', type_name(value));
}

Result<Value> Interpreter::eval_arith(const Expr& expr, Scope& scope) {
  HUNCH_TRY(Value left, eval(*expr.parts[0], scope));
  for (size_t i = 0; i < expr.chain.size();) {
    HUNCH_TRY(const Value right, eval(*expr.chain[i].right, scope));
    line_ = expr.line;
    if (left.is(String) && right.is(String) && expr.chain[i].op == Add && !left.text->markup && !right.text->markup) {
      // A chain of strings is joined once, not once for each sign.
      TextBuilder out(budget_.output_bytes);
      out.append(*left.text);
      out.append(*right.text);
      Value next;
      for (++i; i < expr.chain.size() && expr.chain[i].op == Add; ++i) {
        HUNCH_TRY(next, eval(*expr.chain[i].right, scope));
        if (!next.is(String) || next.text->markup) break;
        out.append(*next.text);
      }
      HUNCH_TRY(left, finish(out));
      if (i < expr.chain.size() && expr.chain[i].op == Add) {
        HUNCH_TRY(left, arithmetic(Add, left, next));
        ++i;
      }
      continue;
    }
    HUNCH_TRY(left, arithmetic(expr.chain[i].op, left, right));
    ++i;
  }
  return left;
}

Result<Value> Interpreter::arithmetic(Operator op, const Value& a, const Value& b) {
  HUNCH_OK(spend(1));
  if (a.is_int() && b.is_int()) return integers(op, a.as_int(), b.as_int());
  if (a.is_number() && b.is_number()) return reals(op, a.as_real(), b.as_real());
  if (op == Mod && a.is(String)) return format_percent(*this, *a.text, b);
  for (const Value* side : {&a, &b})
    if (side->is(Undefined)) return undefined_error(*side);
  if (op == Add && a.is(String) && b.is(String)) {
    TextBuilder out(budget_.output_bytes);
    const bool markup = a.text->markup || b.text->markup;
    out.append(markup && !a.text->markup ? escaped(*a.text, heap_, budget_.output_bytes) : *a.text);
    out.append(markup && !b.text->markup ? escaped(*b.text, heap_, budget_.output_bytes) : *b.text);
    HUNCH_TRY(const Value sum, finish(out));
    Text text = *sum.text;
    text.markup = markup;
    return make_text(heap_, text);
  }
  const auto plain = [](const Value& v) { return v.is(Sequence) && v.sequence->kind <= Tuple; };
  if (op == Add && plain(a) && plain(b) && a.sequence->kind == b.sequence->kind) {
    std::vector<Value> items(a.sequence->items.begin(), a.sequence->items.end());
    items.insert(items.end(), b.sequence->items.begin(), b.sequence->items.end());
    return list(items, a.sequence->kind);
  }
  if (op == Mul && (a.is_int() || b.is_int())) {
    const Value& many = a.is_int() ? b : a;
    const int64_t times = std::max<int64_t>(0, a.is_int() ? a.as_int() : b.as_int());
    if (many.is(String)) {
      TextBuilder out(budget_.output_bytes);
      if (!many.bytes().empty())
        for (int64_t i = 0; i < times && !out.full(); ++i) out.append(*many.text);
      return finish(out);
    }
    if (plain(many)) {
      std::vector<Value> items;
      const auto& source = many.sequence->items;
      if (!source.empty() && times > int64_t(budget_.output_bytes / source.size()))
        return type_error("the template builds too long a list");
      for (int64_t i = 0; i < times && !source.empty(); ++i) {
        HUNCH_OK(spend(std::ssize(source)));
        items.insert(items.end(), source.begin(), source.end());
      }
      return list(items, many.sequence->kind);
    }
  }
  return type_error("unsupported operand type(s) for {}: '{}' and '{}'", kSigns[size_t(op)], type_name(a), type_name(b));
}

Result<Value> Interpreter::eval_concat(const Expr& expr, Scope& scope) {
  TextBuilder out(budget_.output_bytes);
  for (const Expr* part : expr.parts) {
    HUNCH_TRY(const Value value, eval(*part, scope));
    HUNCH_OK(append_str(value, out));
  }
  return finish(out);
}

Result<Value> Interpreter::eval_compare(const Expr& expr, Scope& scope) {
  HUNCH_TRY(Value left, eval(*expr.parts[0], scope));
  for (const Operand& operand : expr.chain) {
    HUNCH_TRY(const Value right, eval(*operand.right, scope));
    line_ = expr.line;
    bool holds = false;
    switch (operand.op) {
      case Eq: holds = equal(left, right); break;
      case Ne: holds = !equal(left, right); break;
      case In:
      case NotIn: {
        HUNCH_TRY(holds, contains(right, left));
        if (operand.op == NotIn) holds = !holds;
        break;
      }
      default: {
        if (left.is(Undefined)) return undefined_error(left);
        if (right.is(Undefined)) return undefined_error(right);
        const bool swapped = operand.op == Gt || operand.op == Le;
        HUNCH_TRY(holds, swapped ? less(right, left) : less(left, right));
        if (operand.op == Le || operand.op == Ge) {
          const bool nan = (left.is(Float) && std::isnan(left.real)) || (right.is(Float) && std::isnan(right.real));
          holds = !holds && !nan;
        }
      }
    }
    if (!holds) return Value::of(false);
    left = right;
  }
  return Value::of(true);
}

Result<bool> Interpreter::contains(const Value& container, const Value& item) {
  switch (container.kind) {
    case Undefined: return false;
    case String:
      if (!item.is(String)) return type_error("'in <string>' requires string as left operand, not {}", type_name(item));
      HUNCH_OK(spend(1 + int64_t(container.bytes().size() / 256)));
      return container.bytes().find(item.bytes()) != std::string_view::npos;
    case Sequence: {
      HUNCH_TRY(const auto items, iterate(container));
      HUNCH_OK(spend(std::ssize(items)));
      return std::ranges::any_of(items, [&](const Value& one) { return equal(one, item); });
    }
    case Dict: {
      HUNCH_OK(hash_of(item));
      return container.dict->find(item) != nullptr;
    }
    default: return type_error("argument of type '{}' is not iterable", type_name(container));
  }
}

// and, or: the value that decided. a if b else c: without else, something undefined.
Result<Value> Interpreter::eval_logic(const Expr& expr, Scope& scope) {
  if (expr.kind == ExprKind::Ternary) {
    HUNCH_TRY(const Value test, eval(*expr.parts[0], scope));
    const Expr* chosen = truth(test) ? expr.parts[1] : expr.parts[2];
    if (chosen) return eval(*chosen, scope);
    return undefined("an inline 'if' was false and has no 'else'");
  }
  for (size_t i = 0;; ++i) {
    HUNCH_TRY(const Value value, eval(*expr.parts[i], scope));
    if (i + 1 == expr.parts.size() || truth(value) == (expr.kind == ExprKind::Or)) return value;
  }
}

}
