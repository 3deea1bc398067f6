// Arguments of the kernel that copies single entries between KV stores. Filled by gather.cpp, read by gather_body.h.
#pragma once

#include "backend/cpu/attention_kernels.h"

namespace hunch {

// Entries [first, last) of `to`, whose source is index[i] for i < count and tail_first + (i - count) from there on. `first` is a
// multiple of kPageLen, and so is `last` but at the list's end: no two items write one page.
struct GatherItem {
  KeyPlane from, to;
  const int32_t* index = nullptr;
  int64_t count = 0, tail_first = 0;
  int64_t first = 0, last = 0;
};

struct GatherKernels {
  // Indexed by DType: F32, F16, BF16, I16, Q8_0, FP8. Returns the bytes of K tiles and V rows read.
  size_t (*gather[kNumDTypes])(const GatherItem&) = {};
  size_t (*gather_coded[kNumDTypes])(const GatherItem&) = {};  // to a Q8_0 store, by the DType of the source
};

}
