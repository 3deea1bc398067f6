#!/usr/bin/env python3
"""How long the device has nothing to do within a round, from the records that kernel_times.cpp writes.

    idle.py TIMES --launches GAMMA+1 --rounds N

TIMES: of `hunch bench rounds --gammas GAMMA --rounds N`, one batch, depth and policy. Such a run ends with N timed rounds, then N
rounds with a wait between drafts and pass; the N timed ones are looked at. Idle within graphs: no kernel runs between a graph's
first kernel and its last. Between graphs: from the last kernel of one to the first of the next, copies of arguments included.
Recording adds to the gaps between kernels, so that the figures are upper bounds: compare the round's time with and without.
"""
import argparse
import json
import struct


def union(spans):
  """Total length of intervals that may overlap."""
  busy, end = 0, 0
  for a, b in sorted(spans):
    busy += max(0, b - max(a, end))
    end = max(end, b)
  return busy


def rounds_of(records, launches, rounds):
  graphs = {}
  for begin, end, correlation, graph in records:
    if graph:
      graphs.setdefault(correlation, []).append((begin, end))
  order = sorted(graphs.values(), key=lambda spans: min(a for a, _ in spans))
  timed = order[-2 * rounds * launches : -rounds * launches]
  return [timed[i : i + launches] for i in range(0, len(timed), launches)]


def summary(records, launches, rounds):
  found = rounds_of(records, launches, rounds)
  if len(found) != rounds or any(len(r) != launches for r in found):
    raise SystemExit(f"idle.py: no {rounds} rounds of {launches} graphs in these records")
  first = [min(a for spans in r for a, _ in spans) for r in found]
  last = [max(b for spans in r for _, b in spans) for r in found]
  # A round reaches from its first kernel to the next round's: what the host does between rounds counts.
  whole = first[-1] - first[0]
  inside = sum(max(b for _, b in spans) - min(a for a, _ in spans) - union(spans) for r in found[:-1] for spans in r)
  busy = sum(union([span for spans in r for span in spans]) for r in found[:-1])
  between = whole - busy - inside
  n = (rounds - 1) * 1e6
  return {"round_ms": whole / n, "busy_ms": busy / n, "idle_within_graphs": inside / whole, "idle_between_graphs": between / whole,
      "host_between_rounds": sum(a - b for a, b in zip(first[1:], last[:-1])) / whole,
      "kernels": sum(len(spans) for spans in found[0])}


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("times")
  parser.add_argument("--launches", type=int, required=True)
  parser.add_argument("--rounds", type=int, required=True)
  args = parser.parse_args()
  with open(args.times, "rb") as file:
    data = file.read()
  print(json.dumps(summary(list(struct.iter_unpack("4Q", data[: len(data) // 32 * 32])), args.launches, args.rounds)))


if __name__ == "__main__":
  main()
