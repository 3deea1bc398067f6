// Memory and registration of the reference backend; the ops stand in the files beside it.

#include "backend/reference/reference_backend.h"

#include "base/machine.h"
#include "checkpoint/quantise.h"

namespace hunch {

Buffer ReferenceBackend::allocate(size_t bytes, Memory) {
  const size_t rounded = (bytes + 63) / 64 * 64;
  return Buffer(std::aligned_alloc(64, rounded), rounded, [](void* data, size_t) { std::free(data); });
}

Buffer ReferenceBackend::constant(std::span<const float> values) {
  Buffer buffer = allocate(values.size_bytes());
  std::ranges::copy(values, static_cast<float*>(buffer.data()));
  return buffer;
}

std::unique_ptr<Weight> ReferenceBackend::random_weight(DType dtype, int64_t out_dim, int64_t in_dim, uint64_t seed) {
  constexpr float kSpread = 0.02f, kMost = kSpread * 1.7320508f;
  // FP8 has a scale beside the codes that makes the greatest value of a code the greatest here.
  const float scale = kMost / 448, unit = dtype == DType::F8_E4M3 ? 448 : kMost;
  const size_t row_bytes = dtype_bytes(dtype, in_dim);
  std::vector<std::byte> bytes(row_bytes * size_t(out_dim));
  std::vector<float> row(in_dim);
  uint64_t state = seed;
  for (int64_t i = 0; i < out_dim; ++i) {
    for (float& x : row) {  // Knuth's MMIX generator; uniform with the wanted deviation
      state = state * 6364136223846793005ull + 1442695040888963407ull;
      x = float(int32_t(state >> 32)) * (0x1p-31f * unit);
    }
    quantise_row(dtype, row.data(), bytes.data() + size_t(i) * row_bytes, in_dim);
  }
  Tensor made{.dtype = dtype, .shape = {out_dim, in_dim}, .data = bytes.data(), .bytes = bytes.size()};
  if (dtype == DType::F8_E4M3) made.scales = {&scale, out_dim, in_dim};
  return load_weight(made);
}

size_t ReferenceBackend::memory_bytes() const { return size_t(usable_memory_bytes()); }

void ReferenceBackend::copy_rows(const CopyRowsArgs& args) {
  const int64_t given = args.from.extent[0], rows = args.to.extent[0];
  HUNCH_CHECK(args.from.extent[1] == args.to.extent[1] && (args.index.data || given == rows || given == 1));
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t from = args.index.data ? args.index(row) : given == 1 ? 0 : row;
    HUNCH_CHECK(from >= 0 && from < given);
    std::copy_n(args.from[from].data, args.to.extent[1], args.to[row].data);
  }
}

void ReferenceBackend::copy_tokens(const CopyTokensArgs& args) {
  const auto& index = args.index;
  HUNCH_CHECK(args.to.extent[0] == (index.empty() ? args.from.extent[0] : std::ssize(index)));
  for (int64_t i = 0; i < args.to.extent[0]; ++i) args.to(i) = args.from(index.empty() ? i : index[i]);
}

void ReferenceBackend::scatter_columns(const ScatterColumnsArgs& args) {
  const int64_t n = args.map.extent[0];
  HUNCH_CHECK(args.from.extent[1] == n && args.from.extent[0] == args.to.extent[0]);
  for (int64_t i = 0; i < n; ++i) HUNCH_CHECK(args.map(i) >= -1 && args.map(i) < args.to.extent[1]);
  for (int64_t row = 0; row < args.to.extent[0]; ++row) {
    const float* from = args.from[row].data;
    float* to = args.to[row].data;
    for (int64_t i = 0; i < n; ++i)
      if (args.map(i) >= 0) to[args.map(i)] = from[i];
  }
}

namespace {

Result<std::unique_ptr<Backend>> make_reference(const Backend::Setup&) {
  return std::unique_ptr<Backend>(std::make_unique<ReferenceBackend>());
}

const Register<Backend> reference{"reference", "every op as its textbook loop, one thread", make_reference};

}

}
