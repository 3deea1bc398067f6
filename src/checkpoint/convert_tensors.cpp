// Rows are independent: chunks of them are shared by the machine's threads.
#include "checkpoint/convert_tensors.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <thread>

#include "checkpoint/quantise.h"

namespace hunch {
namespace {

using enum DType;

namespace fs = std::filesystem;

constexpr int64_t kChunkElements = 1 << 23;  // 32 MiB of f32 in flight

// Architecture "llama" of GGUF rotates neighbours: row h D + 2 i + j is Hugging Face's row h D + j D/2 + i.
int64_t source_row(int64_t row, int64_t head_dim) {
  const int64_t head = row / head_dim, within = row % head_dim;
  return head * head_dim + (within % 2) * (head_dim / 2) + within / 2;
}

// The largest magnitude that an encoding holds: its f16 scale times its largest code.
float most_of(DType type) {
  constexpr float kMostF16 = 65504;
  switch (type) {
    case F32:
    case BF16: return std::numeric_limits<float>::max();
    case F16: return kMostF16;
    case Q8_0: return kMostF16 * 127;
    case Q4_0:
    case Q4_K:
    case Q5_K:
    case Q6_K:
    case F8_E4M3:
    case MXFP4:
    case I16: break;
  }
  return kMostF16 * 8;
}

// One chunk of rows, shared by the machine's threads; false where a weight is NaN or larger than the encoding can hold.
bool convert_rows(
    const PlannedTensor& plan, int64_t first, int64_t count, int64_t row, int64_t head_dim, std::span<std::byte> out) {
  const Tensor& tensor = *plan.tensor;
  const size_t in_bytes = dtype_bytes(tensor.dtype, row), out_bytes = dtype_bytes(plan.dtype, row);
  std::atomic<bool> fits = true;
  const float most = most_of(plan.dtype);
  const auto work = [&](int64_t begin, int64_t end) {
    std::vector<float> values(row);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t from = plan.permuted_heads ? source_row(first + i, head_dim) : first + i;
      const std::byte* source = tensor.data + from * in_bytes;
      std::byte* target = out.data() + i * out_bytes;
      if (tensor.dtype == plan.dtype) {  // no detour over f32: the bits stay
        std::memcpy(target, source, in_bytes);
        continue;
      }
      if (tensor.scales.values) dequantise_row(tensor, from, values.data());
      else dequantise_row(tensor.dtype, source, values.data(), row);
      for (const float value : values)
        if (!(std::fabs(value) <= most)) fits = false;
      if (fits) quantise_row(plan.dtype, values.data(), target, row);
    }
  };
  const int64_t workers = std::min<int64_t>(std::max(1u, std::thread::hardware_concurrency()), count);
  std::vector<std::thread> threads;
  for (int64_t w = 1; w < workers; ++w) threads.emplace_back(work, count * w / workers, count * (w + 1) / workers);
  work(0, count / workers);
  for (std::thread& thread : threads) thread.join();
  return fits;
}

Status write_tensor(
    GgufWriter& out, const PlannedTensor& plan, int64_t head_dim, const std::function<Status(uint64_t)>& after_chunk) {
  const Tensor& tensor = *plan.tensor;
  // A bias that is permuted is a column: rows of one element.
  const int64_t row = plan.permuted_heads && tensor.shape.size() == 1 ? 1 : tensor.shape.back();
  const int64_t rows = elements_of(tensor.shape) / row;
  const int64_t chunk = std::max<int64_t>(1, kChunkElements / row);
  std::vector<std::byte> buffer;
  for (int64_t first = 0; first < rows; first += chunk) {
    const int64_t count = std::min(chunk, rows - first);
    buffer.resize(count * dtype_bytes(plan.dtype, row));
    if (!convert_rows(plan, first, count, row, head_dim, buffer))
      return failure("tensor {} holds NaN or a value too large for {}", tensor.name, dtype_info(plan.dtype).name);
    HUNCH_OK(out.append(buffer));
    HUNCH_OK(after_chunk(count * dtype_bytes(tensor.dtype, row)));
  }
  return {};
}

}

uint32_t file_type_of(DType type) {
  switch (type) {
    case F32: return 0;
    case F16: return 1;
    case Q4_0: return 2;
    case Q8_0: return 7;
    case Q4_K: return 14;
    case Q5_K: return 16;
    case Q6_K: return 18;
    case BF16: return 32;
    case F8_E4M3:  // not an encoding of GGUF
    case MXFP4:
    case I16: break;  // not written
  }
  return 0;
}

DType encoding_for(const Tensor& tensor, DType asked, std::vector<std::string>& notes) {
  if (tensor.shape.size() < 2 || tensor.name.find(".nsa_cmp_") != tensor.name.npos) return F32;
  const int64_t row = tensor.shape.back();
  const auto fits = [&](DType type) { return row % dtype_info(type).block == 0; };
  if (fits(asked)) return asked;
  const DType other = fits(Q8_0) ? Q8_0 : F16;
  notes.push_back(fmt::format("{}: {} instead of {}: rows of {} are no multiple of {}", tensor.name, dtype_info(other).name,
      dtype_info(asked).name, row, dtype_info(asked).block));
  return other;
}

std::string name_of_folder(const std::string& path) {
  const fs::path given = fs::path(path).lexically_normal();
  std::error_code ignored;
  const fs::path folder = fs::is_directory(given, ignored) ? given : given.parent_path();
  return (folder.has_filename() ? folder : folder.parent_path()).filename().string();
}

Status check_destination(const std::string& in, const std::string& out) {
  std::error_code ignored;
  if (!out.ends_with(".gguf")) return usage_error("{}: the output must be named *.gguf", out);
  if (fs::is_directory(out, ignored)) return failure("{}: is a folder", out);
  if (!fs::exists(out, ignored)) return {};
  const fs::path folder = fs::is_directory(in, ignored) ? fs::path(in) : fs::path(in).parent_path();
  bool same = fs::equivalent(in, out, ignored);
  for (const auto& entry : fs::directory_iterator(folder.empty() ? fs::path(".") : folder, ignored))
    same = same || (entry.path().extension() == ".safetensors" && fs::equivalent(entry.path(), out, ignored));
  if (same) return failure("{}: the output would overwrite the input", out);
  return {};
}

Status write_planned(GgufWriter& writer, const std::string& out, const std::vector<PlannedTensor>& plan, int64_t head_dim,
    uint64_t bytes_in, const ConvertCallback& progress, const std::atomic<bool>* interrupted) {
  HUNCH_OK(writer.begin(out));
  uint64_t done = 0;
  for (const PlannedTensor& p : plan) {
    const auto after_chunk = [&](uint64_t bytes) -> Status {
      done += bytes;
      if (progress) progress({p.tensor->name, done, bytes_in});
      if (interrupted && interrupted->load()) return Error{"interrupted; nothing was written"};
      return {};
    };
    if (p.whole_numbers) {
      HUNCH_OK(writer.append({p.tensor->data, p.tensor->bytes}));
      HUNCH_OK(after_chunk(p.tensor->bytes));
    } else {
      HUNCH_OK(write_tensor(writer, p, head_dim, after_chunk));
    }
  }
  return writer.finish();
}

}
