// Attention on the tensor cores: a persistent grid of one producer warpgroup (attention_stream.cuh) and two consumers a block. A
// consumer holds a tile of up to 64 packed rows (row x query head of one KV head) and folds tile after tile of 64 keys: scores,
// online softmax, values. Unpaired, each consumer has its own ring and its own work; paired, both read the same tiles. Included
// by attention.cu; the order of arithmetic stands in attention_args.h.
#pragma once

#include "backend/cuda/attention_columns.cuh"
#include "backend/cuda/attention_rows.cuh"

namespace hunch {

template <class Consumer, bool kPaired>
__global__ void __launch_bounds__(kAttentionThreads, 1) attention_kernel(const AttentionDevice* args) {
#if HUNCH_HOPPER
  // Producers read what is settled at once, consumers begin with queries that the kernel before makes: each role waits itself.
  using Shared = typename Consumer::Shared;
  extern __shared__ __align__(1024) char memory[];
  const uint32_t shared = shared_address(memory);
  const AttentionDevice& a = *args;
  if (threadIdx.x == 0) {
    for (int ring = 0; ring < 2; ++ring)
      for (int stage = 0; stage < Shared::kStages; ++stage) {
        const uint32_t full = shared + Shared::kBarriers + uint32_t((ring * 2 * Shared::kStages + stage) * 8);
        for (int half = 0; half < (Shared::kApart ? 2 : 1); ++half) {
          const uint32_t of_half = full + uint32_t(half * Shared::kBarrierBytes);
          barrier_init(of_half, 32);
          barrier_init(of_half + Shared::kStages * 8, kPaired ? 8 : 4);  // a lane of every warp that reads the stage
        }
      }
    for (int queue = 0; queue < 2; ++queue)
      for (int slot = 0; slot < kQueueSlots; ++slot) {
        const uint32_t full = shared + Shared::kQueues + uint32_t((queue * 2 * kQueueSlots + slot) * 8);
        barrier_init(full, 1);
        barrier_init(full + kQueueSlots * 8, kPaired ? 12 : 6);  // every warp of the worker
      }
    if (Shared::kOfCodes)
      for (int half = 0; half < 4 * 2; ++half) barrier_init(shared + Shared::kArrived + uint32_t(half * 8), 1);
    barrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    give_registers<Consumer::kProducerRegisters>();
    constexpr int kAtOnce = Consumer::kProducerRegisters >= 120 ? 4 : 2;
    if constexpr (Shared::kOfCodes) CodeProducer<Shared, kPaired, kAtOnce>(a, shared, memory).run();
    else produce<Shared, kPaired>(a, shared, memory);
  } else {
    take_registers<504 / 2 - Consumer::kProducerRegisters / 2>();
    Consumer(a, shared, memory).run();
  }
#endif
}

}
