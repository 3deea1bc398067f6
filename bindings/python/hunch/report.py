"""Results of `hunch bench` and `hunch batch` as pandas tables. Needs pandas: pip install 'hunch[report]'.

    from hunch.report import read_bench
    read_bench("results.json")[["model_filename", "test", "drafter", "avg_ts"]]
"""
from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Iterable

try:
  import pandas as pd
except ImportError as missing:
  raise ImportError("hunch.report needs pandas: pip install 'hunch[report]'") from missing

Paths = str | os.PathLike | Iterable[str | os.PathLike]


def read_bench(paths: Paths) -> pd.DataFrame:
  """Rows of `hunch bench ... -o json|jsonl|csv`, one for each test; times are UTC. Of several files the column `file` says
  which. Rows of llama-bench are read likewise: the columns have its names."""
  table = _read(paths, _bench_rows)
  if "test_time" in table:
    table["test_time"] = pd.to_datetime(table["test_time"], utc=True)
  return table


def read_batch(paths: Paths) -> pd.DataFrame:
  """Answers of `hunch batch`, one row for each sample: its text and figures, or the error of its line."""
  return _read(paths, _batch_rows)


def speedups(table: pd.DataFrame, baseline: str = "none", by: Iterable[str] = ("model_filename", "test")) -> pd.DataFrame:
  """The table of read_bench() with the column `speedup`: tokens a second over those of `baseline` in the same test."""
  keys = list(by)
  lost = [name for name in (*keys, "drafter", "avg_ts") if name not in table]
  if lost:
    raise ValueError(f"the table has no column {', '.join(lost)}; it has {', '.join(map(str, table.columns))}")
  plain = table[table["drafter"] == baseline].groupby(keys)["avg_ts"].mean().rename("_plain")
  if plain.empty:
    raise ValueError(f"no row has drafter {baseline!r}; there are {', '.join(sorted(map(str, table['drafter'].unique())))}")
  joined = table.join(plain, on=keys)
  return joined.assign(speedup=joined["avg_ts"] / joined["_plain"]).drop(columns="_plain")


def _read(paths: Paths, rows_of) -> pd.DataFrame:
  files = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
  tables = [rows_of(pathlib.Path(file)).assign(file=os.fspath(file)) for file in files]
  if not tables:
    raise ValueError("no files were named")
  whole = pd.concat(tables, ignore_index=True)
  return whole if len(files) > 1 else whole.drop(columns="file")


def _objects(file: pathlib.Path) -> list[dict]:
  text = file.read_text(encoding="utf-8")
  try:
    lines = [line for line in text.splitlines() if line.strip()]
    rows = json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in lines]
  except json.JSONDecodeError as wrong:
    raise ValueError(f"{file}: neither JSON nor JSON lines nor CSV: {wrong}") from None
  if not all(isinstance(row, dict) for row in rows):
    raise ValueError(f"{file}: a list of objects is wanted, one for each test")
  return rows


def _bench_rows(file: pathlib.Path) -> pd.DataFrame:
  return pd.read_csv(file) if file.suffix == ".csv" else pd.DataFrame(_objects(file))


def _batch_rows(file: pathlib.Path) -> pd.DataFrame:
  rows = []
  for line in _objects(file):
    answer, error = line, line.get("error")
    if "custom_id" in line:  # OpenAI's envelope
      answer = (line.get("response") or {}).get("body") or {}
    name = {"id": line.get("custom_id", line.get("id"))}
    if error:
      rows.append(name | {"error": error.get("message")})
    for choice in answer.get("choices", []):
      kept = {key: choice.get(key) for key in ("index", "text", "finish_reason")}
      rows.append(name | kept | {"completion_tokens": len(choice.get("tokens") or [])} | answer.get("metrics", {}))
  table = pd.DataFrame(rows)
  if "seed" in table:  # in 64 bits, where some lines have none too
    table["seed"] = pd.array([row.get("seed") for row in rows], dtype="UInt64")
  return table
