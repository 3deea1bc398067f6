// Arguments of the kernel that bounds the keys of pages. Filled by bounds.cpp, read by bounds_body.h; contract in ops/kv.h.
#pragma once

#include "backend/cpu/attention_kernels.h"

namespace hunch {

// Pages [first_page, last_page) of `from` become the keys of the same entries of `to`, whose head_dim is twice as wide, or
// their means.
struct BoundsItem {
  KeyPlane from, to;
  int page_len = 16;
  int64_t first_page = 0, last_page = 0;
  bool means = false;
};

struct BoundsKernels {
  void (*bound[3])(const BoundsItem&) = {};  // indexed by DType: F32, F16, BF16
};

}
