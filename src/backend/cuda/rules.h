// Rules of requests (backend/ops/logit_rules.h) on the device: copies of rows with their rules applied, for sample() to read.
// Nobody waits: what the host knows goes along as data, and the counts of a request's tokens lie beside it, as long as the
// vocabulary, brought up to date with each call.
#pragma once

#include "backend/cuda/commands.h"
#include "backend/ops/sample.h"
#include "tensor/buffer.h"

namespace hunch {

class RuledRows {
 public:
  // Room for the rows of this call beside those that wait. False: enqueue() first.
  bool has_room(const SampleArgs& args) const;
  // `args` without its state, its logits the copies that enqueue() makes. Taken now: everything but logits and drafts.
  SampleArgs add(Commands&, const SampleArgs& args);
  // Two launches at most for all rows that wait.
  void enqueue(Commands&);

  // An id that bias or a ban concerns.
  struct Special {
    int32_t id, first_add, adds, banned;
  };
  // Offsets into what travels with the call.
  struct Row {
    const float* from;
    float* to;
    const uint32_t* counts;  // [vocab] in the output; the highest bit: in the prompt. Null: nothing is penalised
    const int32_t* drafts;
    int64_t drafts_stride;
    float repetition, presence, frequency;
    int32_t vocab, mask, path, path_len, specials, num_specials;  // mask: -1: none
  };
  // Tokens that were committed: each counts one more, or, anew, all that there is.
  struct Note {
    uint32_t* counts;
    int32_t vocab, first, tokens, anew;
  };
  struct Counted {
    int32_t id;
    uint32_t value;
  };

 private:
  const uint32_t* counts_of(Commands&, const LogitState&);
  void add_row(const SampleArgs&, int64_t r, const uint32_t* counts, float* to);

  Buffer copies_;
  int64_t used_ = 0;  // floats of them
  std::vector<Row> rows_;
  std::vector<Note> notes_;
  std::vector<Counted> counted_;
  std::vector<uint32_t> masks_;
  std::vector<int32_t> paths_;  // nodes
  std::vector<Special> specials_;
  std::vector<float> adds_;
};

}
