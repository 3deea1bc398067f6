// Compressed entries, in the sums of ops/nsa.cpp. A block makes one of a KV head: its entries are fetched and turned side by
// side, as each waits for memory and for sines in fp64, and added in their order.
#pragma once

#include <cuda_bf16.h>

#include "backend/cuda/nsa_args.h"
#include "backend/cuda/ptx.h"

namespace hunch {

constexpr int kNsaCompressParts = 8;  // entries at once, dim / 2 threads each

__global__ void nsa_compress_kernel(const NsaCompressLaunch* args) {
  extern __shared__ float nsa_entries[];  // [cmp_len][K, V][head_dim]: as before any rotation (linear), or weighted
  __shared__ float nsa_key[128];          // before its last rotation
  const NsaCompressLaunch a = *args;
  wait_for_previous();
  let_next_start();
  const int heads = a.runs[0].kv_heads, dim = a.runs[0].raw.head_dim, half = dim / 2;
  const int i = int(threadIdx.x) % half, part = int(threadIdx.x) / half;
  for (int at = int(blockIdx.x); at < a.num_jobs * heads; at += int(gridDim.x)) {
    const NsaCompressDevice job = a.jobs[at / heads];
    const NsaDevice& run = a.runs[job.run];
    const int head = at % heads, first = job.index * run.cmp_stride;
    const float frequency = a.inv_freq[i], angle = float(first) * frequency, cosine = cosf(angle), sine = sinf(angle);
    __syncthreads();  // the job before has been read
    for (int m = part; m < run.cmp_len; m += kNsaCompressParts) {
      const int entry = job.listed < 0 ? first + m : a.places[job.listed + m];
      const auto* row = reinterpret_cast<const __nv_bfloat16*>(
                            run.raw.keys + head * run.raw.head_bytes + run.raw_pages[entry / kPageLen] * run.raw.chunk_bytes) +
          int64_t(entry % kPageLen) * 2 * dim;
      float k[2] = {__bfloat162float(row[i]), __bfloat162float(row[i + half])};
      float v[2] = {__bfloat162float(row[dim + i]), __bfloat162float(row[dim + i + half])};
      const auto turn_back = [&](float c, float s) {
        const float x = k[0], y = k[1];
        k[0] = x * c + y * s, k[1] = y * c - x * s;
      };
      if (a.rotates) turn_back(float(cos(double(m) * double(frequency))), float(sin(double(m) * double(frequency))));
      if (a.linear) {
        if (a.rotates) turn_back(cosine, sine), k[0] /= a.magnitude, k[1] /= a.magnitude;
      } else {
        const float key = a.key[head * run.cmp_len + m], value = a.value[head * run.cmp_len + m];
        for (int h = 0; h < 2; ++h) k[h] *= key, v[h] *= value;
      }
      float* to = nsa_entries + m * 2 * dim + i;
      to[0] = k[0], to[half] = k[1], to[dim] = v[0], to[dim + half] = v[1];
    }
    __syncthreads();
    std::byte* to = job.listed >= 0 ? const_cast<std::byte*>(run.owned) + (int64_t(head) * run.num_owned + job.to) * dim * 4
                                    : run.compressed.keys + head * run.compressed.head_bytes +
            run.compressed_pages[job.to / kPageLen] * run.compressed.chunk_bytes + int64_t(job.to % kPageLen) * dim * 4;
    auto* row = reinterpret_cast<__nv_bfloat16*>(to);
    const int d = int(threadIdx.x);  // of K, then of V
    if (d < 2 * dim) {
      double sum = 0;
      if (a.linear) {
        const float* weights = (d < dim ? a.key : a.value) + int64_t(head) * run.cmp_len * dim * dim + d % dim;
        for (int m = 0; m < run.cmp_len; ++m)
          for (int c = 0; c < dim; ++c)
            sum += double(nsa_entries[(2 * m + d / dim) * dim + c] * weights[(int64_t(m) * dim + c) * dim]);
      } else {
        for (int m = 0; m < run.cmp_len; ++m) sum += double(nsa_entries[m * 2 * dim + d]);
      }
      if (d < dim) nsa_key[d] = float(sum);
      else row[d] = __float2bfloat16_rn(float(sum));
    }
    __syncthreads();
    if (part > 0) continue;
    const bool turned = a.rotates && !a.linear;  // the sum of a weighted row has its rotation already
    float k[2];
    for (int h = 0; h < 2; ++h) {
      k[h] = turned ? 0.0f : nsa_key[i + h * half];
      if (a.key_offset) k[h] += a.key_offset[head * dim + i + h * half];
    }
    if (a.rotates) {
      const float x = k[0], y = k[1];
      k[0] = (x * cosine - y * sine) * a.magnitude + (turned ? nsa_key[i] : 0.0f);
      k[1] = (y * cosine + x * sine) * a.magnitude + (turned ? nsa_key[i + half] : 0.0f);
    }
    for (int h = 0; h < 2; ++h) row[i + h * half] = __float2bfloat16_rn(k[h]);
  }
}

}
