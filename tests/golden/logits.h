// What tests of this folder share: goldens, and logits of chosen positions of a prompt, as a prefill of chunks computes them.
#pragma once

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "../conformance/runs.h"

namespace hunch::test {

inline nlohmann::json read_golden(const std::string& name) {
  std::ifstream file(tree_path() + "/models/golden/" + name + ".json");
  HUNCH_CHECK(file.good());
  return nlohmann::json::parse(file);
}

// Logits of every prompt row, [position][vocab]; `wanted` positions only are kept.
inline std::map<int64_t, std::vector<float>> logits_of(Engine& engine, const Ints& ids, const std::vector<int64_t>& wanted) {
  EngineParts& parts = engine.parts();
  const ModelShape& shape = parts.model->shape();
  Sequence sequence;
  sequence.pages = PageTable(parts.context_len);
  HUNCH_CHECK(sequence.pages.grow_to(std::ssize(ids), *parts.pool));
  std::map<int64_t, std::vector<float>> out;
  const int64_t chunk = parts.options.chunk_len;
  Buffer hidden = parts.backend->allocate(size_t(chunk * shape.hidden) * sizeof(float));
  Buffer row = parts.backend->allocate(shape.vocab_size * sizeof(float));
  for (int64_t done = 0; done < std::ssize(ids); done += chunk) {
    const int64_t rows = std::min<int64_t>(chunk, std::ssize(ids) - done);
    const Segment segment{.phase = Segment::Phase::Prefill, .sequence = &sequence, .first_position = done, .num_rows = int(rows)};
    parts.pass->begin(View<const int32_t, 1>(ids.data() + done, rows), std::span(&segment, 1));
    auto x = hidden.view<float>(rows, shape.hidden);
    parts.model->forward(*parts.pass, x);
    for (const int64_t at : wanted) {
      if (at < done || at >= done + rows) continue;
      auto logits = row.view<float>(1, shape.vocab_size);
      parts.model->logits(*parts.backend, View<const float, 2>(x).slice(at - done, 1), logits);
      out[at].assign(&logits(0, 0), &logits(0, 0) + shape.vocab_size);
    }
  }
  sequence.pages.release_past(0, *parts.pool);
  return out;
}

}
