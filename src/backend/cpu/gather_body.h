// Copies single entries into the compact store: K line by line with one permutation each, V row by row. Entries whose sources
// share a K tile move together: a source tile is streamed once. Contract: ops/kv.h.
#pragma once

namespace hunch::HUNCH_ISA {

inline constexpr int kTilesAhead = 3, kRowsAhead = 16;  // sources are scattered: no prefetcher finds them

// Lanes of a destination tile that come from one source tile: destination lanes [at, at + count) take `lanes`.
struct LaneMove {
  int at = 0, count = 0;
  int lanes[16];
};

template <class T>
HUNCH_SIMD void move_each_lane(const LaneMove& move, int lines, const T* from, T* to, const T* ahead) {
  for (int line = 0; line < lines; ++line, from += 16, to += 16, ahead += 16) {
    __builtin_prefetch(ahead);
    for (int i = 0; i < move.count; ++i) to[move.at + i] = from[move.lanes[i]];
  }
}
// to[line][at + i] = from[line][lanes[i]] for 32-bit lanes (F32, or bf16 pairs); lanes from `at` on are free to be overwritten,
// those before it are kept. `ahead` is the source tile that comes kTilesAhead later.
HUNCH_SIMD void move_lanes(const LaneMove& move, int lines, const uint32_t* from, uint32_t* to, const uint32_t* ahead) {
#if HUNCH_LEVEL >= 2
  alignas(64) int32_t source[16] = {};
  for (int i = 0; i < move.count; ++i) source[move.at + i] = move.lanes[i];
  const __m512i index = _mm512_load_si512(source);
  const __mmask16 moved = __mmask16(((1u << move.count) - 1) << move.at);
  for (int line = 0; line < lines; ++line, from += 16, to += 16, ahead += 16) {
    __builtin_prefetch(ahead);
    _mm512_store_si512(to, _mm512_mask_permutexvar_epi32(_mm512_load_si512(to), moved, index, _mm512_load_si512(from)));
  }
#else
  move_each_lane(move, lines, from, to, ahead);
#endif
}
HUNCH_SIMD void move_lanes(const LaneMove& move, int lines, const uint16_t* from, uint16_t* to, const uint16_t* ahead) {
#if HUNCH_LEVEL >= 2
  alignas(32) int16_t source[16] = {};
  for (int i = 0; i < move.count; ++i) source[move.at + i] = int16_t(move.lanes[i]);
  const __m256i index = _mm256_load_si256((const __m256i*)source);
  const __mmask16 moved = __mmask16(((1u << move.count) - 1) << move.at);
  for (int line = 0; line < lines; ++line, from += 16, to += 16, ahead += 16) {
    __builtin_prefetch(ahead);
    _mm256_store_si256((__m256i*)to,
        _mm256_mask_permutexvar_epi16(
            _mm256_load_si256((const __m256i*)to), moved, index, _mm256_load_si256((const __m256i*)from)));
  }
#else
  move_each_lane(move, lines, from, to, ahead);
#endif
}

// Lines of bytes, `lines` a multiple of 16: a register takes as many lines as fit, all with the same permutation.
HUNCH_SIMD void move_lanes(const LaneMove& move, int lines, const uint8_t* from, uint8_t* to, const uint8_t* ahead) {
#if HUNCH_LEVEL >= 1
  alignas(16) uint8_t source[16], kept[16];
  for (int i = 0; i < 16; ++i) source[i] = 0x80, kept[i] = i < move.at ? 0xff : 0;  // 0x80: zero
  for (int i = 0; i < move.count; ++i) source[move.at + i] = uint8_t(move.lanes[i]);
  const __m256i index = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i*)source));
  const __m256i keep = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i*)kept));
  for (int line = 0; line < lines; line += 2, from += 32, to += 32, ahead += 32) {
    __builtin_prefetch(ahead);
    const __m256i moved = _mm256_shuffle_epi8(_mm256_loadu_si256((const __m256i*)from), index);
    _mm256_storeu_si256((__m256i*)to, _mm256_or_si256(moved, _mm256_and_si256(keep, _mm256_loadu_si256((const __m256i*)to))));
  }
#else
  move_each_lane(move, lines, from, to, ahead);
#endif
}

// V of destination entries e and e + 1 (e even) of a block of pairs, from two source rows: elements of two bytes (bf16) are
// halves of 32-bit words, of one byte (codes) two such pairs a word.
template <int kElementBytes>
HUNCH_SIMD void join_pair(const uint32_t* even, bool even_is_odd, const uint32_t* odd, bool odd_is_odd, int words, uint32_t* to) {
  constexpr uint32_t kBits = 8 * kElementBytes, kLow = kElementBytes == 2 ? 0xffffu : 0x00ff00ffu;
  const uint32_t even_shift = even_is_odd ? kBits : 0, odd_shift = odd_is_odd ? kBits : 0;
  for (int i = 0; i < words; ++i) to[i] = ((even[i] >> even_shift) & kLow) | (((odd[i] >> odd_shift) & kLow) << kBits);
}

HUNCH_SIMD int64_t source_of(const GatherItem& item, int64_t i) {
  return i < item.count ? item.index[i] : item.tail_first + (i - item.count);
}
HUNCH_SIMD std::byte* chunk_of(const KeyPlane& plane, int64_t entry) { return chunk_at(plane, entry / kBlockLen); }
// Coded: of an entry's K (half 0) or V (half: chunk_bytes / 2).
template <class Kv>
HUNCH_SIMD float* scale_of(const KeyPlane& plane, int64_t entry, size_t half) {
  return scales_of<Kv>(chunk_of(plane, entry) + half, plane.padded_dim) + entry % kBlockLen;
}

// The first entry at or after `at` whose source lies in another K tile than that of `at`, or last.
HUNCH_SIMD int64_t next_tile(const GatherItem& item, int64_t at) {
  if (at >= item.last) return item.last;
  const int64_t tile = source_of(item, at) / kLanes;
  while (++at < item.last && source_of(item, at) / kLanes == tile) {}
  return at;
}
HUNCH_SIMD std::byte* tile_of(const KeyPlane& plane, int64_t entry, size_t tile_bytes) {
  return chunk_of(plane, entry) + size_t(entry % kBlockLen / kLanes) * tile_bytes;
}

// The entries from `at` on, before `end`, whose sources share a K tile, to their lanes of the tile `to`; that of entry `look` is
// asked for. Returns the one behind them.
template <class Lane>
HUNCH_SIMD int64_t move_run(const GatherItem& item, int64_t at, int64_t end, int lines, std::byte* to, int64_t look) {
  const size_t tile_bytes = size_t(lines) * kLanes * sizeof(Lane);
  const int64_t source = source_of(item, at);
  LaneMove move;
  move.at = int(at % kLanes);
  do {
    move.lanes[move.count++] = int(source_of(item, at++) % kLanes);
  } while (at < end && source_of(item, at) / kLanes == source / kLanes);
  const std::byte* from = tile_of(item.from, source, tile_bytes);
  const std::byte* ahead = look < item.last ? tile_of(item.from, source_of(item, look), tile_bytes) : from;
  move_lanes(move, lines, reinterpret_cast<const Lane*>(from), reinterpret_cast<Lane*>(to), reinterpret_cast<const Lane*>(ahead));
  return at;
}

// Lane: of a K line, with Kv::kLaneDims dimensions.
template <class Kv, class Lane>
size_t gather(const GatherItem& item) {
  const int padded_dim = item.to.padded_dim, lines = padded_dim / Kv::kLaneDims;
  const size_t tile_bytes = size_t(lines) * kLanes * sizeof(Lane), row_bytes = tile_bytes / kLanes;
  const size_t values = item.to.chunk_bytes / 2;
  size_t bytes_read = 0;
  int64_t look = item.first;
  for (int i = 0; i < kTilesAhead; ++i) look = next_tile(item, look);
  for (int64_t at = item.first; at < item.last;) {  // K: destination entry by destination entry, a source tile at a time
    const int64_t source_tile = source_of(item, at) / kLanes, tile_end = (at / kLanes + 1) * kLanes;
    std::byte* to = tile_of(item.to, at, tile_bytes);
    at = move_run<Lane>(item, at, tile_end < item.last ? tile_end : item.last, lines, to, look);
    if (at / kLanes * kLanes == at && at < item.last && source_of(item, at) / kLanes == source_tile) continue;  // its second half
    look = next_tile(item, look);
    bytes_read += tile_bytes;
  }
  if constexpr (Kv::kEntriesPerLine == 2) {
    const size_t pair_bytes = 2 * row_bytes;
    for (int64_t at = item.first; at < item.last; at += 2) {
      if (at + kRowsAhead < item.last) {
        const int64_t later = source_of(item, at + kRowsAhead);
        const std::byte* ahead = chunk_of(item.from, later) + values + size_t(later % kBlockLen / 2) * pair_bytes;
        for (size_t i = 0; i < pair_bytes; i += 64) __builtin_prefetch(ahead + i);
      }
      const int64_t even = source_of(item, at), odd = at + 1 < item.last ? source_of(item, at + 1) : even;
      const std::byte* a = chunk_of(item.from, even) + values + size_t(even % kBlockLen / 2) * pair_bytes;
      const std::byte* b = chunk_of(item.from, odd) + values + size_t(odd % kBlockLen / 2) * pair_bytes;
      std::byte* to = chunk_of(item.to, at) + values + size_t(at % kBlockLen / 2) * pair_bytes;
      join_pair<Kv::kElementBytes>(reinterpret_cast<const uint32_t*>(a), even % 2 != 0, reinterpret_cast<const uint32_t*>(b),
          odd % 2 != 0, int(pair_bytes / 4), reinterpret_cast<uint32_t*>(to));
      bytes_read += even / 2 == odd / 2 ? pair_bytes : 2 * pair_bytes;
    }
  } else {
    for (int64_t at = item.first; at < item.last; ++at) {
      const int64_t source = source_of(item, at);
      __builtin_memcpy(chunk_of(item.to, at) + values + size_t(at % kBlockLen) * row_bytes,
          chunk_of(item.from, source) + values + size_t(source % kBlockLen) * row_bytes, row_bytes);
    }
    bytes_read += size_t(item.last - item.first) * row_bytes;
  }
  if constexpr (Kv::kCodes) {
    for (int64_t at = item.first; at < item.last; ++at) {
      const int64_t source = source_of(item, at);
      for (size_t half : {size_t(0), values}) *scale_of<Kv>(item.to, at, half) = *scale_of<Kv>(item.from, source, half);
    }
    bytes_read += size_t(item.last - item.first) * 2 * sizeof(float);
  }
  return bytes_read;
}

}
