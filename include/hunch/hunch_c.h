/* hunch for C and for whatever calls C: load a model, submit requests, take tokens as they come. Functions may be called from any
 * thread; one stream is used by one thread at a time (hunch_stream_cancel alone may come from another). Nothing here aborts or
 * throws for what a caller or a file does wrong: the status says so, and `error`, where not NULL, says it in words.
 *
 * Structures begin with `size`: call hunch_..._init() first, then set what differs. A library that is newer or older than the
 * header then reads what both know. */
#ifndef HUNCH_C_H
#define HUNCH_C_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define HUNCH_API __attribute__((visibility("default")))
#else
#define HUNCH_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum hunch_status {
  HUNCH_STATUS_OK = 0,
  HUNCH_STATUS_USAGE = 1,    /* the call cannot be right as it is: a null pointer, a value out of range */
  HUNCH_STATUS_FAILURE = 2,  /* a file, the machine or the moment does not allow it */
  HUNCH_STATUS_END = 3,      /* hunch_stream_next: no more tokens will come */
  HUNCH_STATUS_TIMEOUT = 4,  /* hunch_stream_next: none came in time */
  HUNCH_STATUS_TOO_SMALL = 5 /* the buffer does not hold the answer; the count says how much it takes */
} hunch_status;

typedef struct hunch_engine hunch_engine;
typedef struct hunch_stream hunch_stream;

typedef struct hunch_error {
  char message[1024]; /* ends with a 0, cut if need be; empty after success */
} hunch_error;

/* "0.1.0" */
HUNCH_API const char* hunch_version(void);

typedef struct hunch_engine_options {
  size_t size;
  const char* model;              /* Hugging Face folder or GGUF file */
  const char* device;             /* NULL: cpu */
  const char* isa;                /* NULL: the best here */
  const char* kv_dtype;           /* NULL: the device's default */
  int32_t threads;                /* 0: all cores this process may use */
  int32_t max_num_seqs;           /* requests that run at once; 0: 16, on a GPU 256 */
  int32_t max_num_batched_tokens; /* rows of one pass; 0: what suits */
  int32_t prefix_caching;         /* 1 or 0 */
  int64_t context_len;            /* 0: the model's */
  int64_t kv_memory_bytes;        /* 0: as for hunch::EngineOptions */
} hunch_engine_options;

HUNCH_API void hunch_engine_options_init(hunch_engine_options* options);
HUNCH_API hunch_status hunch_engine_load(const hunch_engine_options* options, hunch_engine** engine, hunch_error* error);
/* Refused (USAGE) while a stream of the engine lives. NULL is fine. */
HUNCH_API hunch_status hunch_engine_free(hunch_engine* engine, hunch_error* error);
HUNCH_API int64_t hunch_engine_context_len(const hunch_engine* engine); /* 0 for NULL */

typedef struct hunch_engine_stats {
  size_t size;
  int32_t running, waiting;
  int64_t kv_pages_used, kv_pages_cached, kv_pages_total;
  int64_t prefix_tokens_asked, prefix_tokens_hit;
  int64_t requests_finished, requests_refused, requests_aborted, preemptions;
  int64_t passes, prompt_tokens, generated_tokens;
  int64_t rounds, drafted, accepted, drafts_dropped;
} hunch_engine_stats;

/* Fills stats->size bytes at most; set it to sizeof *stats. */
HUNCH_API hunch_status hunch_engine_get_stats(const hunch_engine* engine, hunch_engine_stats* stats, hunch_error* error);

/* Text (UTF-8, `length` bytes) to ids. *count: how many there are, also where `capacity` is too small. */
HUNCH_API hunch_status hunch_tokenize(const hunch_engine* engine, const char* text, size_t length, int32_t parse_special,
    int32_t add_bos, int32_t* ids, size_t capacity, size_t* count, hunch_error* error);
/* Ids to text, without a 0 at the end. *length: its bytes, also where `capacity` is too small. */
HUNCH_API hunch_status hunch_detokenize(const hunch_engine* engine, const int32_t* ids, size_t count, char* text, size_t capacity,
    size_t* length, hunch_error* error);

/* What the output must look like. */
typedef enum hunch_structure {
  HUNCH_STRUCTURE_NONE = 0,
  HUNCH_STRUCTURE_JSON_OBJECT = 1, /* any JSON object */
  HUNCH_STRUCTURE_JSON_SCHEMA = 2, /* structure_text: a JSON schema; its $ref may only point into itself */
  HUNCH_STRUCTURE_REGEX = 3,       /* structure_text: an expression that the whole output matches */
  HUNCH_STRUCTURE_CHOICE = 4,      /* one of the choices */
  HUNCH_STRUCTURE_GRAMMAR = 5      /* structure_text: EBNF in llama.cpp's notation, whose first rule is root */
} hunch_structure;

typedef struct hunch_request {
  size_t size;
  const int32_t* prompt; /* token ids, at least one */
  size_t prompt_len;
  int64_t max_tokens; /* -1: until the context is full */
  int32_t ignore_eos, priority;
  const int32_t* stop_ids;
  size_t num_stop_ids;
  const char* const* stop; /* texts; the output ends before the first of them */
  size_t num_stop;
  double temperature, top_p, min_p; /* below 0: the model's own */
  int32_t top_k;                    /* below 0: the model's own; 0: all */
  int32_t has_seed;                 /* 0: a seed is drawn */
  uint64_t seed;
  double repetition_penalty, presence_penalty, frequency_penalty;
  int64_t min_tokens;
  int32_t logprobs; /* 0 or more: log-probabilities of emitted tokens; -1: none */
  uint32_t sample_index;
  const char* drafter;      /* NULL: the engine's default; "none", "self", "auto", ... */
  const char* policy;       /* NULL: the default */
  const char* rule;         /* NULL: match when greedy or seeded, else ratio */
  int32_t num_draft_tokens; /* 0: the default */
  int32_t structure;        /* hunch_structure */
  double ratio;             /* 0: the default */
  const char* structure_text;
  const char* const* choices;
  size_t num_choices;
} hunch_request;

HUNCH_API void hunch_request_init(hunch_request* request);
/* Queues a request and returns at once. What `request` points to is copied. */
HUNCH_API hunch_status hunch_submit(
    hunch_engine* engine, const hunch_request* request, hunch_stream** stream, hunch_error* error);

typedef struct hunch_token {
  size_t size;
  int32_t id;
  int32_t drafted; /* 1: guessed and accepted */
  int64_t index;   /* in the continuation */
  float logprob;   /* if asked for */
  int32_t reserved;
  const char* text; /* that this token completes, ends with a 0; good until the next call with this stream; what is left at the
                       end is in the result's text alone */
  size_t text_len;
} hunch_token;

/* The next token, waiting at most so many milliseconds; below 0: for as long as it takes. token->size is to be set. */
HUNCH_API hunch_status hunch_stream_next(hunch_stream* stream, double milliseconds, hunch_token* token, hunch_error* error);
HUNCH_API hunch_status hunch_stream_cancel(hunch_stream* stream, hunch_error* error);

typedef enum hunch_finish { HUNCH_FINISH_STOP = 0, HUNCH_FINISH_LENGTH = 1, HUNCH_FINISH_INTERRUPTED = 2 } hunch_finish;

typedef struct hunch_result {
  size_t size;
  int32_t finish;        /* hunch_finish */
  int32_t lossless;      /* 1 or 0 */
  const int32_t* tokens; /* these pointers are good until the stream is freed */
  size_t num_tokens;
  const char* text; /* ends with a 0 */
  size_t text_len;
  uint64_t seed;
  int64_t prompt_tokens, reused_tokens;
  int64_t rounds, drafted, accepted;
  double prefill_ms, decode_ms, tokens_per_second, mean_acceptance_length;
} hunch_result;

/* What came of it; waits for the end. Tokens that were not taken are in it all the same. result->size is to be set. */
HUNCH_API hunch_status hunch_stream_result(hunch_stream* stream, hunch_result* result, hunch_error* error);
/* Cancels the request if it still runs. NULL is fine. */
HUNCH_API void hunch_stream_free(hunch_stream* stream);

#ifdef __cplusplus
}
#endif

#endif
