#!/usr/bin/env python3
"""Policies side by side, each at its own best number of drafts: a Markdown table of acceptance measured on texts (hunch bench
accept --json) and times measured at a shape (hunch bench rounds --policies ... -o json).

    policy_table.py ACCEPT.json... ROUNDS.json... [--names A=B,...]

Several files of one kind are added up. Tokens of a round with g drafts are 1 + sum of products of the acceptance by position,
pooled over all rounds: what equal numbers of tokens of every prompt take. A round's time is interpolated between the numbers of
drafts and the ratios that were timed. --names: policy A was not timed and costs what B does.
"""
import argparse
import json
from itertools import zip_longest


def rows_of(text):
  """All rows in a file: a line is a result, or {"result": ...} as scripts/gpu_check writes them."""
  results = [json.loads(line) for line in text.splitlines() if line.strip()]
  return [row for result in results for row in result.get("result", result)["rows"]]


def acceptance(rows):
  """(policy, ratio) -> [by position] and the mean relative error of its tokens a round."""
  sums = {}
  for row in rows:
    if "reached" not in row:
      continue
    reached, kept, errors = sums.setdefault((row["policy"], row["ratio"]), ([], [], []))
    for total, new in ((reached, row["reached"]), (kept, row["kept"])):
      total[:] = map(sum, zip_longest(total, new, fillvalue=0))
    errors.append(row["standard_error"] / row["mean_tokens_per_round"])
  return {key: ([k / max(1, r) for r, k in zip(reached, kept)], sum(errors) / len(errors))
      for key, (reached, kept, errors) in sums.items()}


def tokens(by_position, drafts):
  out = chance = 1.0
  for a in by_position[:drafts]:
    chance *= a
    out += chance
  return out


def between(points, x):
  """Linear between the points, and on through the first two or the last two; one point: that."""
  if len(points) == 1:
    return next(iter(points.values()))
  known = sorted(points)
  low = max([k for k in known[:-1] if k <= x], default=known[0])
  high = known[known.index(low) + 1]
  return points[low] + (points[high] - points[low]) * (x - low) / (high - low)


class Times:
  def __init__(self, rows):
    timed = [row for row in rows if row.get("what") == "round"]
    plain = [row["ms"] for row in rows if row.get("what") == "plain"]
    self.plain_ms = sum(plain) / len(plain)
    self.by = {}
    for row in timed:
      self.by.setdefault(row["policy"], {}).setdefault(row["ratio"], {})[row["gamma"]] = (row["draft_ms"], row["verify_ms"])

  def round_ms(self, policy, ratio, drafts):
    at = {}
    for timed, by_drafts in self.by[policy].items():
      if len(by_drafts) == 1:  # a draft costs what the others do
        (gamma, (draft, verify)), = by_drafts.items()
        at[timed] = draft / gamma * drafts + verify
      else:
        at[timed] = between({g: sum(parts) for g, parts in by_drafts.items()}, drafts)
    return between(at, ratio)


def best(policy, ratio, by_position, times, name):
  """The (tokens a second over plain, drafts, tokens, ms) that are most."""
  out = []
  for drafts in range(3, len(by_position) + 1):
    ms, made = times.round_ms(name, ratio, drafts), tokens(by_position, drafts)
    out.append((made * times.plain_ms / ms, drafts, made, ms))
  return max(out)


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("files", nargs="+")
  parser.add_argument("--names", default="")
  args = parser.parse_args()
  rows = []
  for path in args.files:
    with open(path, encoding="utf-8") as file:
      rows += rows_of(file.read())
  names = dict(pair.split("=") for pair in args.names.split(",") if pair)
  times, accepted = Times(rows), acceptance(rows)
  table = {}
  for (policy, ratio), (by_position, error) in accepted.items():
    name = names.get(policy, policy)
    if name in times.by:
      table.setdefault(policy, []).append((best(policy, ratio, by_position, times, name), ratio, by_position, error))
  print("| policy | ratio | acceptance by position | drafts | tokens a round | round, ms | over plain |\n|-|-|-|-|-|-|-|")
  for policy, cells in sorted(table.items(), key=lambda item: -max(item[1])[0][0]):
    (over, drafts, made, ms), ratio, by_position, error = max(cells)
    chain = " ".join(f"{a:.2f}"[1:] if a < 1 else "1" for a in by_position)
    print(f"| {policy} | {ratio:g} | {chain} | {drafts} | {made:.2f} ± {made * error:.2f} | {ms:.1f} | {over:.2f} |")


if __name__ == "__main__":
  main()
