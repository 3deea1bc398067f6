#!/usr/bin/env python3
"""What masks of a grammar cost while guessing: the model copies a listing, without and with an expression that allows all text, so
that both streams are the same; runs in turn. CPU time of one thread, less that of a run of one token: neighbours cost it least.

    HUNCH=build/release/hunch python3 bench/structured.py [--pairs 3]
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
BINARY = os.environ.get("HUNCH", str(ROOT / "build/release/hunch"))
METHODS = ("none", "ngram", "suffix", "self", "auto")


def seconds(prompt, tokens, method, grammar):
  before = resource.getrusage(resource.RUSAGE_CHILDREN)
  out = subprocess.run([BINARY, "run", "-m", str(ROOT / "models/wren-34m.gguf"), "-f", prompt, "-n", str(tokens), "--temp", "0", "-t", "1", "--ignore-eos",
      "--spec", method, "--json", *(["--regex", r"(.|\n)*"] if grammar else [])], check=True, capture_output=True, text=True).stdout
  after = resource.getrusage(resource.RUSAGE_CHILDREN)
  return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, json.loads(out)["text"]


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument("--pairs", type=int, default=3)
  parser.add_argument("--tokens", type=int, default=400)
  arguments = parser.parse_args()
  with tempfile.NamedTemporaryFile("w", suffix=".txt") as prompt:
    listing = "\n".join(f"item {i % 12}: name = value_{i % 7}, size = {i % 5}" for i in range(120))
    prompt.write(listing)
    prompt.flush()
    for method in METHODS:
      ratios = []
      for _ in range(arguments.pairs):
        took, texts = [], []
        for grammar in (False, True):
          start, _ = seconds(prompt.name, 1, method, grammar)
          all_of_it, text = seconds(prompt.name, arguments.tokens, method, grammar)
          took.append(all_of_it - start)
          texts.append(text)
        assert texts[0] == texts[1], "the grammar changed the text"
        ratios.append(took[0] / took[1])
      print(f"{method}: {statistics.median(ratios):.3f} of the speed without a grammar ({min(ratios):.3f} to {max(ratios):.3f})", flush=True)


if __name__ == "__main__":
  main()
