// hunch bench prefill. Prompts are random tokens: the cost does not depend on them.
#include "checkpoint/expert_tensors.h"
#include "cli/bench.h"
#include "cli/generating.h"
#include "cli/report.h"
#include "engine/token_run.h"

namespace hunch {
namespace {

using nlohmann::ordered_json;

struct PrefillFlags {
  ModelFlags model;
  std::vector<int64_t> prompts{32768}, chunks{512, 2048};
  int64_t repeats = 3;
  bool json = false;
};

void add_flags(FlagSet& set, PrefillFlags& flags) {
  set.group("What to measure");
  add_random_flags(set, flags.model);
  add_list(set, {"-p", "--n-prompt"}, "tokens of a prompt (default 32768)", {2, 1 << 24}, flags.prompts);
  add_list(set, {"-ub", "--ubatch-size"}, "rows of a chunk (default 512,2048)", {2, 1 << 14}, flags.chunks);
  set.whole({"-r", "--repetitions"}, "repetitions, 1..100, of which the median counts (default 3)", {1, 100}, flags.repeats);
  set.group("Output");
  add_format_flag(set, flags.json);
}

// Multiplications and additions of bf16 products a second; 0 where nobody knows.
double product_ceiling(Backend& backend) {
  for (const KernelRow& row : backend.bench_kernels("ceiling"))
    if (row.name == "ceiling: bf16 product") return row.flops / (row.ms * 1e-3);
  return 0;
}

Result<double> median_ms(TokenRun& run, const Tokens& tokens, int chunk, int repeats) {
  std::vector<double> times;
  for (int r = -1; r < repeats; ++r) {  // one to warm up
    const auto start = Clock::now();
    run.feed(tokens, chunk, TokenRun::Logits::Last);
    HUNCH_OK(run.status());
    if (r >= 0) times.push_back(ms_since(start));
    run.rewind(0);
  }
  return median(std::move(times));
}

Result<BenchTable> measure(Engine& engine, const PrefillFlags& flags) {
  EngineParts& parts = engine.parts();
  const ModelShape& shape = parts.model->shape();
  const double ceiling = product_ceiling(*parts.backend);
  BenchTable table{"prefill", "Prefill", {},
      fmt::format("product_TFLOP: 2 x matrix elements x tokens, of experts those that a token goes to, the head once; "
                  "attention_TFLOP: scores and sums of the "
                  "entries that a token may read; bf16 ceiling of this run: {:.1f} TFLOP/s",
          ceiling * 1e-12)};
  for (const int64_t length : flags.prompts) {
    Tokens tokens(length);
    for (int64_t i = 0; i < length; ++i) tokens[i] = int32_t(uint64_t(i + 1) * 2654435761u % uint64_t(shape.vocab_size));
    const PrefillWork work = prefill_work(*parts.checkpoint, length);
    for (const int64_t chunk : flags.chunks) {
      HUNCH_TRY(const auto run, TokenRun::make(parts, length));
      HUNCH_TRY(const double ms, median_ms(*run, tokens, int(chunk), int(flags.repeats)));
      const double rate = (work.products + work.attention) / (ms * 1e-3);
      table.rows.push_back({{"tokens", length}, {"chunk", chunk}, {"ms", ms}, {"tokens_per_s", double(length) / ms * 1e3},
          {"product_TFLOP", work.products * 1e-12}, {"attention_TFLOP", work.attention * 1e-12}, {"TFLOP_per_s", rate * 1e-12},
          {"of_ceiling", ceiling > 0 ? ordered_json(rate / ceiling) : ordered_json()}});
    }
  }
  return table;
}

}

PrefillWork prefill_work(const Checkpoint& checkpoint, int64_t length) {
  const ModelShape& shape = checkpoint.shape();
  PrefillWork work;
  for (const Tensor& tensor : checkpoint.tensors()) {
    if (tensor.shape.size() < 2 || tensor.name.ends_with(".bias")) continue;  // norms too
    double elements = double(tensor.shape[0]) * tensor.shape[1];
    if (is_expert_matrix(tensor.name)) elements *= double(shape.experts_per_token) / shape.num_experts;
    const bool embedding = tensor.name == "token_embd.weight", head = tensor.name == "output.weight";
    if (head || (embedding && shape.tied_head)) work.products += 2 * elements;
    else if (!embedding) work.products += 2 * elements * length;
  }
  for (int layer = 0; layer < shape.layers; ++layer) {
    const int window = shape.window_of(layer);
    const double n = length, w = window > 0 ? std::min(double(window), n) : n;
    const double read = w * (w + 1) / 2 + (n - w) * w;  // entries, over all tokens
    work.attention += 4.0 * shape.heads * shape.head_dim * read;
  }
  return work;
}

Result<int> bench_prefill_command(Arguments arguments) {
  PrefillFlags flags;
  FlagSet set("hunch bench prefill [flags]",
      "Whole prompts of random tokens, one request: time, and the multiplications of products and attention against the "
      "device's ceiling.");
  add_flags(set, flags);
  add_model_flags(set, flags.model);
  if (const auto ended = parsed(set, arguments)) return *ended;
  HUNCH_TRY(auto options, engine_options(flags.model));
  const int64_t length = std::ranges::max(flags.prompts);
  options.context_len = (length + 63) / 64 * 64;
  options.max_num_seqs = 1;
  options.chunk_len = int(std::min(length, std::ranges::max(flags.chunks)));
  ProgressLine progress;
  HUNCH_TRY(auto engine, load_engine(options, progress));
  HUNCH_TRY(auto table, measure(*engine, flags));
  if (flags.json)
    return print_json_and_exit_code({{"engine", engine->description()}, {"rows", table.rows}, {"note", table.note}});
  return print_and_exit_code(engine->description() + "\n\n" + table_text(table));
}

}
