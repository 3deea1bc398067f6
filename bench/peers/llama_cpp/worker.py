"""The peer's side of compare.py: runs under the Python that has llama-cpp-python, and calls libllama's C API through ctypes.

One process is one context (flash attention on or off, one KV type). It reads a JSON command a line and answers with the median
nanoseconds of its repetitions, a line. The cache is filled once per depth and cut back after each repetition.
"""
import ctypes
import json
import os
import random
import statistics
import sys
import time

import llama_cpp as api

KV_TYPES = {"f16": api.GGML_TYPE_F16, "q8_0": api.GGML_TYPE_Q8_0}
CHUNK = 512


class Context:
  def __init__(self, model, threads, n_ctx, flash, kv):
    self.silence = api.llama_log_callback(lambda level, text, data: None)  # libllama logs to stderr by itself
    api.llama_log_set(self.silence, ctypes.c_void_p(0))
    api.llama_backend_init()
    loaded = api.llama_model_load_from_file(model.encode(), api.llama_model_default_params())
    if not loaded:
      sys.exit(f"the peer cannot load {model}")
    params = api.llama_context_default_params()
    params.n_ctx = n_ctx
    params.n_batch, params.n_ubatch = 2048, CHUNK
    params.n_threads = params.n_threads_batch = threads
    params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else api.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.type_k = params.type_v = KV_TYPES[kv]
    params.no_perf = True
    self.context = api.llama_init_from_model(loaded, params)
    if not self.context:
      sys.exit("the peer refuses this context")
    self.memory = api.llama_get_memory(self.context)
    self.vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(loaded))
    self.batch = api.llama_batch_init(2048, 0, 1)
    self.length = 0
    self.dice = random.Random(7)

  def decode(self, tokens, logits):
    """With logits of the last so many rows. Returns after the work is done, not when it was queued."""
    batch = self.batch
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
      batch.token[i] = token
      batch.pos[i] = self.length + i
      batch.n_seq_id[i] = 1
      batch.seq_id[i][0] = 0
      batch.logits[i] = i >= len(tokens) - logits
    if api.llama_decode(self.context, batch) != 0:
      sys.exit(f"llama_decode failed at {self.length}")
    api.llama_synchronize(self.context)
    self.length += len(tokens)

  def prompt(self, tokens, logits):
    for first in range(0, len(tokens), CHUNK):
      is_last = first + CHUNK >= len(tokens)
      self.decode(tokens[first:first + CHUNK], logits if is_last else 0)

  def cut(self, length):
    api.llama_memory_seq_rm(self.memory, 0, length, -1)
    self.length = length

  def tokens(self, n):
    return self.dice.choices(range(self.vocab), k=n)

  def measure(self, what, depth, n, repetitions):
    self.cut(min(self.length, depth))
    self.prompt(self.tokens(depth - self.length), 0)
    tokens = self.tokens(n)
    samples = []
    for _ in range(repetitions + 1):
      start = time.perf_counter_ns()
      if what == "decode":
        for token in tokens:
          self.decode([token], 1)
      elif what == "verify":
        self.decode(tokens, n)
      else:
        self.prompt(tokens, 1)
      samples.append(time.perf_counter_ns() - start)
      self.cut(depth)
    return statistics.median(samples[1:])  # the first warms up


def main():
  out = os.fdopen(os.dup(1), "w")  # whatever the library prints must not mix with the answers
  os.dup2(2, 1)
  context = Context(**json.loads(sys.argv[1]))
  for line in sys.stdin:
    print(context.measure(**json.loads(line)), file=out, flush=True)


if __name__ == "__main__":
  main()
