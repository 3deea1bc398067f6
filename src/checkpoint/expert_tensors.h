// The matrices of experts. Files hold them one by one or all of a layer in one tensor; here they are one by one:
// "blk.3.ffn_gate.17.weight", ffn_up and ffn_down, beside the router "blk.3.ffn_gate_inp.weight". Used by Checkpoint::open.
#pragma once

#include "base/result.h"
#include "checkpoint/shape.h"
#include "checkpoint/tensor_entry.h"

namespace hunch {

bool is_expert_matrix(std::string_view canonical_name);  // of a single expert

struct NamedEntry {
  std::string name;
  TensorEntry entry;
};

// The matrices that a tensor of all experts holds: "blk.3.ffn_{gate,up,down}_exps.weight" [experts][out][in], as GGUF has them,
// or "blk.3.ffn_gate_up_exps.weight" [experts][2 width][hidden], the gate's rows before the up's. Empty for any other tensor. An
// error where the shape is not the one that the model calls for, or scales would have to be cut as well (FP8).
Result<std::vector<NamedEntry>> split_experts(
    std::string_view canonical_name, const TensorEntry& entry, const ModelShape& shape, std::string_view source);

}
