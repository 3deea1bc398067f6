// See matmul.h: which form of products_kernel.cuh a call takes, and where its pieces lie.
#include "backend/cuda/matmul.h"

#include "backend/cuda/chunk_products.h"
#include "backend/cuda/packed_rows.cuh"
#include "backend/cuda/plain_products.cuh"
#include "backend/cuda/products_kernel.cuh"
#include "backend/cuda/resident_kernel.cuh"

namespace hunch {
namespace {

constexpr int kSharedOfOne = 225 * 1024, kSharedOfTwo = 113 * 1024;  // what a block alone, or each of two, may have on an SM
constexpr int kStageOfOne = 48 * 1024, kStageOfTwo = 28 * 1024;      // at most, where a stage may have several records
constexpr int64_t kResidentRows = 8, kResidentPlainRows = 4, kUnpackedRows = 768;
// Of an H200, measured: reads of the device, of L2 and of one SM in bytes a second; what the tensor cores of an SM
// multiply a second; from asking for a stage to asking again; an SM's time for a part of a coded tile.
constexpr double kReadRate = 4.4e12, kL2Rate = 6e12, kSmRate = 39e9, kSmProducts = 3.3e12, kTurnaround = 3.2e-6,
                 kDecoding = 1.1e-7;
// How fast first stages are asked for (Pace): bytes at once, then bytes a second of all SMs, measured for plain weights of up to
// 4 rows, of more, for codes of bytes in `resident` and for others, which are decoded no faster; cycles a second under load.
constexpr int kBurst = 32 * 1024;
constexpr double kResidentPace = 4e12, kStreamedPace = 3.5e12, kBytesPace = 3.2e12, kCodedPace = 2e12, kClock = 1.8e9;

const CudaWeight& weight_of(const Product& product) { return static_cast<const CudaWeight&>(*product.weight); }

int divide_up(int64_t a, int64_t b) { return int((a + b - 1) / b); }

using Kernel = void (*)(const ProductsOnDevice*);
struct EmbedOnDevice {
  const int32_t* ids;
  const std::byte* tiles;
  float* out;
  int64_t id_stride, out_stride, out_dim, in_dim;
  int num_records, per_input, rows;
};
template <DType kType>
__global__ void embed_kernel(const EmbedOnDevice* args) {
  constexpr RecordShape kShape = record_shape(kType);
  let_next_start();
  const EmbedOnDevice a = *args;
  if (int(blockIdx.x) >= a.rows) return;
  wait_for_previous();
  const int64_t id = a.ids[blockIdx.x * a.id_stride];
  const bool known = id >= 0 && id < a.out_dim;
  const int feature = known ? int(id % kTileFeatures) : 0;
  const std::byte* tile = a.tiles + (known ? id / kTileFeatures : 0) * a.num_records * kShape.bytes;
  float* out = a.out + blockIdx.x * a.out_stride;
  for (int64_t k = blockIdx.y * blockDim.x + threadIdx.x; k < a.in_dim; k += gridDim.y * blockDim.x) {
    float value = 0;
    if (known) {
      const std::byte* record = tile + k / kShape.inputs * a.per_input * kShape.bytes;
      if constexpr (kType == DType::BF16) {
        const int at = swizzled(feature, int(k % 64));
        value = __bfloat162float(*reinterpret_cast<const __nv_bfloat16*>(record + at));
        if (a.per_input == 2) value += __bfloat162float(*reinterpret_cast<const __nv_bfloat16*>(record + kShape.bytes + at));
      } else {
        value = coded_element<kType>(record, feature, int(k % kShape.inputs));
      }
    }
    out[k] = value;
  }
}

// The kernels of an encoding.
struct FewRows {
  int n = 0;  // at most
  Kernel kernel = nullptr, gated = nullptr;
};
struct Kernels {
  Kernel plain, resident;
  FewRows few[11];  // ascending; none of 8 for codes, which are decoded faster in `resident`
  Kernel many[2];   // units of all runs, of one
  void (*embed)(const EmbedOnDevice*);
};
template <DType kType, int... kN>
void add_few(FewRows* to) {
  ((*to++ = {kN, few_rows_kernel<kType, kN, false>}), ...);
  if constexpr (kType == DType::BF16) (((to++ - sizeof...(kN))->gated = few_rows_kernel<kType, kN, true>), ...);
}
template <DType kType>
Kernels kernels_of_type() {
  Kernels k{.plain = plain_rows_kernel<kType>,
      .resident = resident_rows_kernel<kType>,
      .many = {many_rows_kernel<kType, false>, many_rows_kernel<kType, true>},
      .embed = embed_kernel<kType>};
  if constexpr (kType == DType::BF16) add_few<kType, 8, 16, 32, 48, 64, 96, 128, 160, 192, 224, 256>(k.few);
  else add_few<kType, 16, 32, 64, 128>(k.few);
  return k;
}
Kernels kernels_of(DType type) {
  switch (type) {
    case DType::Q8_0: return kernels_of_type<DType::Q8_0>();
    case DType::Q4_0: return kernels_of_type<DType::Q4_0>();
    case DType::Q4_K: return kernels_of_type<DType::Q4_K>();
    case DType::Q5_K: return kernels_of_type<DType::Q5_K>();
    case DType::Q6_K: return kernels_of_type<DType::Q6_K>();
    case DType::F8_E4M3: return kernels_of_type<DType::F8_E4M3>();
    case DType::MXFP4: return kernels_of_type<DType::MXFP4>();
    default: return kernels_of_type<DType::BF16>();
  }
}

// How a call runs: a kernel of products_kernel.cuh with N rows, and the blocks of its clusters.
struct Form {
  Kernel kernel = nullptr;
  int n = 0;
  int cluster = 1;  // blocks; of groups that share activations, of row tiles too if `whole`
  bool whole = false;
};
Form form_of(const Kernels& kernels, int64_t rows, bool cut, bool gated = false) {
  for (const FewRows& few : kernels.few)
    if (few.n >= rows) return {gated ? few.gated : few.kernel, few.n, few_rows_cluster(few.n)};
  return {kernels.many[cut], 128, 2, true};
}

// Bytes of a stage: records of `group` tiles and activations.
void plan_stage(ProductsOnDevice& a, const Form& form, const RecordShape& shape, int group, int shared) {
  a.group_tiles = group;
  const int parts = shape.inputs / 64;
  const auto plan = [&](int records) {
    a.stage_records = records;
    a.tile_bytes = records * shape.bytes;
    a.x_offset = (group * a.tile_bytes + 1023) / 1024 * 1024;
    a.stage_bytes = a.x_offset + records * parts * form.n * 128;
  };
  // As many records as make a stage worth its barriers; values and rests meet the same activations: one at a time.
  int records = 1;
  plan(1);
  while (a.records_per_input == 1 && shape.bytes < 8192 && records < 8) {
    plan(records * 2);
    if (a.stage_bytes > (shared == kSharedOfOne ? kStageOfOne : kStageOfTwo)) break;
    records *= 2;
  }
  plan(records);
  a.stages = std::min((shared - kHeadBytes) / a.stage_bytes, kMostStages);
  HUNCH_CHECK(a.stages >= 2);
}

// Tiles of a group and all that follows from it: the shortest time by a model of the device. Returns the number of blocks;
// `time` for many rows: as wants_chunk() counts it.
int choose_group(ProductsOnDevice& a, const Form& form, const RecordShape& shape, double& time) {
  const int sms = device_facts().num_sms;
  // Groups of a cluster's share of features; its units; blocks that have one each.
  const auto groups_of = [&](int group) { return divide_up(a.num_tiles, group * (form.whole ? 1 : form.cluster)); };
  const auto units_of = [&](int group) { return groups_of(group) * (a.cut ? a.splits : 1) * a.row_tiles; };
  const auto blocks_of = [&](int group) { return units_of(group) * form.cluster; };
  // One block with deep stages where a unit is all that an SM gets; else two, so that one multiplies while the other ends.
  const auto shared_of = [&](int group) {
    return form.whole || few_rows_blocks(shape.bytes == 8192, form.n) == 1 || blocks_of(group) <= sms ? kSharedOfOne
                                                                                                      : kSharedOfTwo;
  };
  int best = 1;
  double best_time = 1e30;
  for (int group = 1; group <= 3; ++group) {
    plan_stage(a, form, shape, group, shared_of(group));
    const int units = blocks_of(group);
    if (form.whole) {
      time = double(divide_up(units_of(group), sms / 2)) * group * (group == 1 ? 1.5 : group == 2 ? 1.25 : 1.0);
    } else {
      const double weights = double(group) * a.tile_bytes, unit = double(group) * shape.bytes * a.num_records / a.splits;
      const double in_flight = std::min(units, 2 * sms) * a.stages * weights, all = unit * units;
      const double x = double(a.stage_bytes - a.x_offset) / form.cluster;
      const double parts = double(group) * shape.inputs / 64 * a.num_records / a.splits * divide_up(units, sms);
      const double multiplying = parts * 64 * 64 * form.n / kSmProducts, decoding = shape.bytes < 8192 ? parts * kDecoding : 0;
      time = std::max({multiplying, decoding, all / kReadRate, all * kTurnaround / in_flight,
                 unit * divide_up(units, sms) / kSmRate, all * (1 + x / weights) / kL2Rate}) *
          (1 + 0.01 * (3 - group));
    }
    if (time <= best_time) best = group, best_time = time;
  }
  time = best_time / (a.cut ? a.splits : 1);
  plan_stage(a, form, shape, best, shared_of(best));
  a.groups = groups_of(best);
  a.units = units_of(best);
  return form.cluster * std::min(a.units, (shared_of(best) == kSharedOfOne ? sms : 2 * sms) / form.cluster);
}

// Blocks of resident_kernel.cuh: groups and stages. Returns bytes of shared memory; 0 if the activations of a run leave no room.
int plan_resident(ProductsOnDevice& a, const RecordShape& shape) {
  const int sms = device_facts().num_sms;
  while ((1 << a.row_shift) < a.rows) ++a.row_shift;
  const int run = divide_up(a.num_records, a.splits * a.records_per_input) + (a.records_per_input > 1 ? 1 : 0);
  a.x_offset = divide_up((int64_t(run) * shape.inputs * 2) << a.row_shift, 1024) * 1024;
  // Blocks keep their run of the inputs, so their number is one of splits.
  const int most = sms / a.splits * a.splits;
  int64_t least = INT64_MAX;
  for (int group = 1; group <= 3; ++group) {
    const int units = divide_up(a.num_tiles, group) * a.splits;
    const int64_t tiles = int64_t(divide_up(units, most)) * group;  // of an SM
    if (tiles <= least) least = tiles, a.group_tiles = group, a.units = units;
  }
  a.groups = divide_up(a.num_tiles, a.group_tiles);
  // A block has all of an SM: two halves would let the weights of the next product come earlier, but where kernels run in between
  // (norms, attention) two blocks of a product meet on one SM while others have none, and it takes twice as long.
  const bool coded = shape.bytes < 8192;
  for (a.stage_records = coded ? 4 : 1; a.stage_records > 0; a.stage_records /= 2) {
    a.tile_bytes = a.stage_records * shape.bytes;
    a.stage_bytes = divide_up(a.group_tiles * a.tile_bytes, 128) * 128;
    a.stages = std::min((kSharedOfOne - kHeadBytes - a.x_offset) / a.stage_bytes, kMostStages);
    if (a.stages >= 3 && a.stage_bytes <= kStageOfTwo) return kSharedOfOne;
  }
  return 0;
}

// Products of one encoding and one number of splits, without a plan.
ProductsOnDevice describe(const MatmulArgs& args, std::span<const Product> products) {
  const CudaWeight& first = weight_of(products[0]);
  ProductsOnDevice a{};
  a.x = args.x.data, a.x_stride = args.x.stride[0], a.in_dim = first.in_dim;
  a.rows = int(args.x.extent[0]), a.accumulate = args.accumulate;
  a.unit = unit_of(first.form);
  a.num_products = int(products.size());
  a.num_records = first.num_records, a.splits = first.splits;
  a.records_per_input = first.records_per_input;
  a.parts = a.num_records / a.records_per_input * (record_shape(first.form).inputs / 64);
  for (size_t i = 0; i < products.size(); ++i) {
    const CudaWeight& weight = weight_of(products[i]);
    HUNCH_CHECK(weight.in_dim == args.x.extent[1] && products[i].out.extent[1] == weight.out_dim);
    HUNCH_CHECK(products[i].out.extent[0] == a.rows && products[i].out.stride[1] == 1);
    a.products[i] = {.tiles = weight.tiles,
        .bias = products[i].bias,
        .out = products[i].out.data,
        .out_stride = products[i].out.stride[0],
        .num_tiles = weight.num_tiles,
        .out_dim = int(weight.out_dim)};
    a.num_tiles += weight.num_tiles;
  }
  return a;
}

// Many rows are packed by a kernel of its own.
void pack_rows(Commands& commands, const ProductsOnDevice& a) {
  const int units = a.parts * a.x_blocks * 64, most = 8 * device_facts().num_sms;
  commands.launch(pack_activations_kernel, {.blocks = dim3(unsigned(std::min(divide_up(units, 256), most))), .threads = 256},
      PackActivations{.x = a.x,
          .packed = const_cast<std::byte*>(a.packed_x),
          .x_stride = a.x_stride,
          .in_dim = a.in_dim,
          .rows = a.rows,
          .x_blocks = a.x_blocks,
          .parts = a.parts});
}

size_t packed_chunk_bytes(const ProductsOnDevice& a) { return size_t(a.parts) * divide_up(a.rows, 256) * 32 * 1024; }

// Plain, or made so: with many rows that is sooner done than decoding them again for every 128.
bool is_soon_plain(Commands& commands, const ProductsOnDevice& a, DType form) {
  return !has_codes(form) || (a.rows >= kUnpackedRows && commands.affords(packed_chunk_bytes(a) + unpacked_bytes(a, form)));
}

// `packed`: the activations, if they are there already.
void enqueue_as_chunk(Commands& commands, ProductsOnDevice a, DType form, const std::byte* packed) {
  a.x_blocks = divide_up(a.rows, 256) * 32;
  const size_t x_bytes = packed ? 0 : packed_chunk_bytes(a);
  auto* const memory = static_cast<std::byte*>(commands.workspace(x_bytes + unpacked_bytes(a, form)));
  a.packed_x = packed ? packed : memory;
  if (!packed) pack_rows(commands, a);
  enqueue_unpack(commands, a, form, memory + x_bytes);
  enqueue_chunk(commands, a);
}

// `gated`: ProductsOnDevice, of few rows.
void enqueue_alike(Commands& commands, const MatmulArgs& args, std::span<const Product> products, const std::byte* packed,
    ActivationPath path, std::byte* gated = nullptr) {
  const CudaWeight& first = weight_of(products[0]);
  const RecordShape shape = record_shape(first.form);
  const Kernels kernels = kernels_of(first.form);
  const int64_t rows = args.x.extent[0];
  ProductsOnDevice a = describe(args, products);
  a.gated = gated, a.gated_blocks = packed_blocks(rows);

  if (!is_hopper() || path == ActivationPath::Plain) {
    commands.launch(
        kernels.plain, {.blocks = dim3(unsigned(a.num_tiles), unsigned(divide_up(rows, kPlainRows))), .threads = 128}, a);
    return;
  }

  // More than a few rows go through the kernel of clusters. Where that would leave most SMs without work, a unit is a run, if
  // there is room for the sums.
  const int sms = device_facts().num_sms;
  const bool whole = form_of(kernels, rows, false).whole;
  const auto room_for_sums = [&](int64_t tiles_of_rows, int n) {
    return commands.ones(size_t(tiles_of_rows) * a.num_tiles * a.splits * size_t(n / 2) * 128 * sizeof(float));
  };
  if (!whole && a.splits > 1 && products.size() > 1 && !room_for_sums(1, form_of(kernels, rows, true).n)) {
    const size_t half = products.size() / 2;
    enqueue_alike(commands, args, products.first(half), packed, path);
    return enqueue_alike(commands, args, products.subspan(half), packed, path);
  }
  // A block must not have two runs of a tile: it would wait for itself.
  const int clusters = sms / 2;
  a.cut = a.splits > 1 &&
      (!whole ||
          (clusters >= a.splits && divide_up(a.num_tiles, 3) * divide_up(rows, 128) < clusters &&
              room_for_sums(divide_up(rows, 256) * 2, 128)));
  const bool can_read = args.x.stride[0] % 4 == 0 && reinterpret_cast<uintptr_t>(a.x) % 16 == 0 && a.in_dim % 4 == 0;
  int resident_bytes = 0;
  // Codes are decoded faster there. Plain weights of more than a few rows are faster with activations that come by the stage.
  bool resident = !whole && !gated && can_read && rows <= kResidentRows && path != ActivationPath::Packed &&
      !(first.form == DType::BF16 && rows > kResidentPlainRows);
  if (resident) {
    ProductsOnDevice planned = a;
    resident_bytes = plan_resident(planned, shape);
    resident = resident_bytes > 0;
    if (resident) a = planned;
  }
  const Form form = resident ? Form{kernels.resident, 8} : form_of(kernels, rows, a.cut, gated);
  a.row_tiles = divide_up(rows, whole ? 2 * form.n : form.n);
  a.row_band = std::min(a.row_tiles, 4);
  // One block an SM; those without work keep places (resident_kernel.cuh).
  double time = 0;
  const int most = sms / a.splits * a.splits;
  const int blocks = !resident ? choose_group(a, form, shape, time) : a.units > most ? most : sms;
  a.keep_weights = a.row_tiles > 1;
  const bool chunk = path == ActivationPath::Chunk ||
      (path == ActivationPath::Auto && whole && wants_chunk(a, time) && is_soon_plain(commands, a, first.form));
  if (chunk && fits_chunk(a, first.form)) return enqueue_as_chunk(commands, a, first.form, packed);

  a.x_blocks = packed ? packed_blocks(rows) : a.row_tiles * (whole ? 2 : 1) * form.n / 8;
  const size_t x_bytes = resident || packed ? 0 : size_t(a.parts) * a.x_blocks * 1024;
  const size_t tile_partials = size_t(a.splits) * size_t(form.n / 2) * 128;
  const size_t partial_bytes =
      a.cut ? size_t(a.row_tiles) * (whole ? 2 : 1) * size_t(a.num_tiles) * tile_partials * sizeof(float) : 0;
  auto* partials = static_cast<float*>(commands.ones(partial_bytes));
  HUNCH_CHECK(partials);
  a.packed_x = packed || resident ? packed : static_cast<std::byte*>(commands.workspace(x_bytes));
  for (int i = 0; i < a.num_products; ++i) {
    a.products[i].partials = partials;
    partials += size_t(a.row_tiles) * (whole ? 2 : 1) * size_t(a.products[i].num_tiles) * tile_partials;
  }
  a.packed_count = first.packed_count;
  if (whole && !packed) pack_rows(commands, a);
  const int weights = a.group_tiles * a.tile_bytes;
  a.burst = divide_up(kBurst, weights);
  const double pace = first.form == DType::BF16 ? (resident ? kResidentPace : kStreamedPace)
      : resident && has_byte_codes(first.form)  ? kBytesPace
                                                : kCodedPace;
  a.stage_cycles = int(double(weights) * std::min(a.units * form.cluster, sms) * kClock / pace);
  a.packers = packed ? 0 : std::min(blocks, sms);
  commands.launch(form.kernel,
      {.blocks = dim3(unsigned(blocks)),
          .threads = unsigned(a.group_tiles * 128 + (resident ? 32 : helper_threads(form.n, form.whole))),
          .shared_bytes = size_t(resident ? resident_bytes : kHeadBytes + a.stages * a.stage_bytes)},
      a);
}

}

void enqueue_matmul(Commands& commands, const MatmulArgs& args, ActivationPath path) {
  if (args.x.extent[0] == 0 || args.products.empty()) return;
  commands.begin_op();
  const std::byte* packed = path == ActivationPath::Auto ? commands.packed(args.x) : nullptr;
  Product alike[kMaxProducts];
  const auto same = [](const CudaWeight& a, const CudaWeight& b) {
    return a.form == b.form && a.records_per_input == b.records_per_input && a.splits == b.splits;
  };
  for (size_t i = 0; i < args.products.size(); ++i) {
    const CudaWeight& weight = weight_of(args.products[i]);
    size_t count = 0, earlier = 0;
    for (size_t j = 0; j < i; ++j) earlier += same(weight_of(args.products[j]), weight);
    if (earlier % kMaxProducts != 0) continue;  // went with those before
    for (size_t j = i; j < args.products.size() && count < size_t(kMaxProducts); ++j)
      if (same(weight_of(args.products[j]), weight)) alike[count++] = args.products[j];
    enqueue_alike(commands, args, std::span<const Product>(alike, count), packed, path);
  }
}

void enqueue_matmul(Commands& commands, const MatmulArgs& args) { enqueue_matmul(commands, args, ActivationPath::Auto); }

bool enqueue_feed_forward(Commands& commands, const FeedForwardArgs& args) {
  const auto &gate = static_cast<const CudaWeight&>(*args.gate), &up = static_cast<const CudaWeight&>(*args.up);
  const int64_t rows = args.x.extent[0], width = gate.out_dim;
  const auto plain = [](const CudaWeight& w) { return w.records_per_input == 1 && w.splits == 1; };
  const Form form = form_of(kernels_of(gate.form), rows, false);
  if (!is_hopper() || !plain(gate) || !plain(up) || up.form != gate.form || up.out_dim != width || width % 256 != 0) return false;
  const Product both[] = {{&gate, nullptr, args.gate_out}, {&up, nullptr, args.up_out}},
                down[] = {{args.down, nullptr, args.out}};
  const auto let_down = [&](const std::byte* gated) {
    enqueue_alike(commands, {args.gate_out, down, true}, down, gated, ActivationPath::Auto);
    return true;
  };
  if (!form.whole) {
    if (rows < 2 || has_codes(gate.form)) return false;  // the resident kernel and a gate of its own are as fast
    commands.begin_op();
    const auto packed_bytes = [&](int64_t inputs) { return size_t(divide_up(inputs, 64) * packed_blocks(rows)) * 1024; };
    const size_t first = packed_bytes(args.x.extent[1]);  // the activations, if they are not there yet
    std::byte* gated = static_cast<std::byte*>(commands.workspace(first + packed_bytes(width))) + first;
    enqueue_alike(commands, {args.x, both}, both, commands.packed(args.x), ActivationPath::Auto, gated);
    return let_down(gated);
  }
  // The gated rows of whole blocks of 256, in bf16, lie where floats would.
  if (args.gate_out.stride[0] != width || reinterpret_cast<uintptr_t>(args.gate_out.data) % 16 != 0) return false;
  ProductsOnDevice a = describe({args.x, both}, both), planned = a;
  double time = 0;
  planned.row_tiles = divide_up(rows, 2 * form.n);
  choose_group(planned, form, record_shape(gate.form), time);
  if (!fits_chunk(a, gate.form) || !wants_chunk(a, time) || !is_soon_plain(commands, a, gate.form)) return false;
  commands.begin_op();
  a.gated = reinterpret_cast<std::byte*>(args.gate_out.data);
  enqueue_as_chunk(commands, a, gate.form, commands.packed(args.x));
  return let_down(a.gated);
}

void enqueue_embed(Commands& commands, const EmbedArgs& args) {
  if (args.ids.extent[0] == 0) return;
  commands.begin_op();
  const auto& table = static_cast<const CudaWeight&>(*args.table);
  HUNCH_CHECK(args.out.extent[1] == table.in_dim && args.out.stride[1] == 1);
  const EmbedOnDevice a{.ids = args.ids.data,
      .tiles = table.tiles,
      .out = args.out.data,
      .id_stride = args.ids.stride[0],
      .out_stride = args.out.stride[0],
      .out_dim = table.out_dim,
      .in_dim = table.in_dim,
      .num_records = table.num_records,
      .per_input = table.records_per_input,
      .rows = int(args.ids.extent[0])};
  const Grid grid{.blocks = dim3(unsigned(grid_rows(a.rows)), unsigned(divide_up(table.in_dim, 1024))), .threads = 256};
  commands.launch(kernels_of(table.form).embed, grid, a);
}

}
