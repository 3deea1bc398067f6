// Products with weights and embedding look-ups: contract in backend/ops/matmul.h. Weights are dequantised to fp32 when loaded and
// activations stay fp32, so this is what every encoding approximates.

#include "backend/ops/matmul.h"

#include "backend/reference/dot.h"
#include "backend/reference/reference_backend.h"
#include "checkpoint/quantise.h"

namespace hunch {

std::unique_ptr<Weight> ReferenceBackend::load_weight(const Tensor& matrix) {
  HUNCH_CHECK(matrix.shape.size() == 2);
  auto weight = std::make_unique<ReferenceWeight>();
  weight->dtype = matrix.dtype;
  weight->out_dim = matrix.shape[0], weight->in_dim = matrix.shape[1];
  weight->values.resize(weight->out_dim * weight->in_dim);
  weight->bytes = weight->values.size() * sizeof(float);
  for (int64_t i = 0; i < weight->out_dim; ++i) dequantise_row(matrix, i, weight->values.data() + i * weight->in_dim);
  return weight;
}

void ReferenceBackend::matmul(const MatmulArgs& args) {
  for (const Product& product : args.products) {
    const auto& weight = static_cast<const ReferenceWeight&>(*product.weight);
    HUNCH_CHECK(args.x.extent[1] == weight.in_dim && product.out.extent[1] == weight.out_dim);
    HUNCH_CHECK(args.x.extent[0] == product.out.extent[0]);
    for (int64_t i = 0; i < weight.out_dim; ++i) {
      for (int64_t r = 0; r < args.x.extent[0]; ++r) {
        float& out = product.out(r, i);
        const float sum = dot(&args.x(r, 0), weight.row(i), weight.in_dim) + (product.bias ? product.bias[i] : 0.0f);
        out = args.accumulate ? out + sum : sum;
      }
    }
    counters_.weight_bytes += weight.bytes;
  }
}

void ReferenceBackend::embed(const EmbedArgs& args) {
  const auto& table = static_cast<const ReferenceWeight&>(*args.table);
  for (int64_t r = 0; r < args.ids.extent[0]; ++r) {
    const bool known = args.ids(r) >= 0 && args.ids(r) < table.out_dim;
    if (known) std::copy_n(table.row(args.ids(r)), table.in_dim, &args.out(r, 0));
    else std::fill_n(&args.out(r, 0), table.in_dim, 0.0f);
  }
}

}
