// Products of weights with the rows of a prompt's chunk: the bits of products_kernel.cuh in three quarters of the time, and
// the gate of an FFN with the products that it takes.
#pragma once

#include "backend/cuda/commands.h"
#include "backend/cuda/products_args.cuh"
#include "base/dtype.h"

namespace hunch {

// Whether the kernel can take these products, of weights of this form; whether it should, beside one that takes `time` (SMs' time
// of a tile x 128 rows).
bool fits_chunk(const ProductsOnDevice&, DType form);
bool wants_chunk(const ProductsOnDevice&, double time);
// `args` without a plan: products, rows and their packed activations of whole 256 rows. With `gated` two products, the gate and
// what it lets through; neither is stored, and there is one run of records.
void enqueue_chunk(Commands&, ProductsOnDevice args);

// Codes as the plain weights that products make of them, in so many bytes of `to`; `args` has those products afterwards.
size_t unpacked_bytes(const ProductsOnDevice&, DType form);
void enqueue_unpack(Commands&, ProductsOnDevice& args, DType form, std::byte* to);

}
