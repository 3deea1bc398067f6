#!/usr/bin/env python3
"""hunch and llama.cpp read each other's GGUF files: ours load there, those its quantiser writes load here, and both continue
the same prompts greedily by the same tokens. Run by ./test --peers, which builds llama-cpp-python into .venv."""
import ctypes
import json
import os
import subprocess
import tempfile
import unittest

import llama_cpp

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HUNCH = os.environ.get("HUNCH", os.path.join(ROOT, "build/release/hunch"))
MODEL = os.path.join(ROOT, "models/wren-34m.gguf")
PROMPTS = [
    "The captain looked at the sea and said nothing",
    "<|im_start|>user\nRecord 7: Mara Ellison, clerk, from Port Hallow. Badge QF-2093. Locker 4471. Deposited a lamp.\n\n"
    "Which badge does Mara Ellison have?<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
]


def hunch(model, prompt, count):
  # fp32 rows: llama.cpp multiplies fp16 rows, which differ less from fp32 than bf16 ones do.
  done = subprocess.run([HUNCH, "run", "-m", model, "-p", prompt, "-n", str(count), "--temp", "0", "--ignore-eos", "-c", "2048",
      "--kv-type", "f32", "--json"], capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout.splitlines()[-1])


def peer(model, prompt, count):
  llama = llama_cpp.Llama(model_path=model, n_ctx=2048, n_threads=2, verbose=False)
  ids = llama.tokenize(prompt.encode(), add_bos=False, special=True)
  out = []
  for token in llama.generate(ids, temp=0.0, top_k=1, repeat_penalty=1.0):
    out.append(token)
    if len(out) == count:
      break
  return ids, out


def tokens_of(prompt, model=MODEL):
  done = subprocess.run([HUNCH, "tokenize", "-m", model, "-p", prompt, "--json"], capture_output=True, text=True)
  assert done.returncode == 0, done.stderr
  return json.loads(done.stdout)["tokens"]


class Peers(unittest.TestCase):
  def compare(self, model):
    agreed = 0
    for prompt in PROMPTS:
      ids, theirs = peer(model, prompt, 24)
      self.assertEqual(tokens_of(prompt, model), ids)
      ours = hunch(model, prompt, 24)["tokens"]
      agreed += next((i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b), len(ours))
    # Two engines round activations differently, so a near tie may part them anywhere, and they do not meet again; a wrong
    # layout parts them at once in every prompt.
    self.assertGreaterEqual(agreed, 32, f"{model}: {agreed} of {24 * len(PROMPTS)} tokens before the streams part")

  def test_our_file_loads_there_and_says_the_same(self):
    self.compare(MODEL)

  def test_our_q4_files_load_there_and_say_the_same(self):
    with tempfile.TemporaryDirectory() as folder:
      for encoding in ("q4_0", "q4_k"):
        path = os.path.join(folder, encoding + ".gguf")
        subprocess.run([HUNCH, "quantize", MODEL, path, "--type", encoding], check=True, capture_output=True)
        self.compare(path)

  def test_files_of_its_quantiser_load_here_and_say_the_same(self):
    kinds = {"Q4_0": 2, "Q8_0": 7, "Q4_K_M": 15, "Q6_K": 18}
    with tempfile.TemporaryDirectory() as folder:
      for name, ftype in kinds.items():
        path = os.path.join(folder, name + ".gguf")
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype, params.allow_requantize, params.nthread = ftype, True, 2
        self.assertEqual(llama_cpp.llama_model_quantize(MODEL.encode(), path.encode(), ctypes.byref(params)), 0)
        self.compare(path)


if __name__ == "__main__":
  unittest.main()
