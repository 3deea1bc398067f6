// Products with weights and embedding look-ups on the device: contract in backend/ops/matmul.h. Activations are rounded to bf16
// (weights: weights.h), sums are fp32. One launch for all products of a call that share encoding and splits (two with more than
// 64 rows or so: activations are packed first). All pointers, biases and ids too, are device memory. With more rows than a few,
// up to 2 bytes of workspace per activation.
#pragma once

#include "backend/cuda/commands.h"
#include "backend/ops/matmul.h"

namespace hunch {

void enqueue_matmul(Commands& commands, const MatmulArgs& args);
void enqueue_embed(Commands& commands, const EmbedArgs& args);
// False, and nothing is done, where its ops one by one are as good.
bool enqueue_feed_forward(Commands& commands, const FeedForwardArgs& args);

// For tests, the same bits. Packed: through the workspace also where blocks would keep the activations themselves; Plain: the
// kernel of devices that are not Hopper; Chunk: that of a chunk (chunk_products.h), where it can.
enum class ActivationPath { Auto, Packed, Plain, Chunk };
void enqueue_matmul(Commands& commands, const MatmulArgs& args, ActivationPath path);

}
