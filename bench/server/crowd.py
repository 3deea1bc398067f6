#!/usr/bin/env python3
"""Who waits and who reads slowly must cost the others nothing: 64 streams alone, then beside 1,000 idle connections that are kept
alive and 200 clients that take their answers a few bytes at a time, in turn.

    HUNCH=build/release/hunch python3 bench/server/crowd.py [--pairs 3] [--tokens 200]
"""
import argparse
import pathlib
import resource
import selectors
import statistics
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/server"))
from served import PROMPT, Served, get_bytes, post_bytes  # noqa: E402


def streams(served, count, tokens):
  """Seconds that they take together, and all waits between two pieces that came (sorted)."""
  data = post_bytes("/v1/completions", {"prompt": PROMPT, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
      "speculative_config": "off"})
  selector = selectors.DefaultSelector()
  start = time.monotonic()
  last = {}
  for _ in range(count):
    s = served.socket()
    s.sendall(data)
    s.setblocking(False)
    selector.register(s, selectors.EVENT_READ)
  waits = []
  while selector.get_map():
    for key, _ in selector.select():
      now = time.monotonic()
      if not key.fileobj.recv(65536):
        selector.unregister(key.fileobj)
        key.fileobj.close()
        continue
      if key.fileobj in last:
        waits.append(now - last[key.fileobj])
      last[key.fileobj] = now
  return time.monotonic() - start, sorted(waits)


class Crowd:
  def __init__(self, served, idle, slow):
    self.idle = [served.socket(60) for _ in range(idle)]
    for s in self.idle:
      s.sendall(get_bytes("/health"))
      s.recv(4096)
    # Answers of a hundred kilobytes and more, most of which stay with the server.
    data = post_bytes("/v1/completions", {"prompt": [5] * 200, "max_tokens": 1, "echo": True, "logprobs": 20, "temperature": 0})
    self.slow = []
    for _ in range(slow):
      s = served.socket(60, receive_buffer=4096)
      s.sendall(data)
      self.slow.append(s)
    served.until(served.idle, 600)
    self.over = False
    self.thread = threading.Thread(target=self._work)
    self.thread.start()

  def _work(self):
    turn = 0
    while not self.over:  # every idle connection asks once in ten seconds, every slow reader takes 64 bytes a second
      for s in self.idle[turn % 10::10]:
        s.sendall(get_bytes("/health"))
        s.recv(4096)
      for s in self.slow:
        s.recv(64)
      turn += 1
      time.sleep(1)

  def close(self):
    self.over = True
    self.thread.join()
    for s in self.idle + self.slow:
      s.close()


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument("--pairs", type=int, default=3)
  parser.add_argument("--tokens", type=int, default=200)
  parser.add_argument("--idle", type=int, default=1000)
  parser.add_argument("--slow", type=int, default=200)
  arguments = parser.parse_args()
  resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
  served = Served("-np", "64", "--max-connections-per-address", "5000", "--stall-timeout", "600", "--log-level", "warning")
  try:
    streams(served, 64, arguments.tokens)
    ratios, tails, memory, best = [], [], [], [float("inf")] * 2
    for _ in range(arguments.pairs):
      alone, waits = streams(served, 64, arguments.tokens)
      crowd = Crowd(served, arguments.idle, arguments.slow)
      beside, slow_waits = streams(served, 64, arguments.tokens)
      memory.append(served.metric("process_resident_memory_bytes") / 2**20)
      crowd.close()
      served.until(served.idle, 60)
      p99 = [1e3 * w[int(0.99 * len(w))] for w in (waits, slow_waits)]
      best = [min(b, now) for b, now in zip(best, (alone, beside))]
      ratios.append(beside / alone), tails.append(p99[1] / p99[0])
      print(f"64 streams: {alone:.2f} s alone, {beside:.2f} s in the crowd; wait between pieces, p99: {p99[0]:.0f} and {p99[1]:.0f} ms; "
          f"{memory[-1]:.0f} MiB", flush=True)
    print(f"median: {statistics.median(ratios):.3f} of the time alone, the best runs {best[1] / best[0]:.3f}, p99 {statistics.median(tails):.3f}; memory {memory[0]:.0f} to {memory[-1]:.0f} MiB, "
        f"after it {served.metric('process_resident_memory_bytes') / 2**20:.0f}; {served.metric('process_open_fds'):.0f} descriptors left")
  finally:
    served.kill()


if __name__ == "__main__":
  main()
