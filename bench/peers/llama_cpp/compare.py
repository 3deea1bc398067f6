#!/usr/bin/env python3
"""hunch against llama.cpp on one machine, one model file, one number of threads, in one run: the two take turns.

The peer is llama-cpp-python, built natively from its source distribution outside of this tree (into --prefix, else
$HUNCH_PEER_DIR, else $XDG_CACHE_HOME/hunch/peers/llama_cpp), and driven through libllama's C API (worker.py). Measured: plain decoding at depths,
verify passes of several rows (one llama_decode, logits of all rows), prompts, the same with an 8-bit KV cache, and with --text
prompt lookup by the package's own class (its wheel bundles neither server nor the n-gram drafters). Each with flash attention on and off.

Output: JSON lines in the format of `hunch bench -o jsonl` (-o FILE), and a table of ratios with the targets that exist.

usage: compare.py --binary build/release/hunch --model models/wren-34m.gguf [-d 0,16384,28672] [-o FILE] [--python PEER_PYTHON]
"""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import venv

HERE = os.path.dirname(os.path.abspath(__file__))
VERSION = "0.3.36"
TARGETS = {("decode", 0): 1.0, ("decode", 16384): 2.0, ("decode", 28672): 2.2}  # docs/results.md


def install(prefix):
  """The Python of the peer's environment; builds the package at the first call (minutes)."""
  python = os.path.join(prefix, "bin", "python3")
  probe = [python, "-c", "import llama_cpp"]
  if os.path.exists(python) and subprocess.run(probe, capture_output=True).returncode == 0:
    return python
  print(f"building llama-cpp-python {VERSION} in {prefix}", file=sys.stderr)
  venv.create(prefix, with_pip=True)
  environment = dict(os.environ, CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DLLAMA_BUILD_SERVER=OFF",
      CMAKE_BUILD_PARALLEL_LEVEL=str(os.cpu_count() or 2))
  subprocess.run([python, "-m", "pip", "install", "-q", "--no-binary", "llama-cpp-python", f"llama-cpp-python=={VERSION}"],
      check=True, env=environment, stdout=sys.stderr)
  subprocess.run(probe, check=True)
  return python


class Worker:
  def __init__(self, python, options):
    self.flash, self.kv = options["flash"], options["kv"]
    self.process = subprocess.Popen([python, os.path.join(HERE, "worker.py"), json.dumps(options)], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True)
    self.system = self.answer().get("system", "")

  def answer(self):
    line = self.process.stdout.readline()
    if not line:
      raise RuntimeError(f"the peer (flash attention {'on' if self.flash else 'off'}, {self.kv}) ended: {self.process.wait()}")
    return json.loads(line)

  def ask(self, do, **arguments):
    self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
    self.process.stdin.flush()
    return self.answer()["answer"]

  def close(self):
    self.process.stdin.close()
    self.process.wait()


class Hunch:
  def __init__(self, options):
    self.options = options

  def bench(self, kv, *arguments):
    command = [self.options.binary, "bench", *map(str, arguments), "-m", self.options.model, "-t", str(self.options.threads)]
    done = subprocess.run(command + ([] if kv == "default" else ["-ctk", kv, "-ctv", kv]), capture_output=True, text=True)
    if done.returncode != 0:
      raise RuntimeError(done.stderr.strip())
    return json.loads(done.stdout)

  def rows(self, kv, *arguments):
    return self.bench(kv, "-o", "json", *arguments)

  def decode(self, kv, depth, n, repetitions):
    return self.rows(kv, "-p", 0, "-n", n, "-d", depth, "-r", repetitions)[0]["samples_ns"]

  def prefill(self, kv, depth, n, repetitions):
    return self.rows(kv, "-p", n, "-n", 0, "-d", depth, "-r", repetitions)[0]["samples_ns"]

  def verify(self, kv, depth, rows, repetitions):
    table = self.bench(kv, "passes", "--only", "verify", "-d", depth, "--rows", rows, "-r", max(3, repetitions), "--json")["verify"]
    return [int(row["ms"] * 1e6) for row in table if row["pass"] == "bare" and row["rows"] == rows]


def row_of(options, what, test, tokens, n, depth, engine, kv, flash, samples):
  speeds = [tokens * 1e9 / ns for ns in samples]
  return {"engine": engine, "what": what, "test": test, "model_filename": options.model, "n_threads": options.threads,
      "type_k": kv, "type_v": kv, "flash_attn": flash, "n_prompt": n if what == "prefill" else 0,
      "n_gen": n if what != "prefill" else 0, "n_depth": depth,
      "test_time": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
      "avg_ns": int(statistics.mean(samples)), "avg_ts": statistics.mean(speeds),
      "stddev_ts": statistics.stdev(speeds) if len(speeds) > 1 else 0, "samples_ns": samples, "samples_ts": speeds}


class Comparison:
  def __init__(self, options, python):
    self.options, self.hunch, self.rows = options, Hunch(options), []
    self.file = open(options.output, "w", encoding="utf-8") if options.output else None
    self.python, self.workers = python, {}

  def emit(self, row):
    self.rows.append(row)
    if self.file:
      self.file.write(json.dumps(row) + "\n")
      self.file.flush()

  def peers(self, kv):
    """Contexts with flash attention off and on; made at first use. A quantised V cache exists only with it on."""
    if kv not in self.workers:
      self.workers[kv] = []
      for flash in ([False, True] if kv == "f16" else [True]):
        most = max(self.options.depths) + max([self.options.n, self.options.p, *self.options.rows]) + 64
        self.workers[kv].append(Worker(self.python, {"model": self.options.model, "n_ctx": most, "threads": self.options.threads,
            "flash": flash, "kv": kv, "verbose": self.options.verbose}))
    return self.workers[kv]

  def compare(self, what, test, tokens, n, depth, ours, theirs, kv_ours, kv_peer):
    """`rounds` turns of: ours, the peer without flash attention, the peer with it. The ratio is to the better of its two, by turn."""
    peers = self.peers(kv_peer)
    samples, per_peer, ratios = [], [[] for _ in peers], []
    for _ in range(self.options.rounds):
      try:
        mine = ours(kv_ours)
      except RuntimeError as error:
        print(f"{test}, kv {kv_ours}: not run: {error}", file=sys.stderr)
        return
      samples += mine
      best = None
      for i, peer in enumerate(peers):
        their = theirs(peer)
        per_peer[i] += their
        mean = statistics.mean(their)
        best = mean if best is None else min(best, mean)
      ratios.append(best / statistics.mean(mine))
    self.emit(row_of(self.options, what, test, tokens, n, depth, "hunch", kv_ours, True, samples))
    for peer, theirs_ns in zip(peers, per_peer):
      self.emit(row_of(self.options, what, test, tokens, n, depth, "llama.cpp", peer.kv, peer.flash, theirs_ns))
    target = TARGETS.get((what, depth)) if kv_ours == "default" else None
    self.emit({"what": what, "test": test, "n_depth": depth, "type_k": kv_ours, "peer_type_k": kv_peer,
        "ratio_to_peer": statistics.mean(ratios), "least": min(ratios), "most": max(ratios), "target": target})

  def run(self):
    o = self.options
    for kv_ours, kv_peer in [("default", "f16")] + ([] if o.no_8_bit else [("q8_0", "q8_0")]):
      for depth in sorted(o.depths):  # ascending: a context is filled onward, never again
        self.compare("decode", f"tg{o.n} @ d{depth}", o.n, o.n, depth, lambda kv: self.hunch.decode(kv, depth, o.n, o.repetitions),
            lambda peer: peer.ask("decode", depth=depth, n=o.n, repetitions=o.repetitions), kv_ours, kv_peer)
        for rows in o.rows:
          self.compare(f"verify of {rows}", f"verify{rows} @ d{depth}", rows, rows, depth,
              lambda kv: self.hunch.verify(kv, depth, rows, o.repetitions),
              lambda peer: peer.ask("verify", depth=depth, rows=rows, repetitions=max(3, o.repetitions)), kv_ours, kv_peer)
        if o.p > 0:
          self.compare("prefill", f"pp{o.p} @ d{depth}", o.p, o.p, depth, lambda kv: self.hunch.prefill(kv, depth, o.p, o.repetitions),
              lambda peer: peer.ask("prefill", depth=depth, n=o.p, repetitions=o.repetitions), kv_ours, kv_peer)
    if o.text:
      self.lookup()
    for workers in self.workers.values():
      for worker in workers:
        worker.close()

  def lookup(self):
    o = self.options
    for depth in sorted(d for d in o.depths if d > 0):
      for peer in self.peers("f16"):
        got = peer.ask("lookup", path=o.text, depth=depth, n=96, draft=o.draft)
        row = row_of(o, "prompt lookup", f"tg96 @ d{got['context']}", 96, 96, got["context"], "llama.cpp", "f16", peer.flash, [got["ns"]])
        row.update(drafter="prompt lookup", speedup=got["plain_ns"] / got["ns"], mean_acceptance_length=got["tokens_per_round"],
            same_tokens_as_plain=got["same_tokens_as_plain"], temperature=0)
        self.emit(row)
      for row in self.hunch.rows("default", "-p", 0, "-n", 96, "-d", depth, "-r", o.repetitions, "--spec", "self", "-f", o.text, "--temp", 0):
        self.emit(dict(row, what="self-speculation" if "speedup" in row else "decode"))

  def table(self):
    out = ["| what | kv (hunch, peer) | depth | hunch over the better of llama.cpp's two | least to most | target |", "|---|---|---|---|---|---|"]
    for row in self.rows:
      if "ratio_to_peer" not in row:
        continue
      target = "-" if row["target"] is None else f"{row['target']} {'met' if row['ratio_to_peer'] >= row['target'] else '**missed**'}"
      out.append(f"| {row['what']} | {row['type_k']}, {row['peer_type_k']} | {row['n_depth']} | {row['ratio_to_peer']:.2f} | "
          f"{row['least']:.2f} to {row['most']:.2f} | {target} |")
    for row in self.rows:
      if "speedup" in row:
        out.append(f"| {row['engine']}: {row['drafter']}, flash attention {'on' if row['flash_attn'] else 'off'} | {row['type_k']} | "
            f"{row['n_depth']} | {row['speedup']:.2f} times its own plain decoding, {row['mean_acceptance_length']:.2f} tokens a round | - | - |")
    return "\n".join(out)


def numbers(text):
  return [int(part) for part in text.split(",")]


def main():
  cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--binary", default="build/release/hunch")
  parser.add_argument("--model", default="models/wren-34m.gguf")
  parser.add_argument("--prefix", default=os.environ.get("HUNCH_PEER_DIR") or os.path.join(cache, "hunch", "peers", "llama_cpp"),
      help="the peer's environment; built there if absent")
  parser.add_argument("--python", help="a Python that already has llama_cpp (built natively)")
  parser.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)))
  parser.add_argument("-d", "--depths", type=numbers, default=[0, 16384, 28672])
  parser.add_argument("--rows", type=numbers, default=[2, 4, 8, 16])
  parser.add_argument("-n", type=int, default=24, help="generated tokens")
  parser.add_argument("-p", type=int, default=512, help="prompt tokens; 0: no prefill rows")
  parser.add_argument("-r", "--repetitions", type=int, default=2)
  parser.add_argument("--rounds", type=int, default=2, help="turns of each comparison")
  parser.add_argument("--no-8-bit", action="store_true", help="skip the 8-bit KV cache")
  parser.add_argument("--text", help="a text for prompt lookup against self-speculation")
  parser.add_argument("--draft", type=int, default=10, help="tokens that prompt lookup proposes")
  parser.add_argument("-o", "--output", help="JSON lines")
  parser.add_argument("--verbose", action="store_true", help="the peer's own log")
  options = parser.parse_args()
  options.model = os.path.abspath(options.model)
  comparison = Comparison(options, options.python or install(options.prefix))
  comparison.run()
  print(comparison.table())


if __name__ == "__main__":
  main()
