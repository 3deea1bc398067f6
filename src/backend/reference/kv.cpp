// KV memory of the reference backend: contract in backend/ops/kv.h. An entry is K then V of one head, rounded to the dtype.

#include "backend/ops/kv.h"

#include <cstring>
#include <new>

#include "backend/reference/reference_backend.h"
#include "base/half.h"

namespace hunch {
namespace {

// Codes, then their scale (ops/kv.h).
template <class Code>
void encode_row(const float* from, int n, float most, std::byte* to) {
  float greatest = 0;
  bool finite = true;
  for (int i = 0; i < n; ++i) finite = finite && std::isfinite(from[i]), greatest = std::max(greatest, std::fabs(from[i]));
  const bool coded = finite && greatest >= kLeastCoded;
  const float inverse = coded ? most / greatest : 0;
  const float scale = coded ? greatest / most : finite ? 0 : NAN;
  for (int i = 0; i < n; ++i) {
    const Code code = finite ? Code(std::nearbyint(from[i] * inverse)) : Code(0);
    std::memcpy(to + i * sizeof code, &code, sizeof code);
  }
  std::memcpy(to + n * sizeof(Code), &scale, sizeof scale);
}

template <class Code>
void decode_row(const std::byte* from, int n, float* to) {
  float scale;
  std::memcpy(&scale, from + n * sizeof(Code), sizeof scale);
  for (int i = 0; i < n; ++i) {
    Code code;
    std::memcpy(&code, from + i * sizeof code, sizeof code);
    to[i] = scale * float(code);
  }
}

// `scale`: of FP8.
void encode(DType dtype, float scale, const float* from, int n, std::byte* to) {
  if (dtype == DType::Q8_0) return encode_row<int8_t>(from, n, float(most_code(dtype)), to);
  if (dtype == DType::I16) return encode_row<int16_t>(from, n, float(most_code(dtype)), to);
  if (dtype == DType::F8_E4M3) {
    for (int i = 0; i < n; ++i) to[i] = std::byte(f32_to_f8(from[i] / scale));
    return;
  }
  if (dtype == DType::F32) {
    std::memcpy(to, from, n * sizeof(float));
    return;
  }
  for (int i = 0; i < n; ++i) {
    const uint16_t bits = dtype == DType::F16 ? f32_to_f16(from[i]) : f32_to_bf16(from[i]);
    std::memcpy(to + 2 * i, &bits, 2);
  }
}

void decode(DType dtype, float scale, const std::byte* from, int n, float* to) {
  if (dtype == DType::Q8_0) return decode_row<int8_t>(from, n, to);
  if (dtype == DType::I16) return decode_row<int16_t>(from, n, to);
  if (dtype == DType::F8_E4M3) {
    for (int i = 0; i < n; ++i) to[i] = scale * f8_to_f32(uint8_t(from[i]));
    return;
  }
  if (dtype == DType::F32) {
    std::memcpy(to, from, n * sizeof(float));
    return;
  }
  for (int i = 0; i < n; ++i) {
    uint16_t bits;
    std::memcpy(&bits, from + 2 * i, 2);
    to[i] = dtype == DType::F16 ? f16_to_f32(bits) : bf16_to_f32(bits);
  }
}

}

ReferenceKvStore::ReferenceKvStore(const KvGeometry& geometry, int64_t pages) {
  HUNCH_CHECK(is_kv_dtype(geometry.dtype));
  dtype = geometry.dtype, layers = geometry.layers, kv_heads = geometry.kv_heads, head_dim = geometry.head_dim;
  num_pages = pages;
  scales.assign(geometry.scales.begin(), geometry.scales.end());
  bytes = size_t(num_pages) * kPageLen * layers * kv_heads * entry_bytes();
  memory_.reset(new (std::nothrow) std::byte[bytes]);
}

const std::byte* ReferenceKvStore::entry(int layer, int kv_head, View<const int32_t, 1> pages, int64_t entry) const {
  const int64_t page = pages(entry / kPageLen);
  HUNCH_CHECK(page >= 0 && page < num_pages);
  const int64_t index = ((int64_t(layer) * kv_heads + kv_head) * num_pages + page) * kPageLen + entry % kPageLen;
  return memory_.get() + size_t(index) * entry_bytes();
}

std::byte* ReferenceKvStore::entry(int layer, int kv_head, View<const int32_t, 1> pages, int64_t e) {
  return const_cast<std::byte*>(static_cast<const ReferenceKvStore*>(this)->entry(layer, kv_head, pages, e));
}

void ReferenceKvStore::poison(View<const int32_t, 1> pages, int64_t first, int64_t last) {
  for (int layer = 0; layer < layers; ++layer)
    for (int head = 0; head < kv_heads; ++head)
      for (int64_t e = first; e < last; ++e)
        std::memset(entry(layer, head, pages, e), 0xff, entry_bytes());  // all ones is a NaN in every type
}

void ReferenceKvStore::read(int layer, int kv_head, View<const int32_t, 1> pages, int64_t e, float* k, float* v) const {
  const std::byte* from = entry(layer, kv_head, pages, e);
  decode(dtype, scale(layer).k, from, head_dim, k);
  decode(dtype, scale(layer).v, from + entry_bytes() / 2, head_dim, v);
}

void ReferenceKvStore::write(int layer, int kv_head, View<const int32_t, 1> pages, int64_t e, const float* k, const float* v) {
  std::byte* to = entry(layer, kv_head, pages, e);
  encode(dtype, scale(layer).k, k, head_dim, to);
  encode(dtype, scale(layer).v, v, head_dim, to + entry_bytes() / 2);
}

size_t ReferenceBackend::kv_page_bytes(const KvGeometry& geometry) const {
  return size_t(2) * kPageLen * geometry.layers * geometry.kv_heads * kv_row_bytes(geometry.dtype, geometry.head_dim);
}

std::unique_ptr<KvStore> ReferenceBackend::make_kv_store(const KvGeometry& geometry, int64_t num_pages) {
  auto store = std::make_unique<ReferenceKvStore>(geometry, num_pages);
  if (!store->allocated()) return nullptr;
  return store;
}

void ReferenceBackend::store_kv(const StoreKvArgs& args) {
  auto& store = static_cast<ReferenceKvStore&>(*args.kv.store);
  for (int64_t r = 0; r < args.k.extent[0]; ++r)
    for (int head = 0; head < store.kv_heads; ++head)
      store.write(args.layer, head, args.kv.pages, args.first_entry + r, &args.k(r, head, 0), &args.v(r, head, 0));
}

void ReferenceBackend::gather_kv(const GatherKvArgs& args) {
  auto& from = static_cast<ReferenceKvStore&>(*args.from.store);
  auto& to = static_cast<ReferenceKvStore&>(*args.to.store);
  HUNCH_CHECK(from.dtype == to.dtype || to.dtype == DType::Q8_0);
  HUNCH_CHECK(from.kv_heads == to.kv_heads && from.head_dim == to.head_dim);
  std::vector<float> k(from.head_dim), v(k.size());
  for (int head = 0; head < from.kv_heads; ++head) {
    int64_t next = 0;
    const auto copy = [&](int64_t entry) {
      if (from.dtype != to.dtype) {
        from.read(args.layer, head, args.from.pages, entry, k.data(), v.data());
        to.write(args.layer, head, args.to.pages, next++, k.data(), v.data());
        return;
      }
      std::memcpy(to.entry(args.layer, head, args.to.pages, next++), from.entry(args.layer, head, args.from.pages, entry),
          from.entry_bytes());
    };
    const int64_t list = args.index.extent[0] == 1 ? 0 : head;
    for (int64_t i = 0; i < args.index.extent[1]; ++i) copy(args.index(list, i));
    for (int64_t e = args.tail_first; e < args.tail_last; ++e) copy(e);
    counters_.gather_bytes += size_t(next) * from.entry_bytes();
  }
}

void ReferenceBackend::move_kv(const MoveKvArgs& args) {
  auto& store = static_cast<ReferenceKvStore&>(*args.kv.store);
  for (int layer = 0; layer < store.layers; ++layer)
    for (int head = 0; head < store.kv_heads; ++head)
      for (size_t i = 0; i < args.from.size(); ++i)
        std::memmove(store.entry(layer, head, args.kv.pages, args.to[i]), store.entry(layer, head, args.kv.pages, args.from[i]),
            store.entry_bytes());
}

void ReferenceBackend::shuffle_kv(const ShuffleKvArgs& args) {
  auto& store = static_cast<ReferenceKvStore&>(*args.kv.store);
  const int64_t count = args.from.extent[0];
  HUNCH_CHECK(count <= kMostShuffled);
  std::vector<std::byte> aside(size_t(count) * store.entry_bytes());
  for (int layer = 0; layer < store.layers; ++layer)
    for (int head = 0; head < store.kv_heads; ++head) {
      int64_t first = args.first_entry;
      for (const int32_t length : args.lengths) {
        for (int64_t i = 0; i < count; ++i) {
          HUNCH_CHECK(args.from(i) >= (i > 0 ? args.from(i - 1) : 0) && args.from(i) < length && count <= length);
          std::memcpy(aside.data() + size_t(i) * store.entry_bytes(),
              store.entry(layer, head, args.kv.pages, first + args.from(i)), store.entry_bytes());
        }
        for (int64_t i = 0; i < count; ++i)
          std::memcpy(store.entry(layer, head, args.kv.pages, first + i), aside.data() + size_t(i) * store.entry_bytes(),
              store.entry_bytes());
        first += length;
      }
    }
}

void ReferenceBackend::page_bounds(const PageBoundsArgs& args) {
  auto& from = static_cast<ReferenceKvStore&>(*args.from.store);
  auto& to = static_cast<ReferenceKvStore&>(*args.to.store);
  const int dim = from.head_dim;
  HUNCH_CHECK(page_bounds_fit(args));
  std::vector<float> k(dim, 0.0f), v(k), bounds(2 * dim);
  for (int head = 0; head < from.kv_heads; ++head)
    for (int64_t page = args.first_page; page < args.last_page; ++page) {
      for (int64_t entry = page * args.page_len; entry < (page + 1) * args.page_len; ++entry) {
        from.read(args.layer, head, args.from.pages, entry, k.data(), v.data());
        const bool first = entry == page * args.page_len;
        for (int d = 0; d < dim; ++d) {
          if (args.means) {
            bounds[d] = (first ? 0 : bounds[d]) + k[d];
            continue;
          }
          bounds[d] = first ? k[d] : std::max(bounds[d], k[d]);
          bounds[dim + d] = first ? k[d] : std::min(bounds[dim + d], k[d]);
        }
      }
      for (int d = 0; args.means && d < dim; ++d) bounds[d] /= float(args.page_len);
      encode(to.dtype, 1, bounds.data(), to.head_dim, to.entry(args.layer, head, args.to.pages, page));
    }
  counters_.kv_bytes += size_t((args.last_page - args.first_page) * args.page_len * from.kv_heads) * from.entry_bytes() / 2;
}

void ReferenceBackend::split_signs(const SplitSignsArgs& args) {
  const int64_t heads = args.q.extent[1], dim = args.q.extent[2], groups = args.by_group ? args.out.extent[1] : heads;
  const int64_t group = heads / groups;
  for (int64_t row = 0; row < args.q.extent[0]; ++row)
    for (int64_t head = 0; head < heads; ++head) {
      const float* q = &args.q(row, head, 0);
      float* to = args.by_group ? &args.out(row * group + head % group, head / group, 0) : &args.out(row, head, 0);
      for (int64_t d = 0; d < dim; ++d) to[d] = std::max(q[d], 0.0f), to[dim + d] = std::min(q[d], 0.0f);
    }
}

}
