// See host_ops.h. Copies take their direction from the addresses: results may lie in device or in shared memory.
#include "backend/cuda/host_ops.h"

#include "backend/cuda/device.h"

namespace hunch {
namespace {

// [rows][columns] between places whose rows are so far apart; returns when all is there (device.h, copy_to_device).
template <class T>
void copy(T* to, int64_t to_stride, const T* from, int64_t from_stride, int64_t rows, int64_t columns) {
  if (rows == 0 || columns == 0) return;
  const auto pitch = [&](int64_t stride) { return size_t(std::max(stride, columns)) * sizeof(T); };
  HUNCH_CUDA_CHECK(
      cudaMemcpy2D(to, pitch(to_stride), from, pitch(from_stride), columns * sizeof(T), size_t(rows), cudaMemcpyDefault));
  HUNCH_CUDA_CHECK(cudaStreamSynchronize(cudaStreamLegacy));
}
template <class T>
void put(View<T, 2> to, const T* from) {
  copy(to.data, to.stride[0], from, to.extent[1], to.extent[0], to.extent[1]);
}
template <class T>
void put(View<T, 1> to, const T* from) {
  copy(to.data, to.stride[0], from, 1, to.extent[0], 1);
}

}

View<const float, 2> HostOps::fetch(View<const float, 2> rows, int64_t columns) {
  HUNCH_CHECK(rows.stride[1] == 1);
  in_.resize(rows.extent[0] * columns);
  copy(in_.data(), columns, rows.data, rows.stride[0], rows.extent[0], columns);
  return View<const float, 2>(in_.data(), rows.extent[0], columns);
}

void HostOps::top_k(Commands& commands, const TopKArgs& args) {
  if (!commands.wait().ok()) return;
  TopKArgs host = args;
  const int64_t sets = args.scores.extent[0];
  host.scores = fetch(args.scores, args.n);
  ids_.resize(sets * args.count * args.block);
  host.index = View<int32_t, 2>(ids_.data(), sets, args.count * args.block);
  reference_.top_k(host);
  View<int32_t, 2> to = args.index;
  to.extent[0] = sets, to.extent[1] = args.count * args.block;
  put(to, ids_.data());
}

void HostOps::sample(Commands& commands, const SampleArgs& args) {
  if (!commands.wait().ok()) return;
  SampleArgs host = args;
  const int64_t rows = args.logits.extent[0], vocab = args.logits.extent[1];
  host.logits = fetch(args.logits, vocab);
  tokens_.resize(rows), host.tokens = View<int32_t, 1>(tokens_.data(), rows);
  if (args.probs.data) out_.resize(rows * vocab), host.probs = View<float, 2>(out_.data(), rows, vocab);
  if (args.seconds.data) seconds_.resize(rows), host.seconds = View<int32_t, 1>(seconds_.data(), rows);
  if (args.leads.data) values_.resize(rows), host.leads = View<float, 1>(values_.data(), rows);
  const int64_t ranks = num_ranked(args);
  if (args.ranked.data) ids_.resize(rows * ranks), host.ranked = View<int32_t, 2>(ids_.data(), rows, ranks);
  if (args.shares.data) shares_.resize(rows * ranks), host.shares = View<float, 2>(shares_.data(), rows, ranks);
  reference_.sample(host);
  put(args.tokens, tokens_.data());
  if (args.probs.data) put(args.probs, out_.data());
  if (args.seconds.data) put(args.seconds, seconds_.data());
  if (args.leads.data) put(args.leads, values_.data());
  if (args.ranked.data) put(args.ranked, ids_.data());
  if (args.shares.data) put(args.shares, shares_.data());
}

void HostOps::log_probs(Commands& commands, const LogProbsArgs& args) {
  if (!commands.wait().ok()) return;
  LogProbsArgs host = args;
  const int64_t rows = args.logits.extent[0];
  host.logits = fetch(args.logits, args.logits.extent[1]);
  if (args.ids.data) {
    tokens_.resize(rows), values_.resize(rows);
    copy(tokens_.data(), 1, args.ids.data, args.ids.stride[0], rows, 1);
    host.ids = View<const int32_t, 1>(tokens_.data(), rows), host.values = View<float, 1>(values_.data(), rows);
  }
  ids_.resize(rows * args.count), out_.resize(rows * args.count);
  host.top_ids = View<int32_t, 2>(ids_.data(), rows, args.count);
  host.top_values = View<float, 2>(out_.data(), rows, args.count);
  reference_.log_probs(host);
  if (args.ids.data) put(args.values, values_.data());
  if (args.count == 0) return;
  put(args.top_ids, ids_.data());
  put(args.top_values, out_.data());
}

}
