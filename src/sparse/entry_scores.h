// EntryScores: scratch of a policy that rates entries (or pages): a score per set and entry of the longest sequence it was opened
// for. Policies have one for all sequences, or one each.
#pragma once

#include "backend/backend.h"

namespace hunch {

class EntryScores {
 public:
  EntryScores(Backend& backend, int sets, Memory where = Memory::Device) : backend_(&backend), sets_(sets), where_(where) {}
  // At admission: keeps what it has, or grows (contents are lost then).
  void reserve(int64_t entries) {
    if (entries <= entries_) return;
    memory_ = {};  // first, so that both never exist at once
    memory_ = backend_->allocate(size_t(sets_ * entries) * sizeof(float), where_);
    entries_ = entries;
  }
  View<float, 2> view() const { return memory_.view<float>(sets_, entries_); }  // [sets][entries]
  size_t bytes() const { return memory_.bytes(); }

 private:
  Backend* backend_;
  int sets_;
  Memory where_;
  int64_t entries_ = 0;
  Buffer memory_;
};

}
