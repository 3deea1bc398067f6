#!/usr/bin/env python3
"""hunch against llama.cpp on one machine, one model file, one number of threads, in one run: the two take turns.

The peer is llama-cpp-python, built natively from its source distribution outside of this tree (in PREFIX), and driven through
libllama's C API (worker.py): no sampling and no Python list per token inside the timing but the copy of ids. Timed at depths:
plain decoding, verify passes of several rows (one llama_decode, logits of all rows; hunch also samples them) and prompts. The
ratio is to the better of flash attention off and on. The peer decodes random tokens to reach a depth, hunch stores noise of the
same shape. KV f16 is hunch's default type; then 8-bit in both, where hunch has it.

Run it on an idle machine: the peer's OpenMP threads wait in spinning barriers and lose far more than hunch on shared cores.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import venv

HERE = os.path.dirname(os.path.abspath(__file__))
VERSION = "0.3.36"
PREFIX = os.path.expanduser("~/.cache/hunch/peers/llama_cpp")


def install():
  """The Python of the peer's environment; builds the package if it is not there (minutes)."""
  python = os.path.join(PREFIX, "bin", "python3")
  if not os.path.exists(python):
    venv.create(PREFIX, with_pip=True)
  environment = dict(os.environ, CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF -DLLAMA_BUILD_SERVER=OFF",
      CMAKE_BUILD_PARALLEL_LEVEL=str(os.cpu_count() or 2))
  subprocess.run([python, "-m", "pip", "install", "--no-binary", "llama-cpp-python", f"llama-cpp-python=={VERSION}"],
      check=True, env=environment, stdout=sys.stderr)
  return python


class Peer:
  def __init__(self, python, **context):
    self.process = subprocess.Popen([python, os.path.join(HERE, "worker.py"), json.dumps(context)], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True)

  def measure(self, **test):
    """The median nanoseconds of a test's repetitions."""
    try:
      print(json.dumps(test), file=self.process.stdin, flush=True)
      return float(self.process.stdout.readline())
    except (OSError, ValueError):
      sys.exit("the peer ended")

  def close(self):
    self.process.stdin.close()
    self.process.wait()


def measure_hunch(options, kv, what, depth, n):
  """As Peer.measure; None if hunch has no such cache for this model."""
  command = [options.binary, "bench", "-d", depth, "-r", options.repetitions, "-m", options.model, "-t", options.threads]
  if what == "verify":
    command[2:2] = ["passes", "--only", "verify", "--rows", n, "--json"]
  else:
    command += ["-o", "json", "-n", n if what == "decode" else 0, "-p", n if what == "prefill" else 0]
  if kv != "f16":
    command += ["-ctk", kv, "-ctv", kv]
  done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
  if done.returncode != 0:
    print(f"{what}, kv {kv}: not run: {done.stderr.strip()}", file=sys.stderr)
    return None
  result = json.loads(done.stdout)
  if what == "verify":
    return next(row["ms"] * 1e6 for row in result["verify"] if row["pass"] == "bare")
  return statistics.median(result[0]["samples_ns"])


def compare(options, peers, kv, what, depth, n):
  """Prints a row of the table. A round's ratio is to the better peer of that round."""
  rounds = []
  for _ in range(options.rounds):
    ours = measure_hunch(options, kv, what, depth, n)
    if ours is None:
      return
    rounds.append([ours] + [peer.measure(what=what, depth=depth, n=n, repetitions=options.repetitions) for peer in peers])
  ratios = [min(theirs) / ours for ours, *theirs in rounds]
  ours, *theirs = [f"{n * 1e9 / statistics.mean(times):.1f}" for times in zip(*rounds)]
  print(f"| {what} of {n} | {kv} | {depth} | {ours} | {' / '.join(theirs)} | {statistics.mean(ratios):.2f} | {min(ratios):.2f} | "
      f"{max(ratios):.2f} |", flush=True)


def numbers(text):
  return [int(part) for part in text.split(",")]


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--binary", default="build/release/hunch")
  parser.add_argument("--model", default="models/wren-34m.gguf")
  parser.add_argument("--python", help="a Python that already has llama_cpp (built natively)")
  parser.add_argument("-t", "--threads", type=int, default=len(os.sched_getaffinity(0)))
  parser.add_argument("-d", "--depths", type=numbers, default=[0, 16384, 28672])
  parser.add_argument("-n", type=numbers, default=[24], help="generated tokens")
  parser.add_argument("--rows", type=numbers, default=[2, 4, 8, 16], help="rows of verify passes")
  parser.add_argument("-p", type=numbers, default=[512], help="prompt tokens; 0 in any of these three: none")
  parser.add_argument("-r", "--repetitions", type=int, default=3)
  parser.add_argument("--rounds", type=int, default=2, help="turns")
  parser.add_argument("--no-8-bit", action="store_true")
  options = parser.parse_args()
  python = options.python or install()
  counts = {"decode": options.n, "verify": options.rows, "prefill": options.p}
  tests = [(what, n) for what in counts for n in counts[what] if n > 0]
  room = max(options.depths) + max(n for _, n in tests) + 64
  print("| what | kv | depth | hunch, tokens/s | llama.cpp, -fa 0 / 1 | ratio | least | most |\n|-|-|-|-|-|-|-|-|")
  for kv in ["f16"] if options.no_8_bit else ["f16", "q8_0"]:
    # Flash attention off and on; a quantised V cache exists only with it on.
    peers = [Peer(python, model=options.model, threads=options.threads, n_ctx=room, flash=flash, kv=kv)
        for flash in (False, True) if flash or kv == "f16"]
    for depth in sorted(options.depths):  # ascending: a context is filled onward, never again
      for what, n in tests:
        compare(options, peers, kv, what, depth, n)
    for peer in peers:
      peer.close()


if __name__ == "__main__":
  main()
