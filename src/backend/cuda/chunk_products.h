// Products of plain weights with the rows of a prompt's chunk: the bits of products_kernel.cuh in three quarters of the time, and
// the gate of an FFN with the products that it takes.
#pragma once

#include "backend/cuda/commands.h"
#include "backend/cuda/products_args.cuh"

namespace hunch {

// Whether the kernel can take these products; whether it should, beside one that takes `time` (SMs' time of a tile x 128 rows).
bool fits_chunk(const ProductsOnDevice&);
bool wants_chunk(const ProductsOnDevice&, double time);
// `args` without a plan: products, rows and their packed activations of whole 256 rows. With `gated` two products, the gate and
// what it lets through; neither is stored, and there is one run of records.
void enqueue_chunk(Commands&, ProductsOnDevice args);

}
