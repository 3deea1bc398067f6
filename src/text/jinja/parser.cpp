// Statements.
#include "text/jinja/parser.h"

#include <fmt/format.h>

#include "text/excerpt.h"

namespace hunch::jinja {
namespace {

constexpr std::string_view kFor[] = {"endfor", "else"}, kIf[] = {"elif", "else", "endif"};

}

Parser::Parser(std::vector<Token> tokens, Heap& heap) : tokens_(std::move(tokens)), heap_(heap) {
  for (const std::string_view name : kKnownNames) id_of(name);
}

Error Parser::unexpected(std::string_view wanted) const {
  const Token& token = current();
  std::string found = excerpt(token.text, 30);
  if (token.kind == End) found = "the end of the template";
  if (token.kind == BlockEnd || token.kind == VariableEnd) found = "the end of the tag";
  return fail(fmt::format("expected {}, found {}", wanted, found));
}

Error Parser::too_deep() const { return fail(fmt::format("template nested deeper than {}", kMaxDepth)); }

bool Parser::skip_op(std::string_view op) {
  if (!is_op(op)) return false;
  next();
  return true;
}

bool Parser::skip_name(std::string_view name) {
  if (!is_name(name)) return false;
  next();
  return true;
}

Status Parser::expect_op(std::string_view op) {
  if (!skip_op(op)) return unexpected(fmt::format("'{}'", op));
  return {};
}

Status Parser::expect(TokenKind kind, std::string_view what) {
  if (current().kind != kind) return unexpected(what);
  next();
  return {};
}

Result<std::string_view> Parser::expect_any_name() {
  if (current().kind != Name) return unexpected("a name");
  const std::string_view name = current().text;
  next();
  return name;
}

uint32_t Parser::id_of(std::string_view name) {
  const auto [at, added] = ids_.try_emplace(name, uint32_t(names_.size()));
  if (added) names_.push_back(name);
  return at->second;
}

Stmt Parser::begin(StmtKind kind) {
  const int line = current().line;
  next();
  return {.kind = kind, .line = line};
}

Result<Block> Parser::run() { return body({}); }

Result<Block> Parser::body(std::span<const std::string_view> ends) {
  const Deeper deeper(depth_);
  if (depth_ > kMaxDepth) return too_deep();
  if (!ends.empty()) {
    skip_op(":");
    HUNCH_OK(expect(BlockEnd, "the end of the tag"));
  }
  std::vector<const Stmt*> out;
  while (current().kind != End) {
    const int line = current().line;
    if (current().kind == Data) {
      const Value text = make_text(heap_, Text{.bytes = current().text, .trusted = true});
      out.push_back(make({.kind = StmtKind::Output, .line = line, .expr = literal(text)}));
      next();
    } else if (current().kind == VariableBegin) {
      next();
      HUNCH_TRY(const Expr* expr, tuple(true, false));
      HUNCH_OK(expect(VariableEnd, "the end of the expression"));
      out.push_back(make({.kind = StmtKind::Output, .line = line, .expr = expr}));
    } else {
      next();  // a BlockBegin
      if (current().kind == Name && std::ranges::find(ends, current().text) != ends.end()) return Block(heap_.copy(out));
      HUNCH_TRY(const Stmt* stmt, statement());
      out.push_back(stmt);
      HUNCH_OK(expect(BlockEnd, "the end of the tag"));
    }
  }
  if (!ends.empty()) return unexpected(fmt::format("{{% {} %}}", ends.back()));
  return Block(heap_.copy(out));
}

Result<Block> Parser::body_until(std::string_view end) {
  HUNCH_TRY(const Block out, body({&end, 1}));
  next();
  return out;
}

StmtResult Parser::statement() {
  const std::string_view tag = current().text;
  if (current().kind != Name) return unexpected("the name of a tag");
  if (tag == "for") return parse_for();
  if (tag == "if") return parse_if();
  if (tag == "set") return parse_set();
  if (tag == "macro") return parse_macro();
  if (tag == "call") return parse_call();
  if (tag == "filter") return parse_filter_block();
  if (tag == "with") return parse_with();
  if (tag == "generation") {
    Stmt stmt = begin(StmtKind::Scope);
    const int loops = std::exchange(loops_, 0);
    HUNCH_TRY(stmt.body, body_until("endgeneration"));
    loops_ = loops;
    return make(stmt);
  }
  if (tag == "break" || tag == "continue") {
    if (loops_ == 0) return fail(fmt::format("'{}' outside of a loop", tag));
    return make(begin(tag == "break" ? StmtKind::Break : StmtKind::Continue));
  }
  if (tag == "print") {
    Stmt stmt = begin(StmtKind::Output);
    std::vector<const Expr*> parts;
    while (current().kind != BlockEnd) {
      if (!parts.empty()) HUNCH_OK(expect_op(","));
      HUNCH_TRY(parts.emplace_back(), expression());
    }
    HUNCH_TRY(stmt.expr, make(ExprKind::Concat, stmt.line, parts));
    return make(stmt);
  }
  for (const std::string_view known : {"extends", "block", "include", "import", "from", "autoescape", "do", "trans"})
    if (tag == known) return fail(fmt::format("the tag '{}' is not supported", tag));
  return fail(fmt::format("unknown tag {}", excerpt(tag, 30)));
}

StmtResult Parser::parse_for() {
  Stmt stmt = begin(StmtKind::For);
  HUNCH_TRY(stmt.target, assign_target(false, "in"));
  if (!skip_name("in")) return unexpected("'in'");
  HUNCH_TRY(stmt.expr, tuple(false, false, "recursive"));
  if (skip_name("if")) { HUNCH_TRY(stmt.test, expression()); }
  stmt.recursive = skip_name("recursive");
  ++loops_;
  HUNCH_TRY(stmt.body, body(kFor));
  --loops_;
  const bool has_else = is_name("else");
  next();
  if (has_else) { HUNCH_TRY(stmt.otherwise, body_until("endfor")); }
  return make(stmt);
}

StmtResult Parser::parse_if() {
  Stmt stmt = begin(StmtKind::If);
  ++conditions_;
  std::vector<Branch> branches;
  for (bool more = true; more;) {
    HUNCH_TRY(const Expr* test, tuple(false, false));
    HUNCH_TRY(const Block then, body(kIf));
    branches.push_back({test, then});
    const std::string_view end = current().text;
    next();
    more = end == "elif";
    if (end == "else") {
      HUNCH_TRY(const Block otherwise, body_until("endif"));
      branches.push_back({nullptr, otherwise});
    }
  }
  --conditions_;
  stmt.branches = heap_.copy(branches);
  return make(stmt);
}

StmtResult Parser::parse_set() {
  Stmt stmt = begin(StmtKind::Set);
  HUNCH_TRY(stmt.target, assign_target(true, {}));
  if (skip_op("=")) {
    HUNCH_TRY(stmt.expr, tuple(true, false));
    return make(stmt);
  }
  stmt.kind = StmtKind::SetBlock;
  if (is_op("|")) { HUNCH_TRY(stmt.expr, body_filter(stmt.line, false)); }
  HUNCH_TRY(stmt.body, body_until("endset"));
  return make(stmt);
}

Status Parser::signature(Macro& macro) {
  std::vector<uint32_t> params;
  std::vector<std::string_view> names;
  std::vector<const Expr*> defaults;
  HUNCH_OK(expect_op("("));
  while (!is_op(")")) {
    if (!params.empty()) HUNCH_OK(expect_op(","));
    HUNCH_TRY(const std::string_view name, expect_any_name());
    if (skip_op("=")) {
      HUNCH_TRY(defaults.emplace_back(), expression());
    } else if (!defaults.empty()) {
      return fail("a parameter without a default follows one with a default");
    }
    params.push_back(id_of(name));
    names.push_back(name);
  }
  next();
  macro.params = heap_.copy(params);
  macro.param_names = heap_.copy(names);
  macro.defaults = heap_.copy(defaults);
  return {};
}

Result<Block> Parser::macro_body(Macro& macro, std::string_view end) {
  const int loops = std::exchange(loops_, 0);  // break does not leave a macro
  macros_.push_back(&macro);
  HUNCH_TRY(const Block out, body_until(end));
  macros_.pop_back();
  loops_ = loops;
  return out;
}

StmtResult Parser::parse_macro() {
  Stmt stmt = begin(StmtKind::Macro);
  Macro* macro = heap_.make<Macro>();
  HUNCH_TRY(macro->name, expect_any_name());
  stmt.id = id_of(macro->name);
  HUNCH_OK(signature(*macro));
  HUNCH_TRY(macro->body, macro_body(*macro, "endmacro"));
  stmt.macro = macro;
  return make(stmt);
}

StmtResult Parser::parse_call() {
  Stmt stmt = begin(StmtKind::Call);
  Macro* macro = heap_.make<Macro>();
  macro->name = "caller";
  if (is_op("(")) HUNCH_OK(signature(*macro));
  HUNCH_TRY(stmt.expr, expression());
  if (stmt.expr->kind != ExprKind::Call) return fail("expected a call");
  HUNCH_TRY(macro->body, macro_body(*macro, "endcall"));
  stmt.macro = macro;
  return make(stmt);
}

StmtResult Parser::parse_filter_block() {
  Stmt stmt = begin(StmtKind::Filter);
  HUNCH_TRY(stmt.expr, body_filter(stmt.line, true));
  HUNCH_TRY(stmt.body, body_until("endfilter"));
  return make(stmt);
}

ExprResult Parser::body_filter(int line, bool inline_start) {
  HUNCH_TRY(const Expr* input, make(ExprKind::Name, line, {}, {.id = kBodyName, .text = kKnownNames[kBodyName]}));
  return filter(input, inline_start);
}

StmtResult Parser::parse_with() {
  Stmt stmt = begin(StmtKind::With);
  std::vector<Binding> bindings;
  while (current().kind != BlockEnd) {
    if (!bindings.empty()) HUNCH_OK(expect_op(","));
    Binding binding;
    HUNCH_TRY(binding.target, one_target(false));
    HUNCH_OK(expect_op("="));
    HUNCH_TRY(binding.value, expression());
    bindings.push_back(binding);
  }
  stmt.bindings = heap_.copy(bindings);
  HUNCH_TRY(stmt.body, body_until("endwith"));
  return make(stmt);
}

Target Parser::name_target(std::string_view name) { return {.kind = Target::Kind::Name, .id = id_of(name), .text = name}; }

Result<Target> Parser::one_target(bool with_namespace) {
  const Deeper deeper(depth_);
  if (depth_ > kMaxDepth) return too_deep();
  if (skip_op("(")) {
    HUNCH_TRY(const Target inner, assign_target(false, {}));
    HUNCH_OK(expect_op(")"));
    return inner;
  }
  HUNCH_TRY(const std::string_view name, expect_any_name());
  for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"})
    if (name == constant) return fail(fmt::format("cannot assign to '{}'", name));
  Target target = name_target(name);
  if (with_namespace && skip_op(".")) {
    target.kind = Target::Kind::Attribute;
    HUNCH_TRY(target.attribute, expect_any_name());
  }
  return target;
}

Result<Target> Parser::assign_target(bool with_namespace, std::string_view end) {
  HUNCH_TRY(const Target first, one_target(with_namespace));
  if (!is_op(",")) return first;
  std::vector<Target> parts = {first};
  while (skip_op(",")) {
    if (current().kind != Name && !is_op("(")) break;
    if (!end.empty() && is_name(end)) break;
    HUNCH_TRY(parts.emplace_back(), one_target(with_namespace));
  }
  return Target{.kind = Target::Kind::Tuple, .parts = heap_.copy(parts)};
}

Result<Program> parse(std::string_view source) {
  Program program{.heap = std::make_unique<Heap>(SIZE_MAX)};
  HUNCH_TRY(std::vector<Token> tokens, tokenize(source, *program.heap));
  Parser parser(std::move(tokens), *program.heap);
  HUNCH_TRY(program.body, parser.run());
  program.names = parser.names();
  return program;
}

}
