// Latent attention (LatentShape of checkpoint/shape.h; DeepSeek-V2, section 2.1.2): attend() for layers that have it.
#pragma once

#include "model/layers.h"

namespace hunch {

// x += o(values(attention)): a query is led into the latent by its head's map, [key^T q | rotated q]; one KV head of rows
// [normed latent | rotated key] serves all of them as key and as value; each head's map leads out of the latent again.
void attend_latent(
    Pass&, int layer, const ModelShape&, const AttentionWeights&, BlockScratch&, View<const float, 2> in, View<float, 2> x);
// store_rows() for such layers.
void store_latent(Pass&, int layer, const ModelShape&, const AttentionWeights&, BlockScratch&, View<const float, 2> in);

}
