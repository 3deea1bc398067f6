// Counter-based noise: Philox4x32-10 (Salmon et al., SC 2011). A draw is a function of its key and counter alone, so batch
// make-up, speculation and preemption cannot change it.
#pragma once

#include <array>
#include <cstdint>

namespace hunch {

// Disjoint uses of a request's noise. Target noise decides tokens under rule `match` (the drafter shares it); the other three
// serve rule `ratio`, which needs draft, coin and residual to be independent.
enum class NoiseStream : uint32_t { Target = 0, Draft = 1, Accept = 2, Residual = 3 };

// Draft noise of step `step` of a round. A position may be drafted again in a later round, from a q that depends on what was
// drafted there before (a selection has seen the rejected rows): with the same noise again the draft would not be a sample of q.
constexpr NoiseStream draft_stream(int step) { return NoiseStream(uint32_t(NoiseStream::Draft) + 4 * uint32_t(step)); }

struct NoiseKey {
  uint64_t seed = 0;
  uint32_t sample = 0;  // which of n samples of one prompt
};

inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t(0xD2511F53u) * counter[0], b = uint64_t(0xCD9E8D57u) * counter[2];
    counter = {uint32_t(b >> 32) ^ counter[1] ^ key[0], uint32_t(b), uint32_t(a >> 32) ^ counter[3] ^ key[1], uint32_t(a)};
    key[0] += 0x9E3779B9u;
    key[1] += 0xBB67AE85u;
  }
  return counter;
}

// 32 random bits for `index` (a token id, or 0 for a coin) at absolute position `position` of the request.
// Counter layout: {index / 4, position, stream, sample}; lane index % 4.
inline uint32_t noise_bits(const NoiseKey& key, NoiseStream stream, uint32_t position, uint32_t index) {
  const auto block =
      philox4x32({index / 4, position, uint32_t(stream), key.sample}, {uint32_t(key.seed), uint32_t(key.seed >> 32)});
  return block[index % 4];
}

// Bits to a uniform in (0, 1): (x + 0.5) / 2^32, never 0 or 1.
inline double uniform_from_bits(uint32_t bits) { return (double(bits) + 0.5) * 0x1p-32; }

inline double uniform(const NoiseKey& key, NoiseStream stream, uint32_t position, uint32_t index) {
  return uniform_from_bits(noise_bits(key, stream, position, index));
}

}
