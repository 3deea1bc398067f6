// Work is dealt as items (a run of panels of one product, a chunk of rows); which thread takes one does not show in the result.
#include "backend/cpu/matmul.h"

#include "backend/cpu/weights.h"

namespace hunch {
namespace {

constexpr size_t kPoolBytes = size_t(32) << 20;
constexpr size_t kItemBytes = size_t(128) << 10;   // of weights: an item should outlast its hand-out a hundredfold
constexpr size_t kChunkBytes = size_t(512) << 10;  // of activations: half of a private L2
constexpr size_t kSmallBytes = size_t(256) << 10;  // times rows: below that a thread's share takes only a few microseconds
constexpr int64_t kItemsPerThread = 4, kItemsOfSmall = 2;
constexpr int64_t kTileRows = 8;         // of the kernels: chunks of rows are whole tiles
constexpr int64_t kQuantiseAlone = 768;  // blocks that the caller quantises faster than a fork and join takes
constexpr int kMaxProducts = 16;

const CpuWeight& weight_of(const Product& product) { return static_cast<const CpuWeight&>(*product.weight); }
bool is_quantised(DType dtype) { return dtype_info(dtype).block > 1; }

}

// Small matrices lie side by side in huge pages: with a page of 4 KiB the prefetchers stop at each page's end.
std::byte* CpuMatmul::take(size_t bytes) {
  bytes = (bytes + 63) / 64 * 64;
  if (pools_.empty() || pool_used_ + bytes > pools_.back().bytes()) {
    Buffer pool = allocate_aligned(std::max(bytes, kPoolBytes));
    if (!pool) return nullptr;
    pools_.push_back(std::move(pool));
    pool_used_ = 0;
  }
  std::byte* data = static_cast<std::byte*>(pools_.back().data()) + pool_used_;
  pool_used_ += bytes;
  return data;
}

std::unique_ptr<Weight> CpuMatmul::load_weight(const Tensor& matrix) {
  HUNCH_CHECK(matrix.shape.size() == 2);
  auto weight = std::make_unique<CpuWeight>();
  weight->dtype = matrix.dtype;
  weight->out_dim = matrix.shape[0], weight->in_dim = matrix.shape[1];
  weight->panel_bytes = panel_bytes(matrix.dtype, weight->in_dim);
  weight->bytes = weight->panel_bytes * size_t(weight->num_panels());
  std::byte* data = take(weight->bytes);
  HUNCH_CHECK(data != nullptr);
  weight->panels = data;
  // Published scales are of whole matrices, rows or blocks of 128; the checkpoint refuses others.
  HUNCH_CHECK(!matrix.scales.values || matrix.scales.columns % kScaleGroup == 0 || matrix.scales.columns >= weight->in_dim);
  threads_.run(weight->num_panels(), [&](int64_t panel, int) {
    const int64_t first = panel * kPanelColumns;
    const int columns = int(std::min<int64_t>(kPanelColumns, weight->out_dim - first));
    pack_panel(matrix, first, columns, data + size_t(panel) * weight->panel_bytes);
  });
  return weight;
}

void CpuMatmul::quantise(View<const float, 2> x) {
  const int64_t rows = x.extent[0], k = x.extent[1], blocks = k / kActivationBlock;
  const size_t bytes = size_t(rows * blocks) * sizeof(ActivationBlock);
  if (blocks_.bytes() < bytes) blocks_ = allocate_aligned(bytes);  // grows with the first passes, then stays
  HUNCH_CHECK(blocks_);
  auto* out = static_cast<ActivationBlock*>(blocks_.data());
  const auto quantise_row = [&](int64_t row, int) { kernels_.quantise(&x(row, 0), k, out + row * blocks); };
  if (rows * blocks <= kQuantiseAlone) return threads_.run(rows, quantise_row, true);
  const int64_t rows_per_item = std::max<int64_t>(1, rows / (threads_.count() * kItemsPerThread));
  threads_.run((rows + rows_per_item - 1) / rows_per_item, [&](int64_t item, int worker) {
    for (int64_t row = item * rows_per_item; row < std::min(rows, (item + 1) * rows_per_item); ++row) quantise_row(row, worker);
  });
}

size_t CpuMatmul::matmul(const MatmulArgs& args) {
  const int64_t rows = args.x.extent[0], k = args.x.extent[1];
  const int num_products = int(args.products.size());
  HUNCH_CHECK(num_products <= kMaxProducts);
  size_t bytes = 0;
  int64_t panels = 0;
  bool any_quantised = false;
  for (const Product& product : args.products) {
    const CpuWeight& weight = weight_of(product);
    HUNCH_CHECK(weight.in_dim == k && product.out.extent[1] == weight.out_dim && product.out.extent[0] == rows);
    bytes += weight.bytes, panels += weight.num_panels();
    any_quantised |= is_quantised(weight.dtype);
  }
  if (rows == 0 || panels == 0) return 0;
  if (any_quantised) quantise(args.x);

  const bool small = bytes * size_t(rows) < kSmallBytes * size_t(threads_.count());
  const int64_t fair = std::max<int64_t>(1, panels / (threads_.count() * (small ? kItemsOfSmall : kItemsPerThread)));
  const int64_t big_enough = std::max<int64_t>(1, int64_t(kItemBytes / (bytes / size_t(panels))));
  const int64_t panels_per_item = std::min(fair, big_enough);
  std::array<int64_t, kMaxProducts + 1> first_item{};  // of each product
  for (int i = 0; i < num_products; ++i) {
    const int64_t n = weight_of(args.products[i]).num_panels();
    first_item[size_t(i) + 1] = first_item[i] + (n + panels_per_item - 1) / panels_per_item;
  }
  const int64_t items = first_item[num_products];
  const int64_t row_bytes = any_quantised ? k * 2 : k * 4;
  const int64_t chunk = std::min(rows, std::max<int64_t>(48, int64_t(kChunkBytes) / row_bytes / kTileRows * kTileRows));
  const int64_t chunks = (rows + chunk - 1) / chunk;

  threads_.run(items * chunks, [&](int64_t index, int) {
    const int64_t item = index % items, first_row = index / items * chunk;
    size_t at = 0;
    while (item >= first_item[at + 1]) ++at;
    const Product& product = args.products[at];
    const CpuWeight& weight = weight_of(product);
    const int64_t first_panel = (item - first_item[at]) * panels_per_item;
    const int64_t last_panel = std::min(first_panel + panels_per_item, weight.num_panels());
    PanelArgs tile;
    tile.k = k;
    tile.rows = int(std::min(chunk, rows - first_row));
    tile.blocks = static_cast<const ActivationBlock*>(blocks_.data()) + first_row * (k / kActivationBlock);
    tile.x = args.x.data + first_row * args.x.stride[0], tile.x_stride = args.x.stride[0];
    tile.out_stride = product.out.stride[0];
    tile.accumulate = args.accumulate;
    for (int64_t panel = first_panel; panel < last_panel; ++panel) {
      const int64_t column = panel * kPanelColumns;
      tile.panel = weight.panel(panel);
      tile.out = product.out.data + first_row * tile.out_stride + column;
      tile.columns = int(std::min<int64_t>(kPanelColumns, weight.out_dim - column));
      tile.bias = product.bias ? product.bias + column : nullptr;
      kernels_.panel[int(weight.dtype)](tile);
    }
  });
  return bytes;
}

void CpuMatmul::embed(const EmbedArgs& args) {
  const auto& table = static_cast<const CpuWeight&>(*args.table);
  const auto row = [&](int64_t r, int) {
    const int32_t id = args.ids(r);
    if (id < 0 || id >= table.out_dim) {
      std::fill_n(&args.out(r, 0), table.in_dim, 0.0f);
      return;
    }
    unpack_column(table.dtype, table.panel(id / kPanelColumns), id % kPanelColumns, table.in_dim, &args.out(r, 0));
  };
  threads_.run(args.ids.extent[0], row, args.ids.extent[0] < 16);
}

}
