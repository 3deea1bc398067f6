// GGUF (versions 2 and 3, little-endian): typed key-value metadata, tensor descriptions, aligned data. A GgufFile is a checked
// index over borrowed bytes: counts are bounded by the file before anything is allocated, all arithmetic is checked, duplicate
// keys and names, overlaps and gaps are refused. Used by Checkpoint::open.
#pragma once

#include <unordered_map>

#include "base/failure.h"
#include "checkpoint/quote.h"
#include "checkpoint/tensor_entry.h"

namespace hunch {

enum class GgufType : uint32_t { U8, I8, U16, I16, U32, I32, F32, Bool, String, Array, U64, I64, F64 };
std::string_view gguf_type_name(GgufType type);

// A metadata value, left where it lies in the file.
struct GgufValue {
  GgufType type = GgufType::U8;
  GgufType element = GgufType::U8;  // of an array
  uint64_t count = 1;               // of an array
  FileBytes bytes;                  // a scalar's or array's little-endian elements; a string's bytes without its length
};

// ggml's number of a tensor type; nullopt for types that are not read.
std::optional<DType> dtype_of_ggml(uint32_t type);
inline constexpr uint32_t kNoGgmlType = UINT32_MAX;  // of encodings that GGUF does not have: F8_E4M3
uint32_t ggml_type_of(DType dtype);
std::optional<IntegerType> integer_type_of_ggml(uint32_t type);  // I8, I32, I64
uint32_t ggml_type_of(IntegerType type);                         // of those three

class GgufFile {
 public:
  // `file` must outlive the result; `file_name` stands in messages.
  static Result<GgufFile> parse(FileBytes file, std::string_view file_name, IntegerTensors integers = IntegerTensors::Refuse);

  const std::vector<TensorEntry>& tensors() const { return tensors_; }  // in file order
  const std::vector<std::string_view>& keys() const { return keys_; }   // in file order
  const std::string& file_name() const { return file_name_; }
  FileBytes bytes() const { return file_; }
  const GgufValue* find(std::string_view key) const;

  // Typed accessors: nullopt where the key is absent, an error naming key and types where it holds something else.
  Result<std::optional<int64_t>> integer(std::string_view key) const;  // any integer type whose value fits
  Result<std::optional<double>> number(std::string_view key) const;    // F32, F64
  Result<std::optional<bool>> boolean(std::string_view key) const;
  Result<std::optional<std::string_view>> text(std::string_view key) const;
  Result<std::vector<std::string>> texts(std::string_view key) const;  // empty where absent
  Result<std::vector<int32_t>> integers(std::string_view key) const;   // arrays of I32 or U32; empty where absent
  Result<std::vector<uint8_t>> booleans(std::string_view key) const;   // empty where absent
  // "file: key tokenizer.ggml.model: what"
  template <class... T>
  Error wrong(std::string_view key, fmt::format_string<T...> what, T&&... values) const {
    return failure("{}: key {}: {}", file_name_, quote(key), fmt::format(what, std::forward<T>(values)...));
  }

 private:
  FileBytes file_;
  std::string file_name_;
  std::vector<std::string_view> keys_;
  std::unordered_map<std::string_view, GgufValue> values_;
  std::vector<TensorEntry> tensors_;
};

}
