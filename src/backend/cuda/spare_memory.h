// Memory for what requests bring along: the device's while it has some to spare, else pinned memory of the host, which kernels
// reach too, only slower. A request that comes when the device is full must not end the program.
#pragma once

#include "tensor/buffer.h"

namespace hunch {

bool has_spare_memory(size_t bytes);  // of the device
Buffer spare_memory(size_t bytes);    // empty: there is neither
// Pinned memory alone. Requests come and go with small pieces of it, and for what is given back the driver waits for the device:
// they are kept for the next.
Buffer pinned_memory(size_t bytes);

}
