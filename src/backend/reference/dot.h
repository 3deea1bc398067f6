// The inner product that defines the reference backend's products.
#pragma once

#include <cstdint>

namespace hunch {

// Sixteen partial sums: more accurate than one, and the compiler may keep them in vectors without reordering anything.
inline float dot(const float* a, const float* b, int64_t n) {
  float partial[16] = {};
  int64_t i = 0;
  for (; i + 16 <= n; i += 16)
    for (int j = 0; j < 16; ++j) partial[j] += a[i + j] * b[i + j];
  for (int j = 0; i + j < n; ++j) partial[j] += a[i + j] * b[i + j];
  double sum = 0;
  for (float p : partial) sum += double(p);
  return float(sum);
}

}
