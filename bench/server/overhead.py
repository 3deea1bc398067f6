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
import subprocess
import tempfile
import time
from statistics import median

from crowd import ROOT, answer_all
from served import BINARY, MODEL, Served, completion_bytes, events, read_all

FLAGS = ("-c", "2048", "-t", "1", "-np", "16", "--spec", "none")


def batch_seconds(bodies, folder):
  """Wall and CPU time of `hunch batch`."""
  path = pathlib.Path(folder) / "in.jsonl"
  path.write_text("".join(json.dumps({"id": str(i), **body}) + "\n" for i, body in enumerate(bodies)))
  start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
  subprocess.run([BINARY, "batch", "-m", MODEL, path, "-o", "-", *FLAGS], check=True, capture_output=True)
  after = resource.getrusage(resource.RUSAGE_CHILDREN)
  return time.monotonic() - start, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def cpu_of(served):
  user, system = pathlib.Path(f"/proc/{served.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]
  return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def server_seconds(served, bodies, stream):
  before = cpu_of(served)
  seconds, _ = answer_all(served, [{**body, "stream": stream} for body in bodies])
  return seconds, cpu_of(served) - before


def first_token_ms(served, body):
  """Of one stream on an idle server: arrival of the first text after the request went out, less the engine's own prompt time."""
  data = completion_bytes({**body, "max_tokens": 4, "stream": True})
  with served.socket(60) as s:
    start = time.monotonic()
    s.sendall(data)
    got = b""
    while b"data: " not in got:
      got += s.recv(65536)
    first = time.monotonic() - start
    got += read_all(s)
  timings = next(json.loads(event)["timings"] for event in events(got) if "timings" in event)
  return first * 1e3 - timings["prompt_ms"]


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument("--pairs", type=int, default=3)
  parser.add_argument("--tokens", type=int, default=128)
  arguments = parser.parse_args()
  text = (ROOT / "ARCHITECTURE.md").read_text()
  settings = {"max_tokens": arguments.tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False}
  bodies = [{"prompt": text[len(text) * i // 70:][:400], **settings} for i in range(64)]
  served = Served(*FLAGS)
  times = {"whole": [], "streamed": []}  # pairs of batch and server, each wall and CPU time
  try:
    with tempfile.TemporaryDirectory() as folder:
      server_seconds(served, bodies, False)
      for _ in range(arguments.pairs):
        batch = [x - y for x, y in zip(batch_seconds(bodies, folder), batch_seconds([], folder))]  # less the loading
        for how, pairs in times.items():
          server = server_seconds(served, bodies, how == "streamed")
          pairs.append((batch, server))
          print(f"{how}: batch {batch[0]:.2f} s, server {server[0]:.2f} s; CPU {batch[1]:.2f} and {server[1]:.2f} s", flush=True)
    added = [first_token_ms(served, body) for body in bodies]
  finally:
    served.kill()
  for how, pairs in times.items():
    ratios = [batch[0] / server[0] for batch, server in pairs]
    cpu = [server[1] / batch[1] for batch, server in pairs]
    print(f"{how}: median {median(ratios):.3f} of batch's throughput ({min(ratios):.3f} to {max(ratios):.3f}); "
        f"{median(cpu):.3f} of its CPU time ({min(cpu):.3f} to {max(cpu):.3f})")
  print(f"first token: median {median(added):.2f} ms after the engine's prompt time ({min(added):.2f} to {max(added):.2f})")


if __name__ == "__main__":
  main()
