// GgufWriter: a GGUF v3 file, written beside its destination and renamed into place when complete, so that nobody sees half of
// one. Order of use: add keys and tensors, begin, append all data, finish.
#pragma once

#include "checkpoint/gguf.h"

namespace hunch {

class GgufWriter {
 public:
  GgufWriter() = default;
  GgufWriter(const GgufWriter&) = delete;
  GgufWriter& operator=(const GgufWriter&) = delete;
  ~GgufWriter();  // an unfinished file is removed

  void add_text(std::string_view key, std::string_view value);
  void add_u32(std::string_view key, uint32_t value);
  void add_i32(std::string_view key, int32_t value);
  void add_f32(std::string_view key, float value);
  void add_bool(std::string_view key, bool value);
  void add_texts(std::string_view key, const std::vector<std::string>& values);
  void add_i32s(std::string_view key, const std::vector<int32_t>& values);
  void add_bools(std::string_view key, const std::vector<uint8_t>& values);
  void add_value(std::string_view key, const GgufValue& value);  // as another file holds it

  // `shape`: slowest axis first. Data follow in this order.
  void add_tensor(std::string name, DType dtype, std::vector<int64_t> shape);
  void add_integers(std::string name, IntegerType type, std::vector<int64_t> shape);  // I8, I32 or I64

  Status begin(const std::string& path);
  Status append(FileBytes data);  // any cut of the tensors' bytes; padding is added between tensors
  Status finish();
  uint64_t file_bytes() const { return file_bytes_; }

  // The whole file in memory, for tests; `data`: the tensors' bytes without padding.
  std::vector<std::byte> to_bytes(FileBytes data);

 private:
  void key(std::string_view key, GgufType type);
  void place(TensorEntry entry);
  std::vector<std::byte> header();
  Status write(FileBytes data);
  Error system_error(const char* what, int code) const;

  std::vector<std::byte> pairs_;
  uint64_t num_pairs_ = 0, file_bytes_ = 0;
  std::vector<TensorEntry> tensors_;
  std::string path_, temporary_;
  int fd_ = -1;
  size_t tensor_ = 0;         // being appended
  uint64_t tensor_done_ = 0;  // bytes of it
};

}
