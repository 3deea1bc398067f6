// Small kernels: copies between ops, blocks of scores and of lists, queries against bounds. Contracts in backend/ops/.
#pragma once

#include "backend/backend.h"
#include "backend/cuda/commands.h"

namespace hunch {

// Whether this program holds kernels that the device in use can run, and for which compute capability they were compiled (80,
// 90).
cudaError_t look_for_code(int* compiled_for = nullptr);

void enqueue_copy_rows(Commands&, std::span<const CopyRowsArgs>);  // one launch for all
void enqueue_copy_tokens(Commands&, std::span<const CopyTokensArgs>);
void enqueue_scatter_columns(Commands&, const ScatterColumnsArgs&);
void enqueue_reduce_scores(Commands&, const ReduceScoresArgs&);
void enqueue_split_signs(Commands&, const SplitSignsArgs&);
// TopKArgs without scores: the first and the last entries.
void enqueue_ends(Commands&, const TopKArgs&);

}
