#!/usr/bin/env python3
"""What the server costs: the same 64 requests through `hunch batch` and through `hunch serve`, in turn, and how much later than
the engine's prompt pass the first token of a stream arrives. CPU time is told besides: on a machine that others use it is the
fairer figure, and what the server adds to it is more than what it takes from the engine, which has a core of its own.

    HUNCH=build/release/hunch python3 bench/server/overhead.py [--pairs 3] [--tokens 128]
"""
import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/server"))
from served import BINARY, MODEL, Served, completion_bytes, read_all  # noqa: E402

FLAGS = ("-c", "2048", "-t", "1", "-np", "16")


def requests(tokens):
  text = (ROOT / "ARCHITECTURE.md").read_text()
  return [{"prompt": text[200 * i:200 * i + 400], "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
      for i in range(64)]


def batch_seconds(bodies, folder):
  (folder / "in.jsonl").write_text("".join(json.dumps({"id": str(i), **b}) + "\n" for i, b in enumerate(bodies)))
  start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
  subprocess.run([BINARY, "batch", "-m", MODEL, str(folder / "in.jsonl"), "-o", "-", *FLAGS], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
  after = resource.getrusage(resource.RUSAGE_CHILDREN)
  return time.monotonic() - start, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def cpu_of(served):
  user, system = pathlib.Path(f"/proc/{served.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
  return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def server_seconds(served, bodies, stream):
  data = [completion_bytes({**b, "stream": stream}) for b in bodies]
  start, before = time.monotonic(), cpu_of(served)
  sockets = [served.socket(600) for _ in data]
  for s, d in zip(sockets, data):
    s.sendall(d)
  with ThreadPoolExecutor(len(sockets)) as pool:
    list(pool.map(read_all, sockets))
  seconds = time.monotonic() - start
  for s in sockets:
    s.close()
  return seconds, cpu_of(served) - before


def first_token_ms(served, body):
  """Of one stream on an idle server: arrival of the first text after the request went out, less the engine's own prompt time."""
  with served.socket(60) as s:
    data = completion_bytes({**body, "max_tokens": 4, "stream": True})
    start = time.monotonic()
    s.sendall(data)
    got = b""
    while b"data: " not in got:
      got += s.recv(65536)
    first = time.monotonic() - start
    got += read_all(s)
  timings = next(json.loads(line[6:])["timings"] for line in got.decode().splitlines() if line.startswith("data: ") and "timings" in line)
  return first * 1e3 - timings["prompt_ms"]


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument("--pairs", type=int, default=3)
  parser.add_argument("--tokens", type=int, default=128)
  parser.add_argument("--spec", default="none", help="what batch and server get behind --spec")
  arguments = parser.parse_args()
  global FLAGS
  FLAGS += ("--spec", arguments.spec)
  bodies = requests(arguments.tokens)
  served = Served(*FLAGS)
  ratios, cpu, best = {False: [], True: []}, {False: [], True: []}, {}
  try:
    with tempfile.TemporaryDirectory() as folder:
      folder = pathlib.Path(folder)
      server_seconds(served, bodies, False)
      for _ in range(arguments.pairs):
        batch = [x - y for x, y in zip(batch_seconds(bodies, folder), batch_seconds([], folder))]  # less the loading
        for stream in (False, True):
          server = server_seconds(served, bodies, stream)
          ratios[stream].append(batch[0] / server[0]), cpu[stream].append(server[1] / batch[1])
          for what, seconds in (("batch", batch[0]), (stream, server[0])):
            best[what] = min(seconds, best.get(what, seconds))
          print(f"{'streamed' if stream else 'whole'}: batch {batch[0]:.2f} s, server {server[0]:.2f} s; CPU {batch[1]:.2f} and {server[1]:.2f} s", flush=True)
    added = [first_token_ms(served, b) for b in bodies]
  finally:
    served.kill()
  added.sort()
  for stream, values in ratios.items():
    print(f"{'streamed' if stream else 'whole'}: median {statistics.median(values):.3f} of batch's throughput ({min(values):.3f} to {max(values):.3f}), "
        f"the best runs {best['batch'] / best[stream]:.3f}; {statistics.median(cpu[stream]):.3f} of its CPU time ({min(cpu[stream]):.3f} to {max(cpu[stream]):.3f})")
  print(f"first token: {added[32]:.2f} ms after the engine's prompt time (a quarter of the requests: {added[16]:.2f}, 90 %: {added[57]:.2f})")


if __name__ == "__main__":
  main()
