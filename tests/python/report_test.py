"""hunch.report: what the program writes, as tables."""
import json
import os
import subprocess
import tempfile
import unittest

from hunch.report import read_batch, read_bench, speedups
from shipped import MODEL, PROGRAM, PROMPTS


def program(*arguments):
  done = subprocess.run([PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, timeout=300)
  return done.stdout


class Report(unittest.TestCase):
  def setUp(self):
    self.folder = tempfile.TemporaryDirectory()
    self.addCleanup(self.folder.cleanup)

  def file(self, name, data):
    path = os.path.join(self.folder.name, name)
    with open(path, "wb") as file:
      file.write(data)
    return path

  def test_bench_rows_of_every_format_become_the_same_table(self):
    flags = ["bench", "-m", MODEL, "-p", "16", "-n", "4", "-r", "1"]
    for form in ("json", "jsonl", "csv"):
      path = self.file("rows." + form, program(*flags, "-o", form))
      table = read_bench(path)
      self.assertEqual(list(table["test"]), ["pp16", "tg4"])
      self.assertTrue((table["avg_ts"] > 0).all() and table["lossless"].all())
      self.assertEqual(str(table["test_time"].dt.tz), "UTC")
    both = read_bench([path, path])
    self.assertEqual((len(both), set(both["file"])), (4, {path}))

  def test_batch_answers_become_rows_of_samples(self):
    lines = [{"id": i, "prompt": p, "max_tokens": 4, "n": 2, "seed": (1 << 63) - 1} for i, p in enumerate(PROMPTS)]
    lines.append({"id": "bad", "prompt": "x", "max_tokens": -7})
    asked = self.file("asked.jsonl", "\n".join(map(json.dumps, lines)).encode())
    answers = os.path.join(self.folder.name, "answers.jsonl")
    subprocess.run([PROGRAM, "batch", "-m", MODEL, "-c", "256", asked, "-o", answers], stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, timeout=300)
    table = read_batch(answers)
    good = table[table["id"] != "bad"]
    self.assertEqual(sorted(zip(good["id"], good["index"])), [(i, k) for i in range(3) for k in range(2)])
    self.assertTrue((good["completion_tokens"] == 4).all() and good["lossless"].all())
    self.assertEqual(set(good["seed"]), {(1 << 63) - 1})
    self.assertIn("max_tokens", table[table["id"] == "bad"]["error"].iloc[0])

  def test_speedups_compare_the_same_test(self):
    rows = [{"model_filename": "m", "test": t, "drafter": d, "avg_ts": v}
        for t, d, v in (("tg8", "none", 10), ("tg8", "self", 15), ("tg16", "none", 5), ("tg16", "self", 20))]
    table = speedups(read_bench(self.file("rows.json", json.dumps(rows).encode())))
    self.assertEqual(list(table["speedup"]), [1, 1.5, 1, 4])
    self.assertRaisesRegex(ValueError, "no row has drafter 'plain'", speedups, table, baseline="plain")

  def test_other_files_are_refused_by_name(self):
    self.assertRaisesRegex(ValueError, "notes.txt: neither JSON", read_bench, self.file("notes.txt", b"what I saw"))


if __name__ == "__main__":
  unittest.main()
