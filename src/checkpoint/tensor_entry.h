// TensorEntry: what both file formats say of a tensor, checked against the file but not yet against the architecture.
#pragma once

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"

namespace hunch {

using FileBytes = std::span<const std::byte>;  // of a file or a part of it

// Tables of whole numbers (a drafter's vocabulary map), which no kernel reads; None: a tensor of weights.
enum class IntegerType : uint8_t { None, Bool, U8, I8, I32, I64 };

inline int64_t elements_of(const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (const int64_t extent : shape) elements *= extent;
  return elements;
}

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

// An entry's data. Kernels load whole elements: what its file does not align (old safetensors, GGUF with a small alignment) is
// copied to `copies`.
inline const std::byte* aligned_data(
    const TensorEntry& entry, FileBytes file, std::vector<std::unique_ptr<std::byte[]>>& copies) {
  const bool bytes = entry.integer != IntegerType::None || entry.dtype == DType::F8_E4M3 || entry.dtype == DType::MXFP4;
  const std::byte* data = file.data() + entry.offset;
  if (reinterpret_cast<uintptr_t>(data) % (bytes ? 1 : entry.dtype == DType::F32 ? 4 : 2) == 0) return data;
  copies.push_back(std::make_unique<std::byte[]>(entry.bytes));
  std::memcpy(copies.back().get(), data, entry.bytes);
  return copies.back().get();
}

inline bool mul_overflows(uint64_t a, uint64_t b, uint64_t* out) { return __builtin_mul_overflow(a, b, out); }
inline bool add_overflows(uint64_t a, uint64_t b, uint64_t* out) { return __builtin_add_overflow(a, b, out); }

}
