// The experts of gpt-oss folders, which keep MXFP4 codes and scales in tensors of their own, rows of gate and up in turns:
// "blk.3.ffn_gate_up_exps.{blocks,scales,bias}" and "blk.3.ffn_down_exps.{blocks,scales}" become the names of expert_tensors.h.
// Used by Checkpoint::open. Codes stay where they are (SplitBlocks); biases are copied.
#pragma once

#include <map>

#include "checkpoint/checkpoint.h"
#include "checkpoint/tensor_entry.h"

namespace hunch {

class SplitExperts {
 public:
  static bool takes(std::string_view canonical_name);
  // In any order and from any file, which stays mapped; `source` stands in messages.
  Status add(std::string name, TensorEntry entry, FileBytes file, std::string_view source);
  // Appends matrices expert by expert and fp32 biases, valid as long as this object. An error where one lacks its other half, or
  // type or shape are not what the model calls for.
  Status join(const ModelShape& shape, std::string_view source, std::vector<Tensor>& out);

 private:
  struct Part {
    TensorEntry entry;
    const std::byte* data = nullptr;
  };
  Status join_matrices(
      const ModelShape&, const std::string& stem, const Part& blocks, std::string_view source, std::vector<Tensor>& out);
  Status join_bias(
      const ModelShape&, const std::string& stem, const Part& bias, std::string_view source, std::vector<Tensor>& out);

  std::map<std::string, Part, std::less<>> parts_;
  std::vector<std::unique_ptr<float[]>> biases_;
};

}
