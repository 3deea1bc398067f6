// Sums over tensors; no file is touched.
#include "checkpoint/model_info.h"

#include <array>
#include <cmath>

#include "checkpoint/expert_tensors.h"

namespace hunch {

namespace {

bool is_prediction_tensor(std::string_view name, const ModelShape& shape) {
  return shape.latent.used() && name.starts_with("blk.") && std::atoi(name.data() + 4) >= shape.layers;
}

uint64_t scale_bytes(const Tensor& tensor) {
  const WeightScales& s = tensor.scales;
  if (!s.values) return 0;
  const int64_t rows = (tensor.shape[0] + s.rows - 1) / s.rows, columns = (tensor.shape[1] + s.columns - 1) / s.columns;
  return uint64_t(rows * columns) * sizeof(float);
}

}

ModelInfo describe(const Checkpoint& checkpoint) {
  ModelInfo info;
  info.family = checkpoint.shape().family;
  info.file_bytes = checkpoint.file_bytes();
  std::array<EncodingShare, kNumDTypes> shares{};
  const ModelShape& shape = checkpoint.shape();
  uint64_t expert_bytes = 0;
  for (const Tensor& tensor : checkpoint.tensors()) {
    if (is_prediction_tensor(tensor.name, shape)) continue;  // not part of the model
    const int64_t elements = elements_of(tensor.shape);
    const uint64_t bytes = tensor.bytes + scale_bytes(tensor);
    EncodingShare& share = shares[size_t(tensor.dtype)];
    share.dtype = tensor.dtype;
    share.tensors += 1;
    share.elements += elements;
    share.bytes += bytes;
    info.tensor_bytes += bytes;
    if (tensor.name != "rope_freqs.weight") info.parameters += elements;
    if (is_expert_matrix(tensor.name)) expert_bytes += bytes;
    else if (tensor.name != "token_embd.weight" || shape.tied_head) info.weight_bytes_per_token += bytes;
  }
  if (shape.num_experts > 0)
    info.weight_bytes_per_token += expert_bytes / uint64_t(shape.num_experts) * uint64_t(shape.experts_per_token);
  for (const EncodingShare& share : shares)
    if (share.tensors > 0) info.encodings.push_back(share);
  return info;
}

double kv_bytes_per_token(const ModelShape& shape, DType kv_type) {
  const DTypeInfo type = dtype_info(kv_type);
  return double(shape.kv_elements_per_token()) * type.block_bytes / type.block;
}

int64_t balance_len(const ModelInfo& info, const ModelShape& shape, DType kv_type) {
  const double per_token = kv_bytes_per_token(shape, kv_type);
  return per_token > 0 ? std::llround(double(info.weight_bytes_per_token) / per_token) : 0;
}

}
