// Program: a compiled template as a tree. Made by the parser, walked by the interpreter; all nodes lie in the program's heap.
#pragma once

#include <memory>

#include "text/jinja/value.h"

namespace hunch::jinja {

// Counts how deep the parser or the interpreter is in itself; every recursion passes through one of these.
class Deeper {
 public:
  explicit Deeper(int& depth) : depth_(depth) { ++depth_; }
  ~Deeper() { --depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  int& depth_;
};

class Interpreter;
struct Arguments;
// A filter or test; `input` is what stands before the bar or the "is".
using Function = Result<Value> (*)(Interpreter&, const Value& input, const Arguments&);

struct Expr;
struct Keyword {
  std::string_view name;
  const Expr* value;
};
struct CallArgs {
  std::span<const Expr* const> positional;
  std::span<const Keyword> named;
  const Expr* list = nullptr;  // *list
  const Expr* dict = nullptr;  // **dict
};

enum class ExprKind : uint8_t {
  Literal,
  Name,
  List,
  Tuple,
  Dict,
  Attribute,
  Item,
  Slice,
  Call,
  Filter,
  Test,
  Not,
  Negate,
  Plus,
  Arith,
  Concat,
  Compare,
  And,
  Or,
  Ternary
};
enum class Operator : uint8_t { Add, Sub, Mul, Div, FloorDiv, Mod, Pow, Eq, Ne, Lt, Le, Gt, Ge, In, NotIn };
struct Operand {
  Operator op;
  const Expr* right;
};

struct Expr {
  ExprKind kind;
  int line = 0;
  int height = 1;                      // of the tree below
  uint32_t id = 0;                     // of a Name
  std::string_view text;               // name of a Name, Attribute, Filter or Test
  Value value;                         // of a Literal
  std::span<const Expr* const> parts;  // operands in order; a Slice's may be null; of a Ternary: test, then, else or null
  std::span<const Operand> chain;      // of Arith and Compare, behind parts[0]
  const CallArgs* args = nullptr;      // of Call, Filter, Test
  Function function = nullptr;         // of Filter and Test; null: not supported
};

struct Target {
  enum class Kind : uint8_t { Name, Attribute, Tuple } kind = Kind::Name;
  uint32_t id = 0;  // of the name, or of the namespace
  std::string_view text;
  std::string_view attribute;
  std::span<const Target> parts;
};

struct Stmt;
using Block = std::span<const Stmt* const>;

struct Macro {
  std::string_view name;
  std::span<const uint32_t> params;
  std::span<const std::string_view> param_names;
  std::span<const Expr* const> defaults;  // of the last parameters
  Block body;
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
};

struct Branch {
  const Expr* test;  // null: else
  Block body;
};
struct Binding {
  Target target;
  const Expr* value;
};

enum class StmtKind : uint8_t { Output, For, If, Set, SetBlock, Macro, Call, Filter, With, Scope, Break, Continue };

struct Stmt {
  StmtKind kind;
  int line = 0;
  const Expr* expr =
      nullptr;  // what to print, walk over, assign or call; filters of SetBlock (or null) and Filter, over kBodyName
  const Expr* test = nullptr;  // of a For
  Target target;
  uint32_t id = 0;  // of a Macro's name
  bool recursive = false;
  Block body, otherwise;
  std::span<const Branch> branches;
  std::span<const Binding> bindings;
  const Macro* macro = nullptr;  // of Macro and Call
};

// Ids of names that the interpreter itself knows.
enum KnownName : uint32_t { kLoopName, kCallerName, kVarargsName, kKwargsName, kBodyName };
inline constexpr std::string_view kKnownNames[] = {"loop", "caller", "varargs", "kwargs", "(body)"};

struct Program {
  std::unique_ptr<Heap> heap;
  Block body;
  std::vector<std::string_view> names;  // by id
};

// `source` is UTF-8 and at most kMaxTemplateBytes. Errors: "chat template line 3: ...".
Result<Program> parse(std::string_view source);

// The tables of functions; null: there is none of this name.
Function find_filter(std::string_view name);
Function find_test(std::string_view name);

}
