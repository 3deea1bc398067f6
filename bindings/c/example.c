/* Continues a text and prints the tokens as they come.
 *   example MODEL [TEXT]
 *   cc -std=c11 bindings/c/example.c -Iinclude -Lbuild/release -lhunch, built with -DHUNCH_SHARED=ON */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hunch/hunch_c.h"

enum { kMostPromptTokens = 4096 };

static int failed(const char* what, const hunch_error* error) {
  fprintf(stderr, "example: %s: %s\n", what, error->message);
  return 1;
}

static int stream_tokens(hunch_engine* engine, const int32_t* prompt, size_t prompt_len) {
  hunch_error error;
  hunch_request request;
  hunch_request_init(&request);
  request.prompt = prompt;
  request.prompt_len = prompt_len;
  request.max_tokens = 32;
  request.temperature = 0;

  hunch_stream* stream = NULL;
  if (hunch_submit(engine, &request, &stream, &error) != HUNCH_STATUS_OK) return failed("submit", &error);
  hunch_token token = {.size = sizeof token};
  hunch_status status;
  while ((status = hunch_stream_next(stream, -1, &token, &error)) == HUNCH_STATUS_OK) {
    fwrite(token.text, 1, token.text_len, stdout);
    fflush(stdout);
  }
  putchar('\n');

  hunch_result result = {.size = sizeof result};
  if (status != HUNCH_STATUS_END || hunch_stream_result(stream, &result, &error) != HUNCH_STATUS_OK) {
    hunch_stream_free(stream);
    return failed("stream", &error);
  }
  fprintf(stderr, "%zu tokens, %.1f tokens/s, %.2f tokens a round\n", result.num_tokens, result.tokens_per_second,
          result.mean_acceptance_length);
  hunch_stream_free(stream);
  return 0;
}

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: example MODEL [TEXT]\n");
    return 2;
  }
  const char* text = argc > 2 ? argv[2] : "The captain looked at the";
  hunch_error error;
  hunch_engine_options options;
  hunch_engine_options_init(&options);
  options.model = argv[1];
  options.max_num_seqs = 1;
  hunch_engine* engine = NULL;
  if (hunch_engine_load(&options, &engine, &error) != HUNCH_STATUS_OK) return failed("load", &error);

  static int32_t prompt[kMostPromptTokens];
  size_t prompt_len = 0;
  int code;
  if (hunch_tokenize(engine, text, strlen(text), 1, 1, prompt, kMostPromptTokens, &prompt_len, &error) != HUNCH_STATUS_OK) {
    code = failed("tokenize", &error);
  } else {
    code = stream_tokens(engine, prompt, prompt_len);
  }
  hunch_engine_free(engine, &error);
  return code;
}
