#!/usr/bin/env python3
"""Two result files of `hunch bench -o jsonl` (or json) side by side: for each test that both have, the ratio of their speeds.

usage: compare_bench.py BEFORE AFTER [--threshold 0.95] [--metric avg_ts]

A test is identified by model, threads, KV type, prompt, generated tokens, depth, drafter and number of requests. A file may hold a test
several times (several runs): runs are paired in order and the median of the pairs' ratios counts, so that a drift of the machine that both
runs of a pair share cancels. Exit code 1 where a ratio lies below the threshold, 2 where the files have no test in common.
"""
import argparse
import json
import os
import statistics
import sys

KEYS = ("model_type", "n_threads", "type_k", "n_ubatch", "n_prompt", "n_gen", "n_depth", "drafter", "n_parallel", "engine", "what")


def rows_of(path):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        whole = json.loads(text)
        rows = whole if isinstance(whole, list) else whole.get("rows", [whole])
    except ValueError:
        rows = []
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip():
                continue
            try:
                rows.append(json.loads(line))
            except ValueError:
                raise SystemExit(f"{path}: line {number} is not JSON")
    if not all(isinstance(row, dict) for row in rows):
        raise SystemExit(f"{path}: holds something that is no result row")
    return rows


def by_test(rows, metric):
    out = {}
    for row in rows:
        if isinstance(row.get(metric), (int, float)):
            out.setdefault(tuple(row.get(key) for key in KEYS), []).append(row)
    return out


def name_of(row):
    extra = [str(row[key]) for key in ("drafter", "type_k") if row.get(key) not in (None, "none")]
    test = row.get("test") or f"pp{row.get('n_prompt', 0)}+tg{row.get('n_gen', 0)} @ d{row.get('n_depth', 0)}"
    return f"{test} ({', '.join(extra + [str(row.get('n_threads', '?')) + ' threads'])})"


def compare(before, after, metric):
    """[(name, mean before, mean after, median ratio, least, most, pairs)] in the order of `before`."""
    first, second = by_test(before, metric), by_test(after, metric)
    out = []
    for key, rows in first.items():
        pairs = [(a[metric], b[metric]) for a, b in zip(rows, second.get(key, [])) if a[metric] > 0]
        if not pairs:
            continue
        ratios = [b / a for a, b in pairs]
        out.append((name_of(rows[0]), statistics.mean(a for a, _ in pairs), statistics.mean(b for _, b in pairs),
                    statistics.median(ratios), min(ratios), max(ratios), len(pairs)))
    return out


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--threshold", type=float, default=0.95, help="least ratio after / before (default 0.95)")
    parser.add_argument("--metric", default="avg_ts", help="field to compare, larger is better (default avg_ts)")
    options = parser.parse_args(arguments)
    table = compare(rows_of(options.before), rows_of(options.after), options.metric)
    if not table:
        print(f"{options.before} and {options.after} have no test in common", file=sys.stderr)
        return 2
    slower = 0
    print(f"| test | {os.path.basename(options.before)} | {os.path.basename(options.after)} | ratio | least to most | pairs | |")
    print("|---|---|---|---|---|---|---|")
    for name, a, b, ratio, least, most, pairs in table:
        below = ratio < options.threshold
        slower += below
        print(f"| {name} | {a:.2f} | {b:.2f} | {ratio:.3f} | {least:.3f} to {most:.3f} | {pairs} | {'below' if below else ''} |")
    if slower:
        print(f"\n{slower} of {len(table)} below {options.threshold}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
