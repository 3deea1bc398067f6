// Parser of templates, jinja2's grammar rule by rule: statements here, expressions in parser_expressions.cpp. Used by parse().
#pragma once

#include <map>

#include "text/jinja/lexer.h"
#include "text/jinja/program.h"

namespace hunch::jinja {

using ExprResult = Result<const Expr*>;
using StmtResult = Result<const Stmt*>;

class Parser {
 public:
  Parser(std::vector<Token> tokens, Heap& heap);
  Result<Block> run();
  std::vector<std::string_view> names() const { return names_; }

 private:
  using Rule = ExprResult();
  using Tag = StmtResult();

  // --- Tokens.
  const Token& current() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  void next() { at_ = std::min(at_ + 1, tokens_.size() - 1); }
  bool is_op(std::string_view op) const { return current().kind == Sign && current().text == op; }
  bool is_name(std::string_view name) const { return current().kind == Name && current().text == name; }
  bool skip_op(std::string_view op);
  bool skip_name(std::string_view name);
  Status expect_op(std::string_view op);
  Status expect(TokenKind kind, std::string_view what);
  Result<std::string_view> expect_any_name();
  Error unexpected(std::string_view wanted) const;
  Error fail(std::string_view what) const { return at_line(current().line, what); }
  Error too_deep() const;

  // --- Statements. `ends`: names of the tags that end a body; the end tag's name is the current token afterwards.
  Result<Block> body(std::span<const std::string_view> ends);
  Result<Block> body_until(std::string_view end);  // goes behind the name of the end tag
  Tag statement, parse_for, parse_if, parse_set, parse_macro, parse_call, parse_filter_block, parse_with;
  Status signature(Macro& macro);
  Result<Block> macro_body(Macro& macro, std::string_view end);
  Result<Target> assign_target(bool with_namespace, std::string_view end);
  Result<Target> one_target(bool with_namespace);
  Target name_target(std::string_view name);

  // --- Expressions, loosest first.
  ExprResult expression(bool with_ternary = true);
  ExprResult tuple(bool with_ternary, bool parentheses, std::string_view end = {});
  Rule ternary, either, both, negation, comparison, sum, concat, product, power;
  ExprResult factor() { return unary(); }
  ExprResult joined(ExprKind, std::string_view by, Rule Parser::*below);
  ExprResult arithmetic(Rule Parser::*below, std::span<const std::pair<std::string_view, Operator>> ops);
  ExprResult unary(bool with_filter = true);
  Rule primary, string_literal, number, list, dict, subscript_part;
  ExprResult postfix(const Expr* inner);
  ExprResult filters_and_tests(const Expr* inner);
  ExprResult subscript(const Expr* inner);
  ExprResult call(const Expr* callee);
  ExprResult filter(const Expr* inner, bool inline_start);
  ExprResult body_filter(int line, bool inline_start);  // of what a block holds
  ExprResult test(const Expr* inner);
  Result<const CallArgs*> call_args();

  // --- Nodes.
  uint32_t id_of(std::string_view name);
  ExprResult make(Expr expr);  // error: nested too deep
  ExprResult make(ExprKind kind, int line, const std::vector<const Expr*>& parts, Expr rest = {});
  Stmt begin(StmtKind kind);  // the current token is its tag, and is passed
  const Stmt* make(const Stmt& stmt) { return heap_.make<Stmt>(stmt); }
  const Expr* literal(const Value& value);

  std::vector<Token> tokens_;
  Heap& heap_;
  size_t at_ = 0;
  std::vector<std::string_view> names_;
  std::map<std::string_view, uint32_t> ids_;
  int depth_ = 0, loops_ = 0, conditions_ = 0;
  std::vector<Macro*> macros_;  // that are open, innermost last
};

}
