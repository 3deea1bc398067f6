// hunch's public API: load a model, give it requests, receive tokens. Everything a caller can get wrong comes back as an Error
// with a message for people. An Engine runs many requests at once, on a thread of its own; submit(), generate() and stats() may
// be called from any thread.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "hunch/result.h"

namespace hunch {

using Tokens = std::vector<int32_t>;  // ids

// Called during long work (`what`: "loading", "prefill"); may be empty.
using Progress = std::function<void(std::string_view what, int64_t done, int64_t total)>;

// A learned drafter to load beside the model.
struct DrafterOptions {
  std::string method;  // draft_model, medusa, eagle, eagle3 or mtp; empty: as the file says
  std::string path;    // Hugging Face folder, a *.safetensors beside its config.json, or a GGUF file of `hunch quantize`; empty:
                       // the model's own (mtp)
  // draft_model: same (its vocabulary is the target's, padding apart), intersection (another: it guesses what both spell alike).
  std::string vocab_mode = "same";
  // mtp: the target's hidden state before or after its final norm, and the module's own likewise: post, pre.
  std::string feed_norm = "post", recycle_norm = "post";
};

struct EngineOptions {
  std::string model;            // Hugging Face folder or GGUF file; a known shape or a config.json with random_weights
  std::string random_weights;   // a type: the model has random matrices of it and no tokenizer, for measurements; empty: a file
  std::string device = "cpu";   // a registered backend: cpu, cuda, reference
  std::string isa;              // cpu only: portable, avx2, avx512, avx512_vnni, avx512_bf16; empty: best
  bool check_tensors = false;   // reads every weight first: one that is no finite number is an error
  int threads = 0;              // 0: all cores this process may use
  std::string kv_dtype;         // bf16, f16, f32, i16, q8_0, fp8; empty: the backend's default
  int64_t context_len = 0;      // tokens a request may reach; 0: the model's
  int64_t kv_memory_bytes = 0;  // for KV; 0: contexts of max_num_seqs requests, on a CPU up to 4 GiB of them
  double memory_share = 0.8;    // of a device's, that weights and KV may fill; not beside kv_memory_bytes
  bool fill_memory = false;     // they do, and keep beginnings of earlier requests
  int chunk_len = 0;            // most prompt rows of one request per pass; 0: 512, on a GPU 2,048 while none decodes
  int max_draft = 64;           // most drafted tokens a request may ask for; at most 256
  int max_num_seqs = 0;         // requests that run at once, more wait; 0: 16, on a GPU 256
  int max_num_batched_tokens = 0;        // rows of one pass, all requests together; 0: what chunk_len and max_num_seqs suggest
  int max_waiting = 4096;                // requests that may wait; more are refused
  std::string trace;                     // a file for what happens when, in Chrome's trace format; empty: none
  bool keep_costs = true;                // costs and acceptance are kept under $XDG_CACHE_HOME/hunch, for method auto
  std::string verify_calibration;        // a file of `hunch tune --calibrate-verify`, of this model; empty: none
  bool prefix_caching = true;            // requests share the verified KV entries of equal beginnings
  std::vector<DrafterOptions> drafters;  // each of a method of its own; requests name the method
  // Of models with natively trained sparse attention, files of `hunch tune`: the layers that reuse another's choice
  // (--reuse-layers), and ranked strategies for method profile (--profile); empty: none.
  std::string reuse_schedule, strategies;
  Progress progress;
};

// How the next token is chosen; absent values: the model's own defaults, else llama.cpp's.
struct SamplingOptions {
  std::optional<double> temperature, top_p, min_p;
  std::optional<int> top_k;
  std::optional<uint64_t> seed;  // absent: drawn at admission (and reported)
  double repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;
  std::vector<std::pair<int32_t, float>> logit_bias;  // -100 and less bans
  Tokens allowed_token_ids;                           // empty: all
  std::vector<Tokens> bad_words;                      // token sequences that may not be completed
  int64_t min_tokens = 0;                             // no end before
  int logprobs = -1;                                  // log-probabilities of emitted tokens, and of this many others; -1: none
  int prompt_logprobs = -1;                           // the same for the prompt's tokens
};

// Sparse verification (docs/sparse-verification.md). LOSSY where it is `on`: the check itself leaves something out, so that the
// stream is no longer the model's own; every answer says what was left out (Approximation). `drafts` instead: passes that draft
// leave the same out, the check is exact and so is the stream. Each of the three has its own switch.
struct SparseVerification {
  bool on = false, drafts = false;  // at most one
  // Attention: behind dense_len entries a share `ratio` is read, in blocks that the round's first row chooses; 1: all.
  double ratio = 0.1;
  int64_t dense_len = 4096;
  int block = 32;                          // entries
  int sink_blocks = 1, recent_blocks = 0;  // always read; recent 0: max(2, ceil(rows / block) + 1)
  std::string scope = "per_head";          // or joint: one budget for all KV heads of a layer
  std::string group = "sum";               // or max: how the query heads of a KV head score a block
  bool reuse_layers = false;               // layers behind a calibrated anchor read its blocks
  // Feed-forward: channels below a threshold in every row of the round; or the threshold of a calibrated share. 0: off.
  double channel_threshold = 0, channel_share = 0;
  // Mixtures of experts: up to so many of a row's least experts are left out; 0: off.
  int skip_experts = 0;
  std::string expert_mode = "literal";  // or graded, tail_mass, union_aware
  double expert_mass = 0.1;             // tail_mass, union_aware: share of a row's weights that may go
  bool expert_renorm = false;           // shares of those that stay sum to what all had
};

// Speculation. Defaults are what `hunch bench` found best on a CPU (docs/results.md); docs/flags.md says which keys of vLLM and
// of the Vegas release map to which field.
struct SpeculationOptions {
  // auto (the planner chooses per round, nothing included), none, self, a lookup (ngram, suffix, cascade), staged, the method of
  // a drafter that was loaded, or profile (the ranked strategies of EngineOptions::strategies)
  std::string proposer = "auto";
  int num_tokens = 0;  // gamma: drafted tokens per round; 0: the default of the proposer
  // self, rule match: where a guess is unsure the second choice is tried too, up to so many tokens beside the chain; 0: chains.
  int tree_tokens = 0;
  std::string policy = "vegas";   // or quest, sparsespec, snapkv, last_accepted, streamingllm, full
  double ratio = 0;               // kept ratio, in (0, 1]; 0: default
  int min_tokens = 16;            // least entries kept
  std::string metric = "weight";  // vegas: weight (the drafts' log-sum-exp), true_weight, logit
  std::string rows = "all";       // vegas: all, first_last, last, accepted
  std::string combine = "max";    // vegas: max, sum over rows
  std::string share = "kv_head";  // kv_head (a set per KV head), layer (one set)
  int spread = 16;                // vegas: entries behind a high score that count too, in whole blocks (weights only)
  int sinks = -1, recent = 0;     // always kept, inside the budget; sinks -1: 4 for streamingllm, 0 for vegas
  std::string rule;               // match, ratio, point; empty: match when greedy, seeded, or trees on a device; else ratio
  // What drafts read: target (the same weights), q4_0 or q8_0 (a copy in this encoding, made at first use), auto (q4_0 where that
  // halves the bytes of the target's).
  std::string draft_weights = "auto";
  int max_entries = 0;  // > 0: drafts read so many entries at most, whatever the ratio says
  int page = 16;        // quest: entries of a page
  int block = 8;        // vegas: blocks of so many entries are chosen whole, by their greatest score; 1: entries
  int layer_step = 1;   // vegas and its kin: every so many layers one chooses for those behind it, too
  // Layers that drafts leave out: "2": so many, spread evenly; "3,5" or "3,": these, counted from 0; empty: none.
  std::string draft_skip_layers;
  std::string self_lookup;           // self: ngram or suffix, whose guess runs along with the first draft pass; empty: none
  int ngram_min = 0, ngram_max = 0;  // ngram: suffix lengths looked up; 0: as the other, both 0: 5
  int suffix_depth = 24, suffix_cached_requests = 10000;
  double suffix_factor = 1, suffix_min_probability = 0.1;
  std::string cascade_first = "ngram";  // cascade: who is asked before self; staged: who guesses what its passes check
  // Learned drafters. The shape of their guesses: chains of num_tokens; or, with tree_tokens, trees of num_tokens + tree_tokens
  // nodes, grown by trying the tree_top_k likeliest tokens behind each of the best nodes (0: 10); or always the same tree.
  int tree_top_k = 0;
  std::vector<std::vector<int>> token_tree;  // one list of ranks for each node, parents first; empty: none
  bool verify = true;                        // false: emit drafts unverified. Lossy, and labelled so
  // Natively trained sparse attention: how exactly rows that decode choose their blocks (docs/nsa.md). strict; or lossy, and
  // labelled so: reuse (some layers take the choice of the one before), approx (rows of a round share one in groups),
  // approx-reuse.
  std::string precision_class = "strict";
  int group_rows = 4;             // approx: rows of a group, at most
  std::string traversal = "bfs";  // approx: the order in which a tree's rows are grouped, bfs or dfs
  std::string reuse_layers;       // reuse: "3,5": these, counted from 0; "none"; empty: those of EngineOptions::reuse_schedule

  SparseVerification sparse;  // lossy as well

  // False: may say something else than the model.
  bool lossless() const { return verify && !sparse.on && precision_class == "strict"; }
};

// What the continuation must look like. One kind a request; the rest is ignored.
struct StructuredOutput {
  enum class Kind : uint8_t {
    None,
    JsonObject,  // any JSON object
    JsonSchema,  // text: a JSON schema; its $ref may only point into itself
    Regex,       // text: an expression that the whole output matches
    Choice,      // choices: the output is one of these
    Grammar,     // text: EBNF in llama.cpp's notation, whose first rule is root
  } kind = Kind::None;
  std::string text;
  std::vector<std::string> choices;
};

struct Request {
  Tokens prompt;            // token ids, at least one
  int64_t max_tokens = -1;  // -1: until the context is full
  bool ignore_eos = false;
  Tokens stop_ids;                  // besides the model's own end-of-generation ids
  std::vector<std::string> stop;    // texts; the output ends before the first of them
  bool cache_prompt = true;         // use and feed the prefix cache. Same output either way
  std::string cache_salt;           // the prefix cache serves requests of one salt only among themselves
  bool skip_special_tokens = true;  // special tokens leave no text
  int priority = 0;                 // lower runs first; equal: first come, first served
  uint32_t sample_index = 0;        // which of several samples of one prompt with one seed
  SamplingOptions sampling;
  SpeculationOptions speculation;
  StructuredOutput structured;
};

struct TokenLogprob {
  int32_t id = -1;
  float logprob = 0;  // natural, of the model's own distribution before temperature, penalties and truncation
};

struct TokenEvent {
  int32_t id = 0;
  enum class From : uint8_t { Target, Draft } from = From::Target;  // Draft: guessed and accepted
  std::string_view drafter;                                         // who guessed it, a registered name; empty: nobody
  int64_t index = 0;                                                // in the continuation
  // Text that this token completes: whole characters, and never the beginning of what may become a stop text. What is left of
  // either when no token follows is in Generation::text alone.
  std::string text;
  float logprob = 0;              // if asked for
  std::vector<TokenLogprob> top;  // the most probable ones, best first, if asked for
};

enum class FinishReason : uint8_t { Stop, Length, Interrupted };

struct Timings {      // milliseconds
  double queued = 0;  // from submission to its first pass
  double load = 0, prefill = 0, draft = 0, verify = 0, select = 0;
  double first_to_last_token = 0;  // decoding, everything included
};

struct DraftRound {
  uint16_t drafted = 0, accepted = 0;  // tokens
};

// What lossy passes left out, as they ran; any() is false where all were exact.
struct Approximation {
  int64_t since_token = -1;  // sparse verification: the first of `tokens` that came of such a pass; -1: none
  int64_t passes = 0, rows = 0;
  int64_t entries = 0, entries_read = 0;             // attention: over layers and KV heads that chose, tentative rows not counted
  int64_t channels = 0, channels_skipped = 0;        // feed-forward: of layers and passes, skipped in all of a pass's rows
  int64_t channel_rows = 0, channel_rows_below = 0;  // the same for every row alone: what the threshold would skip there
  int64_t experts = 0, experts_skipped = 0;          // pairs of row and expert
  SparseVerification asked;
  // Of models with natively trained sparse attention: the class that was asked for, the most rows that may share a choice, in
  // which order trees were grouped (empty: no groups), and rows that decoded, counted in every layer: with a choice of their own,
  // of another row, of another layer.
  std::string precision_class = "strict";
  int group_rows = 1;
  std::string traversal;
  int64_t own_choices = 0, shared_choices = 0, reused_choices = 0;
  std::vector<int> reuse_layers;  // that take the blocks of one before

  bool any() const { return passes > 0 || precision_class != "strict"; }
  void add(const Approximation&);  // counts together, since_token the least
};

struct Generation {
  Tokens tokens;     // the continuation; an end-of-generation id that stopped it is not included
  std::string text;  // of those tokens, cut before a stop text
  FinishReason finish = FinishReason::Length;
  std::string stopped_by;                      // the stop text, if one ended it
  int32_t stopped_by_id = -1;                  // the end-of-generation or stop id, if one ended it
  std::vector<float> logprobs;                 // of tokens, if asked for
  std::vector<std::vector<TokenLogprob>> top;  // likewise
  std::vector<TokenLogprob> prompt_logprobs;   // of prompt tokens 1.. (the first has none), if asked for
  std::vector<std::vector<TokenLogprob>> prompt_top;
  bool lossless = true;
  Approximation approximation;
  Approximation thinned;     // what passes that drafted left out: no part of the output
  int strategy_changes = 0;  // method profile: how often the ranked strategy was given up for another
  std::string rule, policy, proposer;
  std::string warning;  // what its user should look into; empty: nothing
  uint64_t seed = 0;
  double ratio = 0;  // of the KV cache that drafts read, as asked or tuned; 0: all, or nobody's passes drafted
  int gamma = 0;
  int64_t prompt_tokens = 0, reused_tokens = 0;
  int64_t rounds = 0;  // rounds that drafted
  int64_t drafted = 0, accepted = 0;
  int64_t draft_passes = 0;                                        // in which it drafted; 0 for look-ups
  std::vector<int64_t> drafted_by_position, accepted_by_position;  // [gamma]
  std::vector<DraftRound> draft_rounds;                            // [rounds]
  uint64_t kv_bytes_read = 0;                                      // during decoding: keys, values, scores, selected copies
  int64_t steps = 0;                                               // of the engine in which it decoded
  uint64_t experts_read = 0;  // distinct experts of every layer in those steps; 0: no experts
  Timings milliseconds;
  // What plain decoding would have taken for tokens that were made in passes of no prompt's rows, by the costs that this engine
  // has measured, in the company that the request had; and how many tokens those are (0: not known).
  double plain_milliseconds = 0;
  int64_t plain_tokens = 0;

  double mean_acceptance_length() const;               // tokens per round, correction or bonus included; 1 without speculation
  std::vector<double> acceptance_by_position() const;  // rounds that accepted position i / rounds that drafted it
  double tokens_per_second() const;                    // (tokens - 1) / time from the first to the last token
  double plain_tokens_per_second() const;              // of the same, decoded plainly; 0: not known
  double kv_bytes_per_token() const;
  double experts_per_step() const;  // distinct experts, summed over layers, those that its company's rows went to included
};

// Whether an engine gets anywhere, for watchdogs: `beats` counts layers run and steps begun, whatever they are for. Busy without
// a beat for longer than a layer's rows can take means that it is stuck.
struct Heartbeat {
  uint64_t beats = 0;
  bool busy = false;
  bool lost = false;                   // its device failed: every request fails from now on
  std::string_view doing = "nothing";  // the part of a step that it began last
};

// Called from the engine's thread when tokens or the end have come, once until the consumer has found the stream empty. Must
// return soon and must not touch the stream itself.
using OnNews = std::function<void()>;

// Return false to stop after this token.
using OnToken = std::function<bool(const TokenEvent&)>;

// What an engine did since it was loaded.
struct EngineStats {
  int running = 0, waiting = 0;
  int64_t kv_pages_used = 0, kv_pages_cached = 0, kv_pages_total = 0;  // cached: held by the prefix cache alone
  int64_t prefix_tokens_asked = 0, prefix_tokens_hit = 0;              // prompt tokens looked up and found
  int64_t requests_finished = 0, requests_refused = 0, requests_aborted = 0, preemptions = 0;
  int64_t passes = 0, prompt_tokens = 0, generated_tokens = 0;
  int64_t rounds = 0, drafted = 0, accepted = 0, drafts_dropped = 0;  // dropped: for want of budget or pages
  // Of steps without a prompt's rows: the tokens they made, what they took, and what plain decoding would have taken.
  int64_t compared_tokens = 0;
  double compared_ms = 0, compared_plain_ms = 0;
  double draft_ms = 0, pass_ms = 0, select_ms = 0;  // of all steps
  int64_t corrupted = 0;                            // requests that ended because no valid logits came
  // Steps by their tokens, prompt tokens read and tokens written: [i] of those with at most 2^i and more than 2^(i-1), the last
  // of all above; and the tokens of all steps.
  std::array<int64_t, 16> steps_by_tokens{};
  int64_t step_tokens = 0;
  // Over layers and segments of draft rows under a sparse policy: entries that they could choose from, and those they read.
  int64_t entries_offered = 0, entries_selected = 0;
  uint64_t experts_read = 0;                                       // distinct experts of every layer and pass
  std::vector<int64_t> drafted_by_position, accepted_by_position;  // of all requests that ended
  double prefix_hit_rate() const { return prefix_tokens_asked ? double(prefix_tokens_hit) / double(prefix_tokens_asked) : 0; }
};

// The tokens of one running request, taken by one consumer. A consumer that falls behind by more than a few hundred tokens pauses
// its own request and nobody else's. Destroying the stream cancels the request.
class TokenStream {
 public:
  virtual ~TokenStream() = default;
  // The next token; waits for it. Empty at the end.
  virtual std::optional<TokenEvent> next() = 0;
  // The same, waiting at most so long; empty too where none came in time (finished() tells the two apart).
  virtual std::optional<TokenEvent> next_within(double milliseconds) = 0;
  virtual bool finished() const = 0;  // no more tokens will come
  virtual void cancel() = 0;          // ends it between two passes; tokens that are out stay out
  // What came of it; waits for the end. Tokens that were not taken are dropped.
  virtual Result<Generation> result() = 0;
};

class Tokenizer;  // text/tokenizer.h
class EngineParts;
class Service;  // engine/service.h

class Engine {
 public:
  static Result<std::unique_ptr<Engine>> load(const EngineOptions&);
  ~Engine();

  // Queues the request and returns at once. Errors: what the request asks for is not possible, or too many are waiting.
  // `on_news`: for consumers that do not wait on a thread of their own; they take with next_within(0).
  Result<std::unique_ptr<TokenStream>> submit(const Request&, OnNews on_news = {});

  // Runs the request to its end. `interrupted` (may be null) is looked at between passes: set it to stop cleanly.
  Result<Generation> generate(const Request&, const OnToken& = {}, const std::atomic<bool>* interrupted = nullptr);

  EngineStats stats() const;
  Heartbeat heartbeat() const;  // never waits

  const Tokenizer& tokenizer() const;
  int64_t context_len() const;
  std::string description() const;  // "wren-34m, qwen3, 35.7 MB of weights; cpu (avx512_bf16, 2 threads); kv bf16"
  std::string model_name() const;
  std::string chat_template() const;
  std::string tool_template() const;  // for chats with tools; empty: chat_template() serves them too
  double load_milliseconds() const;
  EngineParts& parts();  // for bench, audit and tests inside the project

 private:
  explicit Engine(std::unique_ptr<EngineParts>);
  std::unique_ptr<EngineParts> parts_;
  std::unique_ptr<Service> service_;
};

}
