// Memory and registration of the reference backend; the ops stand in the files beside it.

#include "backend/reference/reference_backend.h"

#include <cstdlib>

namespace hunch {

Buffer ReferenceBackend::allocate(size_t bytes) {
  const size_t rounded = (bytes + 63) / 64 * 64;
  return Buffer(std::aligned_alloc(64, rounded), rounded, [](void* data, size_t) { std::free(data); });
}

namespace {

Result<std::unique_ptr<Backend>> make_reference(const Backend::Setup&) {
  return std::unique_ptr<Backend>(std::make_unique<ReferenceBackend>());
}

const Register<Backend> reference{"reference", "every op as its textbook loop, one thread", make_reference};

}  // namespace

}  // namespace hunch
