#include "engine/parts.h"

#include "base/clock.h"
#include "base/failure.h"
#include "checkpoint/quantise.h"
#include "checkpoint/random_checkpoint.h"
#include "engine/defaults.h"
#include "engine/load_text.h"
#include "engine/strategy_profile.h"
#include "engine/verify_check.h"
#include "engine/vocab_match.h"

namespace hunch {
namespace {

constexpr int kMostMaskWorkers = 8;
constexpr double kMostOfMemory = 0.9;  // that is free, for KV

std::string human_bytes(double bytes) {
  for (const char* unit : {"B", "KiB", "MiB", "GiB"}) {
    if (bytes < 1024 || unit[0] == 'G') return fmt::format("{:.{}f} {}", bytes, unit[0] == 'B' ? 0 : 1, unit);
    bytes /= 1024;
  }
  return {};
}

Result<DType> kv_dtype_named(const std::string& name, const Backend& backend) {
  if (name.empty()) return backend.default_kv_dtype();
  const auto type = name == "fp8_e4m3" ? DType::F8_E4M3 : dtype_named(name);
  if (!type || !is_kv_dtype(*type)) return usage_error("unknown KV type '{}'; known: f32, f16, bf16, i16, q8_0, fp8", name);
  return *type;
}

}

EngineParts::EngineParts() = default;
EngineParts::~EngineParts() {
  if (backend) (void)backend->synchronize();
}

Result<std::unique_ptr<EngineParts>> EngineParts::load(const EngineOptions& options) {
  const auto start = Clock::now();
  auto parts = std::make_unique<EngineParts>();
  parts->options = options;

  if (options.chunk_len != 0 && options.chunk_len < defaults::kSelectingRows)
    return usage_error("prompt chunks of {} rows: at least {} are needed", options.chunk_len, defaults::kSelectingRows);
  if (options.max_draft < 1 || options.max_draft > defaults::kMostDrafts)
    return usage_error("max draft is {}; it must lie in [1, {}]", options.max_draft, defaults::kMostDrafts);

  if (!options.trace.empty()) { HUNCH_TRY(parts->trace, Trace::open(options.trace)); }
  const auto* device = Register<Backend>::find(options.device);
  if (!device) return usage_error("unknown device '{}'; known: {}", options.device, Register<Backend>::names());
  HUNCH_TRY(parts->backend, device->make({.threads = options.threads, .isa = options.isa}));

  if (options.random_weights.empty()) {
    HUNCH_TRY(parts->checkpoint, Checkpoint::open(options.model));
    HUNCH_TRY(parts->tokenizer, load_tokenizer(*parts->checkpoint, options.model));
    const std::vector<Tensor>& tensors = parts->checkpoint->tensors();
    for (size_t i = 0; options.check_tensors && i < tensors.size(); ++i) {
      if (options.progress) options.progress("checking", int64_t(i), std::ssize(tensors));
      if (const Status good = check_values(tensors[i]); !good.ok()) return failure("{}: {}", options.model, good.error().message);
    }
  } else {
    const auto type = dtype_named(options.random_weights);
    if (!type) return usage_error("unknown type of weights '{}'; known: bf16, f16, q8_0, q4_0, ...", options.random_weights);
    HUNCH_TRY(parts->checkpoint, random_checkpoint(options.model, *type));
  }
  const ModelShape& shape = parts->checkpoint->shape();
  if (int& seqs = parts->options.max_num_seqs; seqs == 0)  // a seat of natively sparse attention has memory of its own
    seqs = parts->backend->asynchronous() && !shape.nsa.used() ? defaults::kSeatsOfDevices : defaults::kSeats;
  const auto* family = Register<Model>::find(shape.family);
  if (!family) return failure("unknown architecture '{}'; known: {}", shape.family, Register<Model>::names());
  Model::Setup setup{.backend = parts->backend.get(), .checkpoint = parts->checkpoint.get()};
  if (options.progress) setup.progress = [&](int64_t done, int64_t total) { options.progress("loading", done, total); };
  HUNCH_TRY(parts->model, family->make(setup));

  if (!options.reuse_schedule.empty()) {
    HUNCH_TRY(const ReuseSchedule schedule, ReuseSchedule::load(options.reuse_schedule, identity_of(*parts->checkpoint)));
    parts->reuse_layers = schedule.layers();
  }
  if (!options.strategies.empty()) {
    HUNCH_TRY(StrategyProfile loaded, StrategyProfile::load(options.strategies, identity_of(*parts->checkpoint)));
    parts->strategies = std::make_unique<const StrategyProfile>(std::move(loaded));
  }

  HUNCH_TRY(DType kv_dtype, kv_dtype_named(options.kv_dtype, *parts->backend));
  if (options.kv_dtype.empty() && is_coded(kv_dtype) && (shape.nsa.used() || shape.head_dim > kMaxCodedDim))
    kv_dtype = DType::BF16;
  if (!parts->backend->keeps_kv(kv_dtype)) return usage_error("KV type {} is for the CPU: use bf16", dtype_info(kv_dtype).name);
  if (is_coded(kv_dtype) && shape.head_dim > kMaxCodedDim)
    return usage_error("KV type {} reads heads of up to {} dimensions, this model has {}: use bf16", dtype_info(kv_dtype).name,
        kMaxCodedDim, shape.head_dim);
  if (shape.nsa.used() && (is_coded(kv_dtype) || kv_dtype == DType::F8_E4M3))
    return usage_error(
        "a model with natively trained sparse attention keeps K and V as bf16, f16 or f32: choose one of these by --kv-type");
  if (shape.nsa.used() && !parts->backend->nsa_reads(kv_dtype))
    return usage_error("natively trained sparse attention runs on this device with --kv-type bf16 alone");
  parts->geometry = {
      .dtype = kv_dtype,
      .layers = shape.layers,
      .kv_heads = shape.kv_heads,
      .head_dim = shape.head_dim,
      .scales = parts->checkpoint->kv_scales(),
  };
  if (!options.verify_calibration.empty()) {
    const std::string identity = identity_of(*parts->checkpoint).text();
    HUNCH_TRY(parts->calibration, VerifyCalibration::load(options.verify_calibration, identity, shape.layers));
  }
  HUNCH_OK(parts->load_drafters());
  HUNCH_OK(parts->plan_limits());
  HUNCH_OK(parts->plan_memory());
  parts->pass.emplace(*parts->backend, parts->model->shape(), *parts->store,
      PassLimits{.max_rows = int(parts->limits.most_rows()),
          .max_segments = parts->options.max_num_seqs,
          .compressed = parts->compressed.get()});
  parts->load_ms = ms_since(start);
  return parts;
}

// Before memory is planned: what they keep of every page counts.
Status EngineParts::load_drafters() {
  for (DrafterOptions& wanted : options.drafters) {
    Learned made;
    const bool latent = model->shape().latent.used();
    const bool own = wanted.path.empty() || (latent && wanted.path == options.model);  // the model's own checkpoint
    if (own) wanted.path = options.model;
    if (own && latent && (wanted.method.empty() || wanted.method == "mtp")) {
      made.name = wanted.method = "mtp";  // its checkpoint is open already, the module part of it
    } else {
      auto file = DrafterFile::open(wanted.path, wanted.method);
      if (own && !file.ok())
        return usage_error(
            "{} brings no prediction module for method {}; name a drafter by --model-draft", options.model, wanted.method);
      HUNCH_TRY(made.file, std::move(file));
      made.name = wanted.method = made.file->method();
    }
    made.path = wanted.path;
    if (learned_named(made.name)) return usage_error("two drafters of method {}: load one of a kind", made.name);
    const auto* entry = Register<Proposer>::find(made.name);
    if (!entry)
      return usage_error("{}: no drafter of method '{}'; known: {}", wanted.path, made.name, Register<Proposer>::names());
    VocabMap vocab;
    if (made.name == "draft_model") { HUNCH_TRY(vocab, open_draft_model(wanted, made)); }
    HUNCH_TRY(made.proposer,
        entry->make({.backend = backend.get(),
            .target = model.get(),
            .max_draft = options.max_draft,
            .max_sequences = options.max_num_seqs,
            .options = {.feed_norm = wanted.feed_norm, .recycle_norm = wanted.recycle_norm},
            .file = made.file.get(),
            .checkpoint = checkpoint.get(),
            .draft_model = made.model.get(),
            .draft_vocab = &vocab}));
    const Needs needs = made.proposer->needs();
    if (needs.kv && is_coded(geometry.dtype) && needs.kv->head_dim > kMaxCodedDim)
      return usage_error("{}: KV type {} reads heads of up to {} dimensions, this drafter has {}: use bf16", wanted.path,
          dtype_info(geometry.dtype).name, kMaxCodedDim, needs.kv->head_dim);
    if (needs.rows) followers_.push_back(made.proposer.get());
    follows_last |= needs.rows && (needs.taps.empty() || needs.taps.back() + 1 == model->shape().layers);
    for (const int layer : needs.taps)
      if (std::ranges::find(taps, layer) == taps.end()) taps.push_back(layer);
    learned.push_back(std::move(made));
  }
  std::ranges::sort(taps);
  return {};
}

// Random weights have no tokenizer: there columns are all that can be compared.
Result<VocabMap> EngineParts::open_draft_model(const DrafterOptions& wanted, Learned& made) const {
  made.file.reset();  // it told the method
  HUNCH_TRY(made.model, Checkpoint::open(wanted.path));
  const int64_t columns = made.model->shape().vocab_size, of_target = checkpoint->shape().vocab_size;
  if (!tokenizer && columns == of_target) return VocabMap{};
  if (!tokenizer)
    return usage_error(
        "{}: a draft model of {} tokens for a target of {} random ones; use one of as many", wanted.path, columns, of_target);
  HUNCH_TRY(const Tokenizer own, load_tokenizer(*made.model, wanted.path));
  return match_vocabularies({*tokenizer, of_target, options.model}, {own, columns, wanted.path}, wanted.vocab_mode);
}

// How many rows a step may have, and how many of them may want an answer.
Status EngineParts::plan_limits() {
  const int seqs = options.max_num_seqs;
  int alone = 0;  // a device multiplies more rows faster, and nobody waits for a token
  if (options.chunk_len == 0 && backend->asynchronous())
    alone = options.max_num_batched_tokens > 0 ? std::min(options.max_num_batched_tokens, 1 << 14) : defaults::kChunkAlone;
  if (options.chunk_len == 0) options.chunk_len = defaults::kChunk;
  if (seqs < 1 || seqs > 4096) return usage_error("max num seqs is {}; it must lie in [1, 4096]", seqs);
  const int least = seqs + 2 * defaults::kSelectingRows;
  const int crowd = std::max(2 * seqs, defaults::kVerifyRowsOfCrowds);
  const int answers = std::max(options.max_draft + 1, std::min(crowd, defaults::kVerifyRowsPerSequence * seqs));
  int rows = options.max_num_batched_tokens;
  if (rows == 0) rows = std::max({options.chunk_len + seqs, answers, least});
  // No step has more: a request gives it a chunk of its prompt, or a round.
  rows = int(std::min<int64_t>(rows, std::max<int64_t>(int64_t(seqs) * std::max(options.chunk_len, answers), least)));
  const ModelShape& shape = model->shape();
  const double needed = double(std::max(rows, alone)) * double(3 * shape.hidden + 2 * shape.widest_ffn()) * sizeof(float);
  if (needed > 0.9 * backend->memory_bytes())
    return usage_error("max num batched tokens: a step of {} needs {}; lower it or the number of requests", std::max(rows, alone),
        human_bytes(needed));
  if (rows < least) return usage_error("max num batched tokens is {}; {} requests at once need at least {}", rows, seqs, least);
  limits = {
      .max_seqs = seqs,
      .rows = rows,
      .verify_rows = std::min(rows, answers),
      .chunk_len = std::min(options.chunk_len, rows),
      .alone_rows = alone,
      .selecting_rows = defaults::kSelectingRows,
  };
  return {};
}

// Memory is planned, then taken once: what --kv-memory says, else the context asked for (or the model's) for as many requests as
// may run at once, up to a few GiB or a share of the device. What is beyond that keeps beginnings of earlier requests.
Status EngineParts::plan_memory() {
  const int64_t trained = model->shape().context_len, page_bytes = this->page_bytes();
  const auto pages_of = [](int64_t entries) { return (entries + kPageLen - 1) / kPageLen; };
  if (options.context_len < 0) return usage_error("the context size is negative");
  context_len = options.context_len > 0 ? options.context_len : trained;
  if (context_len > std::max<int64_t>(trained * 64, 1 << 20))
    return usage_error("context of {} tokens: the model was trained for {}; use at most {}", context_len, trained,
        std::max<int64_t>(trained * 64, 1 << 20));
  if (const int64_t longest = backend->longest_context(model->shape()); context_len > longest) {
    if (options.context_len > 0)
      return usage_error("context of {} tokens: {} reads at most {} of a {} model like this; lower -c, or use --device cpu",
          context_len, backend->description(), longest, model->shape().family);
    context_len = longest;
  }
  int64_t num_pages = pages_of(context_len);
  const double memory = backend->memory_bytes();
  const NsaShape& nsa = model->shape().nsa;
  const auto compressed_pages = [&] {
    return nsa.used() ? std::max<int64_t>(1, pages_of(nsa.rows_of(context_len))) * options.max_num_seqs : 0;
  };
  const auto compressed_bytes = [&] { return double(compressed_pages()) * double(backend->kv_page_bytes(geometry)); };
  const auto pages_in = [&](double bytes) {
    return int64_t(std::max(0.0, std::min(bytes, kMostOfMemory * memory) - compressed_bytes()) / page_bytes);
  };
  const int64_t seats = num_pages * options.max_num_seqs;
  if (options.kv_memory_bytes == 0 && backend->asynchronous()) {
    const double total = backend->total_memory_bytes(), taken = total - memory;
    const int64_t most = pages_in(options.memory_share * total - taken - draft_copy_bytes());
    num_pages = std::max(num_pages, options.fill_memory && options.prefix_caching ? most : std::min(seats, most));
  } else if (options.kv_memory_bytes == 0) {
    num_pages = std::max(num_pages, std::min(seats, defaults::kKvMemory / page_bytes));
  }
  if (options.kv_memory_bytes > 0) {
    const int64_t affordable = options.kv_memory_bytes / page_bytes;
    if (affordable < 1 || (options.context_len > 0 && affordable < num_pages))
      return failure("KV memory too small: {} given, {} needed for {} tokens ({} a page of {}); raise --kv-memory or lower -c",
          human_bytes(options.kv_memory_bytes), human_bytes(double(num_pages * page_bytes)), context_len, human_bytes(page_bytes),
          kPageLen);
    context_len = std::min(context_len, affordable * kPageLen);
    num_pages = std::min(affordable, options.prefix_caching ? std::max(seats, pages_in(memory)) : seats);
  }
  const double needed = double(num_pages) * page_bytes + compressed_bytes();
  if (needed > kMostOfMemory * memory)
    return failure(
        "not enough memory for a context of {} tokens: its KV cache needs {}, there is {}; lower -c or --kv-memory, "
        "or take --kv-type q8_0 or weights of a smaller type",
        context_len, human_bytes(needed), human_bytes(memory));
  store = backend->make_kv_store(geometry, num_pages);
  if (!store) return failure("the KV cache of {} for {} tokens cannot be allocated; lower -c", human_bytes(needed), context_len);
  if (nsa.used()) {
    compressed = backend->make_kv_store(geometry, compressed_pages());
    if (!compressed)
      return failure("the compressed rows of {} sequences of {} tokens cannot be allocated; lower -c or the number of sequences",
          options.max_num_seqs, context_len);
  }
  pool.emplace(num_pages);
  for (Proposer* proposer : followers_) {
    const Needs needs = proposer->needs();
    Quarters quarters{.pool = &*pool, .max_rows = limits.most_rows(), .context_len = context_len};
    if (needs.kv) quarters.kv = backend->make_kv_store(geometry_of(*needs.kv), num_pages);
    if (needs.kv && !quarters.kv)
      return failure("the drafters' KV cache for {} tokens cannot be allocated; lower -c", context_len);
    proposer->move_in(std::move(quarters));
  }
  if (options.prefix_caching) prefix_cache.emplace(*pool);
  return {};
}

// Of the target and of every drafter: they share page tables.
int64_t EngineParts::page_bytes() const {
  size_t bytes = backend->kv_page_bytes(geometry);
  for (const Proposer* proposer : followers_) {
    const Needs needs = proposer->needs();
    if (needs.kv) bytes += backend->kv_page_bytes(geometry_of(*needs.kv));
    bytes += needs.page_floats * sizeof(float);
  }
  return int64_t(bytes);
}

void EngineParts::forget_prefixes() {
  if (prefix_cache) prefix_cache->clear();
}

double EngineParts::bits_per_weight(double* weights) const {
  double bytes = 0, elements = 0;
  for (const Tensor& tensor : checkpoint->tensors()) {
    double count = 1;
    for (const int64_t extent : tensor.shape) count *= double(extent);
    bytes += tensor.bytes, elements += count;
  }
  if (weights) *weights = elements;
  return elements > 0 ? 8 * bytes / elements : 0;
}

// Of the copy that drafts of `self` read where it halves the weights; it is made later.
double EngineParts::draft_copy_bytes() const {
  constexpr double kBytes = 18.0 / 32;  // a weight in Q4_0
  double weights = 0;
  return bits_per_weight(&weights) < defaults::kCoarserFrom ? 0 : weights * kBytes;
}

Result<const Model*> EngineParts::draft_weights(DType type) {
  auto& made = draft_weights_[type];
  if (!made) {
    const auto* family = Register<Model>::find(checkpoint->shape().family);
    HUNCH_TRY(made, family->make({.backend = backend.get(), .checkpoint = checkpoint.get(), .requantise = type}));
  }
  return const_cast<const Model*>(made.get());
}

Result<GrammarCompiler*> EngineParts::grammars() {
  const std::lock_guard lock(grammars_mutex_);
  if (grammars_) return grammars_.get();
  if (!tokenizer)
    return usage_error("structured output needs the model's tokenizer, and this model has none: leave the structure out");
  if (model->shape().eos_ids.empty())
    return usage_error("structured output needs an end-of-text token, and this model names none: leave the structure out");
  const double seconds = std::clamp(0.5 * std::thread::hardware_concurrency(), 1.0, 8.0);  // of one of so many
  grammars_ = std::make_unique<GrammarCompiler>(
      *tokenizer, model->shape().vocab_size, model->shape().eos_ids, GrammarLimits{.seconds = seconds});
  return grammars_.get();
}

MaskWorkers* EngineParts::mask_workers() {
  const std::lock_guard lock(grammars_mutex_);
  if (!mask_workers_ && backend->asynchronous())
    mask_workers_ = std::make_unique<MaskWorkers>(std::clamp(int(std::thread::hardware_concurrency()) / 2, 1, kMostMaskWorkers));
  return mask_workers_.get();
}

SparsePolicy::Setup EngineParts::policy_setup(const PolicyOptions& policy, int max_draft, int max_sequences) {
  const ModelShape& shape = model->shape();
  SparsePolicy::Setup setup{.backend = backend.get(), .geometry = geometry, .heads = shape.heads};
  // A layer that no draft runs is like one with a window: nothing is selected, scored or copied.
  for (int layer = 0; layer < shape.layers; ++layer)
    setup.window.push_back(policy.skip_layers.empty() || !policy.skip_layers[layer] ? shape.window_of(layer) : 1);
  setup.max_draft = max_draft;
  setup.max_sequences = max_sequences;
  setup.options = policy;
  return setup;
}

}
