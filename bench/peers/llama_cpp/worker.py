"""The peer's side of compare.py: runs under the Python that has llama-cpp-python, and calls libllama's C API through ctypes.

One process is one context (flash attention on or off, one KV type). It reads a JSON command a line and answers a JSON line with
the nanoseconds of each repetition. The cache is filled by decoding random tokens, once per depth, and cut back after each test.
"""
import ctypes
import json
import os
import random
import sys
import time

import llama_cpp as api
import numpy as np

KV_TYPES = {"f16": "GGML_TYPE_F16", "f32": "GGML_TYPE_F32", "q8_0": "GGML_TYPE_Q8_0", "q4_0": "GGML_TYPE_Q4_0"}
CHUNK = 512


class Context:
  def __init__(self, options):
    if not options["verbose"]:  # libllama logs to stderr by itself
      self.silence = api.llama_log_callback(lambda level, text, data: None)
      api.llama_log_set(self.silence, ctypes.c_void_p(0))
    api.llama_backend_init()
    self.model = api.llama_model_load_from_file(options["model"].encode(), api.llama_model_default_params())
    if not self.model:
      raise SystemExit(f"the peer cannot load {options['model']}")
    params = api.llama_context_default_params()
    params.n_ctx = options["n_ctx"]
    params.n_batch, params.n_ubatch = 2048, CHUNK
    params.n_threads = params.n_threads_batch = options["threads"]
    params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_ENABLED if options["flash"] else api.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.type_k = params.type_v = getattr(api, KV_TYPES[options["kv"]])
    params.no_perf = True
    self.context = api.llama_init_from_model(self.model, params)
    if not self.context:  # a quantised V cache needs flash attention there
      raise SystemExit("the peer refuses this context (a quantised V cache needs flash attention)")
    self.memory = api.llama_get_memory(self.context)
    self.vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self.model))
    self.batch = api.llama_batch_init(2048, 0, 1)
    self.length = 0
    self.dice = random.Random(7)

  def decode(self, tokens, logits):
    """`logits`: "none", "last" or "all" rows. Returns after the work is done, not when it was queued."""
    batch, n = self.batch, len(tokens)
    batch.n_tokens = n
    for i, token in enumerate(tokens):
      batch.token[i] = token
      batch.pos[i] = self.length + i
      batch.n_seq_id[i] = 1
      batch.seq_id[i][0] = 0
      batch.logits[i] = logits == "all" or (logits == "last" and i == n - 1)
    if api.llama_decode(self.context, batch) != 0:
      raise SystemExit(f"llama_decode failed at {self.length}")
    api.llama_synchronize(self.context)
    self.length += n

  def cut(self, length):
    api.llama_memory_seq_rm(self.memory, 0, length, -1)
    self.length = length

  def tokens(self, n):
    return [self.dice.randrange(self.vocab) for _ in range(n)]

  def prompt(self, tokens, logits="last"):
    for first in range(0, len(tokens), CHUNK):
      part = tokens[first:first + CHUNK]
      self.decode(part, logits if first + len(part) == len(tokens) else "none")

  def at_depth(self, depth):
    if self.length > depth:
      self.cut(depth)
    self.prompt(self.tokens(depth - self.length), "none")

  def timed(self, repetitions, depth, work):
    out = []
    for r in range(repetitions + 1):  # the first warms up
      start = time.perf_counter_ns()
      work()
      spent = time.perf_counter_ns() - start
      self.cut(depth)
      if r:
        out.append(spent)
    return out

  def best(self, row):
    return int(np.ctypeslib.as_array(api.llama_get_logits_ith(self.context, row), shape=(self.vocab,)).argmax())

  # Tests

  def decode_test(self, depth, n, repetitions):
    self.at_depth(depth)
    tokens = self.tokens(n)
    return self.timed(repetitions, depth, lambda: [self.decode([t], "all") for t in tokens])

  def verify_test(self, depth, rows, repetitions):
    self.at_depth(depth)
    tokens = self.tokens(rows)
    return self.timed(repetitions, depth, lambda: self.decode(tokens, "all"))

  def prefill_test(self, depth, n, repetitions):
    self.at_depth(depth)
    tokens = self.tokens(n)
    return self.timed(repetitions, depth, lambda: self.prompt(tokens))

  def greedy(self, ids, n, drafter):
    """n tokens behind `ids`; `drafter` (or None) proposes, every proposal is verified in one llama_decode."""
    self.cut(0)
    self.prompt(ids)
    ids, rounds, accepted = list(ids), 0, 0
    ids.append(self.best(-1))
    first = len(ids)
    start = time.perf_counter_ns()
    while len(ids) - first < n:
      draft = [int(t) for t in drafter(np.array(ids, dtype=np.intc))] if drafter else []
      draft = draft[:max(0, n - (len(ids) - first) - 1)]
      base = self.length
      self.decode([ids[-1]] + draft, "all")
      choices = [self.best(row) for row in range(len(draft) + 1)]
      kept = 0
      while kept < len(draft) and draft[kept] == choices[kept]:
        kept += 1
      ids += draft[:kept] + [choices[kept]]
      rounds, accepted = rounds + 1, accepted + kept
      self.cut(base + 1 + kept)
    return {"ns": time.perf_counter_ns() - start, "tokens": ids[first:], "rounds": rounds, "accepted": accepted}

  def lookup_test(self, path, depth, n, draft):
    """Prompt lookup with the package's own class, in this loop: the package bundles no other drafter that runs without its tools."""
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
    with open(path, "rb") as file:
      text = file.read()
    room = len(text) + 16
    buffer = (api.llama_token * room)()
    count = api.llama_tokenize(api.llama_model_get_vocab(self.model), text, len(text), buffer, room, False, True)
    ids = list(buffer[:count])[-depth:]
    plain = self.greedy(ids, n, None)
    guessed = self.greedy(ids, n, LlamaPromptLookupDecoding(max_ngram_size=3, num_pred_tokens=draft))
    return {"context": len(ids), "plain_ns": plain["ns"], "ns": guessed["ns"],
        "tokens_per_round": len(guessed["tokens"]) / max(1, guessed["rounds"]),
        "same_tokens_as_plain": plain["tokens"] == guessed["tokens"]}


def main():
  out = os.fdopen(os.dup(1), "w")  # whatever the library prints must not mix with the answers
  os.dup2(2, 1)
  context = Context(json.loads(sys.argv[1]))
  out.write(json.dumps({"ready": True, "system": api.llama_print_system_info().decode()}) + "\n")
  out.flush()
  for line in sys.stdin:
    command = json.loads(line)
    answer = getattr(context, command.pop("do") + "_test")(**command)
    out.write(json.dumps({"answer": answer}) + "\n")
    out.flush()


if __name__ == "__main__":
  main()
