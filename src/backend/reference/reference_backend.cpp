// Memory and registration of the reference backend; the ops stand in the files beside it.

#include "backend/reference/reference_backend.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace hunch {

Buffer ReferenceBackend::allocate(size_t bytes, Memory) {
  const size_t rounded = (bytes + 63) / 64 * 64;
  return Buffer(std::aligned_alloc(64, rounded), rounded, [](void* data, size_t) { std::free(data); });
}

Buffer ReferenceBackend::constant(std::span<const float> values) {
  Buffer buffer = allocate(values.size_bytes());
  std::copy(values.begin(), values.end(), static_cast<float*>(buffer.data()));
  return buffer;
}

size_t ReferenceBackend::memory_bytes() const { return size_t(sysconf(_SC_PHYS_PAGES)) * size_t(sysconf(_SC_PAGE_SIZE)); }

void ReferenceBackend::copy_rows(const CopyRowsArgs& args) {
  HUNCH_CHECK(args.from.extent[1] == args.to.extent[1] && (args.from.extent[0] == args.to.extent[0] || args.from.extent[0] == 1));
  for (int64_t row = 0; row < args.to.extent[0]; ++row)
    std::copy_n(args.from[args.from.extent[0] == 1 ? 0 : row].data, args.to.extent[1], args.to[row].data);
}

void ReferenceBackend::copy_tokens(const CopyTokensArgs& args) {
  HUNCH_CHECK(args.from.extent[0] == args.to.extent[0]);
  std::copy_n(args.from.data, args.to.extent[0], args.to.data);
}

namespace {

Result<std::unique_ptr<Backend>> make_reference(const Backend::Setup&) {
  return std::unique_ptr<Backend>(std::make_unique<ReferenceBackend>());
}

const Register<Backend> reference{"reference", "every op as its textbook loop, one thread", make_reference};

}  // namespace

}  // namespace hunch
