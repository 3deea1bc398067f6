// What an absent option means. The speculation defaults are those that `hunch bench` found best on a two-core CPU with the
// shipped model (docs/results.md).
#pragma once

#include <cstdint>

namespace hunch::defaults {

// llama.cpp's sampling defaults, where neither the user nor the model says otherwise.
inline constexpr float kTemperature = 0.8f, kTopP = 0.95f, kMinP = 0.05f;
inline constexpr int kTopK = 40;

inline constexpr int kTreeTopK = 10;  // learned drafters
inline constexpr int kDraftTokens = 7;
inline constexpr int kMostDrafts = 256;  // nodes of a tree that backends attend to, beside the pending token
inline constexpr double kRatio = 0.03;
inline constexpr double kCoarserFrom = 8;  // bits a weight from which drafts read a 4-bit copy unless told
inline constexpr int kStreamingSinks = 4;
inline constexpr int kSelectingRows = 2;  // of the prompt, for the first selection
// Requests at once. On a device many more cost little, each; what a step then has room for to verify, in all, if that is less.
inline constexpr int kSeats = 16, kSeatsOfDevices = 256;
inline constexpr int kChunk = 512, kChunkAlone = 2048;  // rows of prompts; on a device while no request decodes
inline constexpr int kVerifyRowsPerSequence = 8, kVerifyRowsOfCrowds = 512;
inline constexpr int64_t kKvMemory = int64_t(4) << 30;  // KV memory that is taken unasked on a CPU, beyond one full context

}
