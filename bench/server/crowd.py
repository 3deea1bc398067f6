#!/usr/bin/env python3
"""Who waits and who reads slowly must cost the others nothing: 64 streams alone, then beside 1,000 idle connections that are kept
alive and 200 clients that take their answers a few bytes at a time, in turn.

    HUNCH=build/release/hunch python3 bench/server/crowd.py [--pairs 3] [--tokens 200]
"""
import argparse
import pathlib
import resource
import selectors
import sys
import threading
import time
from statistics import median

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/server"))
from served import PROMPT, Served, get_bytes  # noqa: E402


def answer_all(served, bodies):
  """Seconds that these completions take together, each read as it comes, and all waits between two pieces of one (sorted)."""
  start = time.monotonic()
  selector = selectors.DefaultSelector()
  for body in bodies:
    selector.register(served.asking(body), selectors.EVENT_READ)
  last, waits = {}, []
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
  def __init__(self, served):
    self.idle = [served.socket(60) for _ in range(1000)]
    self._ask(self.idle)
    # Answers of a hundred kilobytes and more, most of which stay with the server.
    long = {"prompt": [5] * 200, "max_tokens": 1, "echo": True, "logprobs": 20, "temperature": 0}
    self.slow = [served.asking(long, receive_buffer=4096) for _ in range(200)]
    served.until(served.idle, 600)
    self.over = False
    self.thread = threading.Thread(target=self._work)
    self.thread.start()

  def _ask(self, sockets):
    for s in sockets:
      s.sendall(get_bytes("/health"))
      s.recv(4096)

  def _work(self):
    turn = 0
    while not self.over:  # every idle connection asks once in ten seconds, every slow reader takes 64 bytes a second
      self._ask(self.idle[turn % 10::10])
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
  arguments = parser.parse_args()
  resource.setrlimit(resource.RLIMIT_NOFILE, (8192, 8192))
  served = Served("-np", "64", "--max-connections-per-address", "5000", "--stall-timeout", "600", "--log-level", "warning")
  streams = [{"prompt": PROMPT, "max_tokens": arguments.tokens, "temperature": 0, "ignore_eos": True, "stream": True,
      "speculative_config": "off"}] * 64
  mebibytes = lambda: served.metric("process_resident_memory_bytes") / 2**20
  p99 = lambda waits: 1e3 * waits[int(0.99 * len(waits))]
  try:
    answer_all(served, streams)
    ratios, memory = [], []
    for _ in range(arguments.pairs):
      alone, waits = answer_all(served, streams)
      crowd = Crowd(served)
      beside, waits_beside = answer_all(served, streams)
      memory.append(mebibytes())
      crowd.close()
      served.until(served.idle, 60)
      ratios.append(beside / alone)
      print(f"64 streams: {alone:.2f} s alone, {beside:.2f} s in the crowd; wait between pieces, p99: {p99(waits):.0f} and "
          f"{p99(waits_beside):.0f} ms; {memory[-1]:.0f} MiB", flush=True)
    print(f"median: {median(ratios):.3f} of the time alone; memory {memory[0]:.0f} to {memory[-1]:.0f} "
        f"MiB, after it {mebibytes():.0f}; {served.metric('process_open_fds'):.0f} descriptors left")
  finally:
    served.kill()


if __name__ == "__main__":
  main()
