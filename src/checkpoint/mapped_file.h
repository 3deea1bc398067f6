// MappedFile: a whole regular file mapped read-only; weights are read in place. Used by Checkpoint::open.
#pragma once

#include <cstddef>
#include <span>

#include "base/result.h"

namespace hunch {

class MappedFile {
 public:
  // Errors: missing, no permission, a directory, not a regular file (never blocks on a FIFO or device), empty.
  static Result<MappedFile> open(const std::string& path);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }  // page-aligned, valid as long as this object

 private:
  explicit MappedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

// The whole text of a small file (a configuration); refuses more than `most` bytes.
Result<std::string> read_text_file(const std::string& path, size_t most);

}
