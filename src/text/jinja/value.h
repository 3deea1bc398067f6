// Value: what an expression of a template can be, with Python's rules for truth, equality, order, hashing and printing.
// Values are copied freely; what they point at lies in a Heap. Used by the interpreter, the filters and the methods.
#pragma once

#include "base/result.h"
#include "text/jinja/text.h"

namespace hunch::jinja {

inline constexpr int kMaxDepth = 128;  // of brackets, blocks, nested values and macro calls
// Values within a value, each as often as it stands there: walks over a value stay short however its parts are shared.
inline constexpr int64_t kMaxWeight = 4'000'000;

struct Sequence;
struct Dict;
struct Namespace;
struct Callable;
struct Loop;
struct Joiner;

enum class Kind : uint8_t { Undefined, None, Bool, Int, Float, String, Sequence, Dict, Namespace, Callable, Loop, Joiner };

struct Value {
  Kind kind = Kind::Undefined;
  union {
    const Text* hint = nullptr;  // of an Undefined: what using it says; null: "value"
    bool boolean;
    int64_t integer;
    double real;
    const Text* text;
    const Sequence* sequence;
    const Dict* dict;
    Namespace* space;
    const Callable* callable;
    const Loop* loop;
    Joiner* joiner;
  };

  static Value none() { return {.kind = Kind::None}; }
  static Value of(bool b) { return {.kind = Kind::Bool, .boolean = b}; }
  static Value of(int64_t i) { return {.kind = Kind::Int, .integer = i}; }
  static Value of(double d) { return {.kind = Kind::Float, .real = d}; }
  static Value of(const Text* t) { return {.kind = Kind::String, .text = t}; }
  static Value of(const Sequence* s) { return {.kind = Kind::Sequence, .sequence = s}; }
  static Value of(const Dict* d) { return {.kind = Kind::Dict, .dict = d}; }
  static Value of(const Callable* c) { return {.kind = Kind::Callable, .callable = c}; }
  bool is(Kind k) const { return kind == k; }
  bool is_number() const { return kind == Kind::Int || kind == Kind::Float || kind == Kind::Bool; }
  bool is_int() const { return kind == Kind::Int || kind == Kind::Bool; }
  int64_t as_int() const { return kind == Kind::Bool ? int64_t(boolean) : integer; }
  double as_real() const { return kind == Kind::Float ? real : double(as_int()); }
  std::string_view bytes() const { return text->bytes; }  // of a String
};

// What Python has many types for. A Generator is used up by the first walk over it.
enum class SequenceKind : uint8_t { List, Tuple, Range, Keys, Values, Items, Generator };
using enum SequenceKind;
struct Sequence {
  SequenceKind kind = List;
  std::span<const Value> items;
  int depth = 1;
  int64_t weight = 1;
  int64_t start = 0, stop = 0, step = 1;  // of a Range, for printing
  mutable bool used = false;              // of a Generator
  bool indexable() const { return kind <= Range; }
};

struct Dict {
  using Entry = std::pair<Value, Value>;
  std::span<const Entry> entries;   // in insertion order, keys differ
  std::span<const uint32_t> slots;  // open addressing, entry + 1; empty for small ones
  int depth = 1;
  int64_t weight = 1;
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
};

// Collects entries as Python's dict does: a key that is there keeps its place and gets the new value.
class DictBuilder {
 public:
  explicit DictBuilder(Heap& heap) : heap_(heap) {}
  Status set(const Value& key, const Value& value);  // error: the key cannot be hashed
  size_t size() const { return entries_.size(); }
  Result<Value> finish();

 private:
  void grow();
  Heap& heap_;
  std::vector<Dict::Entry> entries_;
  std::vector<uint32_t> slots_;
};

Value make_text(Heap& heap, std::string_view bytes, bool trusted);  // copies
Value make_text(Heap& heap, const Text& text);
Value make_undefined(Heap& heap, std::string_view hint);
Result<Value> make_sequence(Heap& heap, const std::vector<Value>& items, SequenceKind kind = List);

std::string_view type_name(const Value& value);  // "str", "NoneType", ...
bool truth(const Value& value);
bool equal(const Value& a, const Value& b);
Result<bool> less(const Value& a, const Value& b);
Result<size_t> hash_of(const Value& value);

// str() and repr(); strings keep where they come from, all else counts as the request's.
Status append_str(const Value& value, TextBuilder& out);
Status append_repr(const Value& value, TextBuilder& out);
std::string python_float(double value);

}
