// Statements, scopes and limits. Expressions are in expressions.cpp, calls in calls.cpp.
#include "text/jinja/interpreter.h"

namespace hunch::jinja {
namespace {

constexpr int kStepsPerClock = 256;

}

Error too_deep() { return type_error("template nested deeper than {}", kMaxDepth); }

Interpreter::Interpreter(const Program& program, Heap& heap, const Budget& budget)
    : program_(program),
      heap_(heap),
      budget_(budget),
      deadline_(Clock::now() + budget.time),
      steps_left_(budget.steps),
      root_(inner(nullptr)),
      root_values_(program.names.size()) {}

void Interpreter::define(std::string_view name, const Value& value) {
  for (size_t id = 0; id < program_.names.size(); ++id)
    if (program_.names[id] == name) root_values_[id] = value;
}

Status Interpreter::run(TextBuilder& out) {
  HUNCH_OK(run(program_.body, *root_, out));
  return {};
}

Status Interpreter::spend(int64_t steps) {
  steps_left_ -= steps;
  if (steps_left_ < 0) return type_error("the template takes more than {} steps", budget_.steps);
  until_clock_ -= int(std::min<int64_t>(steps, kStepsPerClock));
  if (until_clock_ > 0) return {};
  until_clock_ = kStepsPerClock;
  if (Clock::now() > deadline_) return type_error("the template takes more than {} ms", budget_.time.count());
  if (heap_.full()) return type_error("the template builds too much text on its way");
  return {};
}

Result<Value> Interpreter::finish(const TextBuilder& text) {
  if (text.full()) return type_error("the template builds a text of more than {} bytes", budget_.output_bytes);
  HUNCH_OK(spend(1 + int64_t(text.bytes().size() / 256)));
  return make_text(heap_, text.finish(heap_));
}

Result<Value> Interpreter::list(const std::vector<Value>& items, SequenceKind kind) {
  HUNCH_OK(spend(std::ssize(items)));
  return make_sequence(heap_, items, kind);
}

Scope* Interpreter::inner(Scope* parent) {
  return heap_.make<Scope>(Scope{parent, std::pmr::vector<std::pair<uint32_t, Value>>(heap_.resource())});
}

void Interpreter::set(Scope& scope, uint32_t id, const Value& value) {
  if (&scope == root_) {
    root_values_[id] = value;
    return;
  }
  for (auto& [known, old] : scope.variables) {
    if (known != id) continue;
    old = value;
    return;
  }
  heap_.count(2 * sizeof(scope.variables[0]));
  scope.variables.emplace_back(id, value);
}

const Value* Interpreter::find(Scope& scope, uint32_t id) const {
  for (const Scope* at = &scope; at; at = at->parent) {
    if (at == root_) return root_values_[id] ? &*root_values_[id] : nullptr;
    for (const auto& [known, value] : at->variables)
      if (known == id) return &value;
  }
  return nullptr;
}

Result<Interpreter::Flow> Interpreter::run(Block block, Scope& scope, TextBuilder& out) {
  const Deeper deeper(depth_);
  if (depth_ > kMaxRunDepth) return too_deep();
  for (const Stmt* stmt : block) {
    HUNCH_TRY(const Flow flow, run(*stmt, scope, out));
    if (flow != Flow::Next) return flow;
  }
  return Flow::Next;
}

Result<Interpreter::Flow> Interpreter::run(const Stmt& stmt, Scope& scope, TextBuilder& out) {
  line_ = stmt.line;
  HUNCH_OK(spend(1));
  switch (stmt.kind) {
    case StmtKind::Output: {
      HUNCH_TRY(const Value value, eval(*stmt.expr, scope));
      HUNCH_OK(print(value, out));
      return Flow::Next;
    }
    case StmtKind::If:
      for (const Branch& branch : stmt.branches) {
        if (branch.test) {
          HUNCH_TRY(const Value test, eval(*branch.test, scope));
          if (!truth(test)) continue;
        }
        return run(branch.body, scope, out);
      }
      return Flow::Next;
    case StmtKind::For: {
      HUNCH_TRY(const Value iterable, eval(*stmt.expr, scope));
      return run_for(stmt, scope, iterable, 0, out);
    }
    case StmtKind::Set: HUNCH_OK(run_set(stmt, scope)); return Flow::Next;
    case StmtKind::SetBlock:
    case StmtKind::Filter: return run_captured(stmt, scope, out);
    case StmtKind::Macro: {
      const Callable callable{.name = stmt.macro->name, .macro = stmt.macro, .closure = &scope};
      set(scope, stmt.id, Value::of(heap_.make<Callable>(callable)));
      return Flow::Next;
    }
    case StmtKind::Call: HUNCH_OK(run_call(stmt, scope, out)); return Flow::Next;
    case StmtKind::With: {
      Scope* body = inner(&scope);
      for (const Binding& binding : stmt.bindings) {
        HUNCH_TRY(const Value value, eval(*binding.value, scope));
        HUNCH_OK(assign(binding.target, value, *body));
      }
      return run(stmt.body, *body, out);
    }
    case StmtKind::Scope: return run(stmt.body, *inner(&scope), out);
    case StmtKind::Break: return Flow::Break;
    case StmtKind::Continue: return Flow::Continue;
  }
  return Flow::Next;
}

Status Interpreter::print(const Value& value, TextBuilder& out) {
  HUNCH_OK(append_str(value, out));
  if (out.full()) return type_error("the template's output is longer than {} bytes", budget_.output_bytes);
  if (value.is(Kind::String)) return spend(int64_t(value.bytes().size() / 256));
  return {};
}

Status Interpreter::run_set(const Stmt& stmt, Scope& scope) {
  HUNCH_TRY(const Value value, eval(*stmt.expr, scope));
  return assign(stmt.target, value, scope);
}

// A body whose text goes into a variable or through filters.
Result<Interpreter::Flow> Interpreter::run_captured(const Stmt& stmt, Scope& scope, TextBuilder& out) {
  TextBuilder captured(budget_.output_bytes);
  Scope* body = inner(&scope);
  HUNCH_TRY(const Flow flow, run(stmt.body, *body, captured));
  if (flow != Flow::Next) return flow;
  HUNCH_TRY(Value value, finish(captured));
  if (stmt.expr) {
    set(*body, kBodyName, value);
    HUNCH_TRY(value, eval(*stmt.expr, *body));
  }
  if (stmt.kind == StmtKind::Filter) HUNCH_OK(print(value, out));
  else HUNCH_OK(assign(stmt.target, value, scope));
  return Flow::Next;
}

Status Interpreter::run_call(const Stmt& stmt, Scope& scope, TextBuilder& out) {
  const Callable body{.name = "caller", .macro = stmt.macro, .closure = &scope};
  const Value caller = Value::of(heap_.make<Callable>(body));
  HUNCH_TRY(const Value value, eval_call(*stmt.expr, scope, &caller));
  return print(value, out);
}

Status Interpreter::pull(const Loop& loop, int64_t count) {
  if (loop.unseen.empty() || std::ssize(loop.items) >= count) return {};
  Scope* scope = inner(loop.outer);
  while (!loop.unseen.empty() && std::ssize(loop.items) < count) {
    const Value item = loop.unseen.front();
    loop.unseen = loop.unseen.subspan(1);
    scope->variables.clear();
    HUNCH_OK(assign(loop.stmt->target, item, *scope));
    HUNCH_TRY(const Value wanted, eval(*loop.stmt->test, *scope));
    if (truth(wanted)) loop.room[loop.items.size()] = item, loop.items = {loop.room, loop.items.size() + 1};
  }
  return {};
}

Result<Interpreter::Flow> Interpreter::run_for(
    const Stmt& stmt, Scope& outer, const Value& iterable, int depth, TextBuilder& out) {
  HUNCH_TRY(const std::span<const Value> items, iterate(iterable));
  Scope* body = inner(&outer);
  Loop* loop = heap_.make<Loop>(Loop{.stmt = &stmt, .outer = &outer, .items = items, .depth = depth});
  if (stmt.test) {
    const std::span<Value> room = heap_.copy(std::vector<Value>(items.begin(), items.end()));
    loop->items = {}, loop->unseen = room, loop->room = room.data();
  }
  const Value loop_value{.kind = Kind::Loop, .loop = loop};
  bool finished_one = false;
  for (size_t i = 0;; ++i) {
    HUNCH_OK(pull(*loop, int64_t(i) + 1));
    if (i == loop->items.size()) break;
    HUNCH_OK(spend(1));
    body->variables.clear();
    loop->index = int64_t(i);
    set(*body, kLoopName, loop_value);
    HUNCH_OK(assign(stmt.target, loop->items[i], *body));
    HUNCH_TRY(const Flow flow, run(stmt.body, *body, out));
    finished_one |= flow == Flow::Next;
    if (flow == Flow::Break) break;
  }
  // jinja2 notes a walk at the end of the body only: break and continue do not count.
  if (finished_one) return Flow::Next;
  body->variables.clear();
  return run(stmt.otherwise, *body, out);
}

Status Interpreter::assign(const Target& target, const Value& value, Scope& scope) {
  switch (target.kind) {
    case Target::Kind::Name: set(scope, target.id, value); return {};
    case Target::Kind::Attribute: {
      const Value* object = find(scope, target.id);
      if (!object || !object->is(Kind::Namespace))
        return type_error("cannot assign the attribute '{}': '{}' is no namespace", target.attribute, target.text);
      for (auto& [name, old] : object->space->attributes) {
        if (name != target.attribute) continue;
        old = value;
        return {};
      }
      heap_.count(2 * sizeof(object->space->attributes[0]));
      object->space->attributes.emplace_back(target.attribute, value);
      return {};
    }
    case Target::Kind::Tuple: break;
  }
  if (value.is(Kind::Undefined)) return type_error("cannot unpack an undefined value");
  HUNCH_TRY(const auto items, iterate(value));
  if (items.size() != target.parts.size())
    return type_error("cannot unpack {} values into {} names", items.size(), target.parts.size());
  for (size_t i = 0; i < items.size(); ++i) HUNCH_OK(assign(target.parts[i], items[i], scope));
  return {};
}

Result<std::span<const Value>> Interpreter::iterate(const Value& value) {
  switch (value.kind) {
    case Kind::Undefined: return std::span<const Value>();
    case Kind::Sequence:
      if (value.sequence->kind == Generator && std::exchange(value.sequence->used, true)) return std::span<const Value>();
      HUNCH_OK(spend(int64_t(value.sequence->items.size() / 16)));
      return value.sequence->items;
    case Kind::Dict: {
      std::vector<Value> keys;
      for (const Dict::Entry& entry : value.dict->entries) keys.push_back(entry.first);
      HUNCH_OK(spend(std::ssize(keys)));
      return std::span<const Value>(heap_.copy(keys));
    }
    case Kind::String: {
      std::vector<Value> characters;
      HUNCH_OK(spend(value.text->length()));
      const std::string_view bytes = value.bytes();
      for (size_t at = 0, end = 0; at < bytes.size(); at = end) {
        for (end = at + 1; end < bytes.size() && (uint8_t(bytes[end]) & 0xC0) == 0x80;) ++end;
        characters.push_back(make_text(heap_, part_of(*value.text, at, end, heap_)));
      }
      return std::span<const Value>(heap_.copy(characters));
    }
    default: return type_error("'{}' object is not iterable", type_name(value));
  }
}

}
