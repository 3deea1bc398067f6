// Result<T>: a value or an Error that a user can act on. For everything that input, files or the environment can cause.
// Messages are static text first, values last: "weights.gguf: tensor runs past the end of the file: blk.0.attn_q.weight".
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "hunch/check.h"

namespace hunch {

struct Error {
  enum class Kind { Failure, Usage };  // exit code 1 and 2; HTTP 500/400
  std::string message;
  Kind kind = Kind::Failure;
};

inline Error usage_error(std::string message) { return {std::move(message), Error::Kind::Usage}; }

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : value_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return value_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & {
    HUNCH_CHECK(ok());
    return std::get<0>(value_);
  }
  const T& value() const& {
    HUNCH_CHECK(ok());
    return std::get<0>(value_);
  }
  T value() && {  // by value: `for (x : f().value())` must not dangle
    HUNCH_CHECK(ok());
    return std::get<0>(std::move(value_));
  }
  T& operator*() & { return value(); }
  T operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const Error& error() const {
    HUNCH_CHECK(!ok());
    return std::get<1>(value_);
  }

 private:
  std::variant<T, Error> value_;
};

// Success without a value.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)) {}
  bool ok() const { return !error_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const {
    HUNCH_CHECK(!ok());
    return *error_;
  }

 private:
  std::optional<Error> error_;
};

}

// HUNCH_TRY(declaration, expression): bind the value or return the error to the caller.
//   HUNCH_TRY(auto file, MappedFile::open(path));
#define HUNCH_CONCAT_(a, b) a##b
#define HUNCH_CONCAT(a, b) HUNCH_CONCAT_(a, b)
#define HUNCH_TRY(decl, expr) HUNCH_TRY_(HUNCH_CONCAT(hunch_try_, __LINE__), decl, expr)
#define HUNCH_TRY_(tmp, decl, expr) \
  auto tmp = (expr); \
  if (!tmp.ok()) return tmp.error(); \
  decl = std::move(tmp).value()
// HUNCH_OK(expression): return the error of a Status (or Result) to the caller.
#define HUNCH_OK(expr) \
  do { \
    if (auto hunch_status = (expr); !hunch_status.ok()) return hunch_status.error(); \
  } while (0)
