// The kernels for any machine: baseline code, compiler vectors. See isa_bodies.h.
#include "backend/cpu/isa_headers.h"

#define HUNCH_ISA portable
#define HUNCH_LEVEL 0
#include "backend/cpu/isa_bodies.h"

namespace hunch {

const KernelTable& kernels_portable() {
  static const KernelTable table = portable::make_kernels("portable");
  return table;
}

}  // namespace hunch
