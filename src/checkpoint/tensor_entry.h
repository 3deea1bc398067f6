// TensorEntry: what both file formats say of a tensor, checked against the file but not yet against the architecture.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"

namespace hunch {

// Tables of whole numbers (a drafter's vocabulary map), which no kernel reads; None: a tensor of weights.
enum class IntegerType : uint8_t { None, Bool, U8, I8, I32, I64 };

constexpr size_t integer_bytes(IntegerType type) {
  return type == IntegerType::None ? 0 : type == IntegerType::I64 ? 8 : type == IntegerType::I32 ? 4 : 1;
}

// Whether a parser takes tables of whole numbers or refuses them by name; models have none.
enum class IntegerTensors { Refuse, Read };

struct TensorEntry {
  std::string name;  // as the file spells it
  DType dtype = DType::F32;
  std::vector<int64_t> shape;               // slowest axis first
  uint64_t offset = 0, bytes = 0;           // from the start of the file
  IntegerType integer = IntegerType::None;  // not None: `dtype` says nothing
};

inline bool mul_overflows(uint64_t a, uint64_t b, uint64_t* out) { return __builtin_mul_overflow(a, b, out); }
inline bool add_overflows(uint64_t a, uint64_t b, uint64_t* out) { return __builtin_add_overflow(a, b, out); }

}  // namespace hunch
