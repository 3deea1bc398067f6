// Sums over tensors; no file is touched.
#include "checkpoint/model_info.h"

#include <array>
#include <cmath>

namespace hunch {

ModelInfo describe(const Checkpoint& checkpoint) {
  ModelInfo info;
  info.family = checkpoint.shape().family;
  info.name = checkpoint.shape().name;
  info.format = checkpoint.format();
  info.file_bytes = checkpoint.file_bytes();
  std::array<EncodingShare, kNumDTypes> shares{};
  for (const Tensor& tensor : checkpoint.tensors()) {
    int64_t elements = 1;
    for (const int64_t extent : tensor.shape) elements *= extent;
    EncodingShare& share = shares[size_t(tensor.dtype)];
    share.dtype = tensor.dtype;
    share.tensors += 1;
    share.elements += elements;
    share.bytes += tensor.bytes;
    info.tensor_bytes += tensor.bytes;
    if (tensor.name != "rope_freqs.weight") info.parameters += elements;
    if (tensor.name != "token_embd.weight" || checkpoint.shape().tied_head) info.weight_bytes_per_token += tensor.bytes;
  }
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

}  // namespace hunch
