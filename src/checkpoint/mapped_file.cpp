// mmap with the errors that a wrong path causes, told apart.
#include "checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/failure.h"

namespace hunch {
namespace {

Error system_error(const char* what, const std::string& path, int code) {
  return {fmt::format("{}: {}: {}", what, path, std::strerror(code))};
}

}

Result<MappedFile> MappedFile::open(const std::string& path) {
  if (path.find('\0') != path.npos) return Error{"a path may not contain a NUL byte"};
  // O_NONBLOCK: a FIFO without a writer must give an error, not a hang.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return system_error("cannot open the file", path, errno);
  struct stat info;
  if (::fstat(fd, &info) != 0) {
    const int code = errno;
    ::close(fd);
    return system_error("cannot read the file", path, code);
  }
  const char* refusal = S_ISDIR(info.st_mode) ? "is a folder, not a file"
      : !S_ISREG(info.st_mode)                ? "is not a regular file (a pipe, socket or device)"
      : info.st_size == 0                     ? "the file is empty"
                                              : nullptr;
  if (refusal) {
    ::close(fd);
    return failure("{}: {}", path, refusal);
  }
  const size_t size = info.st_size;
  void* at = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  const int code = errno;
  ::close(fd);  // the mapping keeps the file
  if (at == MAP_FAILED) return system_error("cannot map the file into memory", path, code);
  return MappedFile({static_cast<const std::byte*>(at), size});
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

Result<std::string> read_text_file(const std::string& path, size_t most) {
  HUNCH_TRY(const MappedFile file, MappedFile::open(path));
  const auto bytes = file.bytes();
  if (bytes.size() > most) return failure("{}: too large: {} bytes, at most {}", path, bytes.size(), most);
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}
