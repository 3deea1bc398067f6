// A Hugging Face folder: which files hold the weights and what stands beside them. Used by Checkpoint::open.
#pragma once

#include "checkpoint/config.h"

namespace hunch {

inline constexpr size_t kMostConfigBytes = 16 << 20;

bool exists(const std::string& path);

struct ShardList {
  std::vector<std::string> files;                     // full paths
  std::vector<std::pair<std::string, size_t>> where;  // tensor name (the file's spelling) -> index into files; empty: no index
};

// model.safetensors, or the shards of model.safetensors.index.json, which is not trusted: plain file names only, and no link may
// lead out of the folder (or, of a snapshot in a hub cache, out of the model's own cache).
Result<ShardList> list_shards(const std::string& folder);

// The texts beside the weights; only config.json is required.
Result<FolderTexts> read_folder_texts(const std::string& folder);

// Weights in a form that only Python reads: by the name's ending, and the error that gives the command that converts them.
bool is_pickle(const std::string& path);
Error pickled_weights(const std::string& path);

}
