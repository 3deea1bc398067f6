// Random caches and rows for tests and measurements of nsa.h.
#pragma once

#include <random>

#include "backend/cuda/device_test.h"
#include "backend/cuda/nsa.h"
#include "base/half.h"

namespace hunch::test {

inline const NsaShape kUsualNsa{.variant = "std",
    .cmp_len = 32,
    .cmp_stride = 16,
    .sel_block = 64,
    .sel_count = 16,
    .init_blocks = 1,
    .local_blocks = 2,
    .window = 512};

// A cache of one layer: [kv_head][page][entry][K | V] in bf16, pages in an order of their own.
struct NsaStore {
  NsaStore(int kv_heads, int head_dim, int64_t entries, uint32_t seed) : dim(head_dim) {
    const int64_t num_pages = (entries + kPageLen - 1) / kPageLen + 1;
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 1);
    for (int32_t page = 0; page < num_pages; ++page) pages.push_back(page);
    std::ranges::shuffle(pages, random);
    values.resize(kv_heads * num_pages * kPageLen * 2 * dim);
    std::vector<uint16_t> some(1 << 16);  // enough of them, in another order each time
    for (uint16_t& x : some) x = f32_to_bf16(normal(random));
    size_t at = 0;
    for (uint16_t& x : values) {
      if (at % some.size() == 0) at = random() | 1;
      x = some[at++ % some.size()];
    }
    head_values = num_pages * kPageLen * 2 * dim;
    for (int head = 0; head < kv_heads; ++head)  // what is not stored is NaN
      for (int64_t at = entries; at < num_pages * kPageLen; ++at) std::fill_n(entry(head, at, 0), 2 * dim, uint16_t(0xffff));
    plane.head_dim = dim, plane.kv_heads = kv_heads;
    plane.chunk_bytes = int64_t(kPageLen) * 2 * dim * 2, plane.head_bytes = head_values * 2;
  }
  void show() {  // to the device
    memory = DeviceArray<uint16_t>(values);
    plane.keys = reinterpret_cast<std::byte*>(memory.data());
  }
  uint16_t* entry(int kv_head, int64_t at, int part) {
    return &values[kv_head * head_values + (pages[at / kPageLen] * kPageLen + at % kPageLen) * 2 * dim + part * dim];
  }
  View<const int32_t, 1> table() const { return view(pages); }
  int dim;
  int64_t head_values;
  std::vector<int32_t> pages;
  std::vector<uint16_t> values;
  KvPlane plane;
  DeviceArray<uint16_t> memory;
};

// What rows ask and get.
struct NsaQuestion {
  int heads, dim, kv_heads;
  std::vector<float> q, gates;  // [row][head][dim], [row][3 * heads]
  std::vector<int32_t> positions, parents, owned;
  std::vector<uint16_t> owned_rows;  // [kv_head][row][K | V]
  std::vector<int32_t> chosen;       // given
};

}
