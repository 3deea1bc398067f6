// What stands between the products of Q, K and V and attention, in one launch: queries and keys normed and turned in place
// (ops/rope.h), rows of K and V stored (ops/kv.h), and rows copied that are wanted only later (ops/copy.h).
#pragma once

#include "backend/backend.h"
#include "backend/cuda/commands.h"

namespace hunch {

class CudaReady {
 public:
  // Stores of these keys, or a part of them, go with them; others follow in a launch of their own, as do copies of wide rows.
  // No copy reads or writes what the rest does. Heads of up to 512 elements.
  void enqueue(Commands&, const ReadyHeadsArgs&, std::span<const StoreKvArgs>, std::span<const CopyRowsArgs>);

 private:
  std::vector<int32_t> store_of_row_;  // kept: the same for every layer is copied once
  std::vector<StoreKvArgs> other_stores_;
  std::vector<CopyRowsArgs> other_copies_;
};

}
