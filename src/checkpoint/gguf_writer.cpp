// GGUF v3 output: the layout is the mirror of gguf.cpp.
#include "checkpoint/gguf_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace hunch {
namespace {

using enum GgufType;

constexpr uint64_t kAlignment = 32;  // GGUF's default, so no general.alignment is written

uint64_t padding_after(uint64_t at) { return (kAlignment - at % kAlignment) % kAlignment; }

template <class T>
void put(std::vector<std::byte>& out, T value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof(T));
}

void put_text(std::vector<std::byte>& out, std::string_view text) {
  put(out, uint64_t(text.size()));
  const auto bytes = std::as_bytes(std::span(text));
  out.insert(out.end(), bytes.begin(), bytes.end());
}

}

GgufWriter::~GgufWriter() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void GgufWriter::key(std::string_view key, GgufType type) {
  put_text(pairs_, key);
  put(pairs_, uint32_t(type));
  ++num_pairs_;
}

void GgufWriter::add_text(std::string_view name, std::string_view value) {
  key(name, String);
  put_text(pairs_, value);
}

void GgufWriter::add_u32(std::string_view name, uint32_t value) { key(name, U32), put(pairs_, value); }
void GgufWriter::add_i32(std::string_view name, int32_t value) { key(name, I32), put(pairs_, value); }
void GgufWriter::add_f32(std::string_view name, float value) { key(name, F32), put(pairs_, value); }
void GgufWriter::add_bool(std::string_view name, bool value) { key(name, Bool), put(pairs_, uint8_t(value)); }

void GgufWriter::add_texts(std::string_view name, const std::vector<std::string>& values) {
  key(name, Array);
  put(pairs_, uint32_t(String));
  put(pairs_, uint64_t(values.size()));
  for (const std::string& value : values) put_text(pairs_, value);
}

void GgufWriter::add_i32s(std::string_view name, const std::vector<int32_t>& values) {
  key(name, Array);
  put(pairs_, uint32_t(I32));
  put(pairs_, uint64_t(values.size()));
  for (const int32_t value : values) put(pairs_, value);
}

void GgufWriter::add_bools(std::string_view name, const std::vector<uint8_t>& values) {
  key(name, Array);
  put(pairs_, uint32_t(Bool));
  put(pairs_, uint64_t(values.size()));
  for (const uint8_t value : values) put(pairs_, uint8_t(value != 0));
}

void GgufWriter::add_value(std::string_view name, const GgufValue& value) {
  key(name, value.type);
  if (value.type == Array) {
    put(pairs_, uint32_t(value.element));
    put(pairs_, value.count);
  } else if (value.type == String) {
    put(pairs_, uint64_t(value.bytes.size()));
  }
  pairs_.insert(pairs_.end(), value.bytes.begin(), value.bytes.end());
}

void GgufWriter::add_tensor(std::string name, DType dtype, std::vector<int64_t> shape) {
  const size_t bytes = dtype_bytes(dtype, elements_of(shape));
  place({.name = std::move(name), .dtype = dtype, .shape = std::move(shape), .bytes = bytes});
}

void GgufWriter::add_integers(std::string name, IntegerType type, std::vector<int64_t> shape) {
  HUNCH_CHECK(ggml_type_of(type) != UINT32_MAX);
  const size_t bytes = integer_bytes(type) * elements_of(shape);
  place({.name = std::move(name), .shape = std::move(shape), .bytes = bytes, .integer = type});
}

void GgufWriter::place(TensorEntry entry) {
  if (!tensors_.empty()) {
    const uint64_t end = tensors_.back().offset + tensors_.back().bytes;
    entry.offset = end + padding_after(end);
  }
  tensors_.push_back(std::move(entry));
}

std::vector<std::byte> GgufWriter::header() {
  std::vector<std::byte> out;
  out.reserve(pairs_.size() + 128 * tensors_.size() + 64);
  for (const char c : {'G', 'G', 'U', 'F'}) out.push_back(std::byte(c));
  put(out, uint32_t(3));
  put(out, uint64_t(tensors_.size()));
  put(out, num_pairs_);
  out.insert(out.end(), pairs_.begin(), pairs_.end());
  for (const TensorEntry& entry : tensors_) {
    put_text(out, entry.name);
    put(out, uint32_t(entry.shape.size()));
    for (size_t d = entry.shape.size(); d-- > 0;) put(out, uint64_t(entry.shape[d]));  // fastest axis first
    put(out, entry.integer == IntegerType::None ? ggml_type_of(entry.dtype) : ggml_type_of(entry.integer));
    put(out, entry.offset);
  }
  out.resize(out.size() + padding_after(out.size()));
  return out;
}

std::vector<std::byte> GgufWriter::to_bytes(FileBytes data) {
  std::vector<std::byte> out = header();
  for (const TensorEntry& entry : tensors_) {
    out.insert(out.end(), data.begin(), data.begin() + entry.bytes);
    out.resize(out.size() + padding_after(entry.bytes));
    data = data.subspan(entry.bytes);
  }
  return out;
}

Error GgufWriter::system_error(const char* what, int code) const {
  return {fmt::format("{}: {}: {}", what, path_, std::strerror(code))};
}

Status GgufWriter::begin(const std::string& path) {
  path_ = path;
  const auto temporary = fmt::format("{}.partial-{}", path, ::getpid());
  fd_ = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd_ < 0) return system_error("cannot create a file beside", errno);
  temporary_ = temporary;
  return write(header());
}

Status GgufWriter::write(FileBytes data) {
  file_bytes_ += data.size();
  while (!data.empty()) {
    const ssize_t done = ::write(fd_, data.data(), std::min<size_t>(data.size(), 1 << 30));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return system_error("cannot write", errno);
    data = data.subspan(done);
  }
  return {};
}

Status GgufWriter::append(FileBytes data) {
  static constexpr std::byte kZeros[kAlignment]{};
  while (!data.empty()) {
    HUNCH_CHECK(tensor_ < tensors_.size());
    const uint64_t bytes = tensors_[tensor_].bytes;
    const size_t part = std::min<uint64_t>(bytes - tensor_done_, data.size());
    HUNCH_OK(write(data.first(part)));
    data = data.subspan(part);
    tensor_done_ += part;
    if (tensor_done_ == bytes) {
      HUNCH_OK(write(std::span(kZeros, padding_after(bytes))));
      ++tensor_, tensor_done_ = 0;
    }
  }
  return {};
}

Status GgufWriter::finish() {
  HUNCH_CHECK(tensor_ == tensors_.size());
  if (::fsync(fd_) != 0) return system_error("cannot write", errno);
  const int closed = ::close(fd_);
  fd_ = -1;
  if (closed != 0) return system_error("cannot write", errno);
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) return system_error("cannot rename the finished file to", errno);
  temporary_.clear();
  return {};
}

}
