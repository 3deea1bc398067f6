// TensorEntry: what both file formats say of a tensor, checked against the file but not yet against the architecture.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace hunch {

struct TensorEntry {
  std::string name;  // as the file spells it
  DType dtype = DType::F32;
  std::vector<int64_t> shape;      // slowest axis first
  uint64_t offset = 0, bytes = 0;  // from the start of the file
};

inline bool mul_overflows(uint64_t a, uint64_t b, uint64_t* out) { return __builtin_mul_overflow(a, b, out); }
inline bool add_overflows(uint64_t a, uint64_t b, uint64_t* out) { return __builtin_add_overflow(a, b, out); }

}  // namespace hunch
