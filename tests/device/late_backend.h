// What tests ask of backend `late` (late_backend.cpp) besides its ops.
#pragma once

#include "backend/backend.h"

namespace hunch::test {

// The synchronize() after `after_waits` more of them fails, and so does every later one; ops are lost with it. `late`: made as
// backend `late`.
void lose_late_device(Backend& late, int64_t after_waits);

}
