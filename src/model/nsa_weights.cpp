// Natively trained sparse attention, from a file's tensors to the form of backend/ops/nsa.h.
#include <fmt/format.h>

#include "model/layers.h"
#include "model/rope_frequencies.h"

namespace hunch {
namespace {

// The offset of every key goes through the map once and for all: [kv_head][head_dim].
std::vector<float> mapped_offset(const ModelShape& model, const std::vector<float>& positions, const std::vector<float>& key) {
  const NsaShape& s = model.nsa;
  const size_t dim = model.head_dim, len = s.cmp_len;
  std::vector<float> out;
  for (size_t head = 0; head < size_t(model.kv_heads); ++head)
    for (size_t d = 0; d < dim; ++d) {
      double sum = 0;
      for (size_t m = 0; m < len; ++m) {
        const float* row = positions.data() + (head * len + m) * dim;
        if (s.kind != NsaShape::Kind::Linear) {
          sum += double(key[head * len + m]) * double(row[d]);
          continue;
        }
        for (size_t c = 0; c < dim; ++c) sum += double(row[c]) * double(key[((head * len + m) * dim + c) * dim + d]);
      }
      out.push_back(float(sum));
    }
  return out;
}

}

std::unique_ptr<NsaWeights> load_nsa(Backend& backend, WeightLoader& load, const ModelShape& model, int layer) {
  auto out = std::make_unique<NsaWeights>();
  out->shape = model.nsa;
  const auto name = [layer](const char* part) { return fmt::format("blk.{}.{}", layer, part); };
  out->gate = load.matrix(name("nsa_gate.weight"));
  std::vector<float> key = load.values(name("nsa_cmp_k.weight")), value = load.values(name("nsa_cmp_v.weight"));
  if (model.nsa.kind == NsaShape::Kind::Mean) {
    key.assign(model.kv_heads * model.nsa.cmp_len, 1.0f / float(model.nsa.cmp_len));
    value = key;
  }
  out->key = backend.constant(key), out->value = backend.constant(value);
  const std::vector<float> positions = load.values(name("nsa_cmp_pe.weight"));
  if (!positions.empty()) out->offset = backend.constant(mapped_offset(model, positions, key));
  const RopeFrequencies rope = rope_frequencies(model);
  out->inv_freq = backend.constant(rope.inv_freq);
  out->magnitude = rope.magnitude;
  return out;
}

}
