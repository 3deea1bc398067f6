"""tools/policy_table.py and bench/gpu/idle.py: arithmetic on made-up measurements."""
import contextlib
import io
import json
import os
import sys
import tempfile
import unittest

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path[:0] = [os.path.join(ROOT, "tools"), os.path.join(ROOT, "bench", "gpu")]
import idle  # noqa: E402
import policy_table  # noqa: E402


def accepted(policy, ratio, kept, reached):
  return {"policy": policy, "ratio": ratio, "reached": reached, "kept": kept, "mean_tokens_per_round": 4.0, "standard_error": 0.4}


def timed(policy, ratio, gamma, draft_ms, verify_ms):
  return {"what": "round", "policy": policy, "ratio": ratio, "gamma": gamma, "draft_ms": draft_ms, "verify_ms": verify_ms}


class PolicyTable(unittest.TestCase):
  def table(self, files, *flags):
    with tempfile.TemporaryDirectory() as folder:
      paths = []
      for i, text in enumerate(files):
        paths.append(os.path.join(folder, str(i)))
        with open(paths[-1], "w", encoding="utf-8") as file:
          file.write(text)
      out, argv = io.StringIO(), sys.argv
      sys.argv = ["policy_table.py", *paths, *flags]
      try:
        with contextlib.redirect_stdout(out):
          policy_table.main()
      finally:
        sys.argv = argv
      return [[cell.strip() for cell in line.split("|")[1:-1]] for line in out.getvalue().splitlines()[2:]]

  def test_adds_files_up_and_takes_each_policys_best_drafts(self):
    halves = [json.dumps({"rows": [accepted("a", 0.05, [5, 4, 2, 0], [10, 5, 4, 2]), accepted("b", 0.05, [9] * 4, [9] * 4)]}),
        json.dumps({"name": "x", "result": {"rows": [accepted("a", 0.05, [10, 8, 4, 0], [10, 10, 8, 4])]}}) + "\n"]
    rounds = json.dumps({"rows": [{"what": "plain", "ms": 10.0}] + [timed(p, r, g, g * 1.0, 10.0 + 100 * r)
        for p in "ab" for r in (0.03, 0.07) for g in (3, 5)]})
    rows = self.table([*halves, rounds])
    self.assertEqual([row[0] for row in rows], ["b", "a"])  # the faster first
    # a: 15/20, 12/15, 6/12, 0: three drafts are the best, 1 + .75 + .6 + .3; ratio and drafts lie between those timed.
    self.assertEqual(rows[1][1:], ["0.05", ".75 .80 .50 .00", "3", "2.65 ± 0.27", "18.0", "1.47"])
    self.assertEqual(rows[0][3:], ["4", "5.00 ± 0.50", "19.0", "2.63"])

  def test_leaves_out_what_was_not_timed_unless_it_costs_what_another_does(self):
    files = [json.dumps({"rows": [accepted("a", 0.03, [8, 4, 2], [10, 8, 4])]}),
        json.dumps({"rows": [{"what": "plain", "ms": 10.0}, timed("b", 0.03, 3, 6.0, 14.0)]})]
    self.assertEqual(self.table(files), [])
    self.assertEqual(self.table(files, "--names", "a=b")[0][5:], ["20.0", "1.20"])


class Idle(unittest.TestCase):
  def records(self, warm, rounds):
    """Rounds of three graphs of five kernels of 90 ns, 10 apart; 40 more between graphs, 100 more between rounds."""
    out, now = [], 0
    for launch in range(3 * (warm + 2 * rounds)):
      for _ in range(5):
        out.append((now, now + 90, launch, 7))
        now += 100
      now += 40 + 100 * (launch % 3 == 2)
      out.append((now - 5, now - 1, 1000 + launch, 0))  # a copy
    return out

  def test_tells_gaps_within_graphs_from_those_between(self):
    s = idle.summary(self.records(3, 4), 3, 4)
    self.assertAlmostEqual(s["round_ms"] * 1e6, 1720)
    self.assertAlmostEqual(s["idle_within_graphs"], 120 / 1720)
    self.assertAlmostEqual(s["idle_between_graphs"], (3 * 50 + 100) / 1720)
    self.assertAlmostEqual(s["host_between_rounds"], 150 / 1720)
    self.assertEqual(s["kernels"], 15)

  def test_counts_kernels_that_overlap_once(self):
    self.assertEqual(idle.union([(0, 10), (5, 8), (9, 20), (30, 31)]), 21)

  def test_refuses_records_that_hold_fewer_rounds(self):
    with self.assertRaises(SystemExit):
      idle.summary(self.records(0, 2), 3, 4)


if __name__ == "__main__":
  unittest.main()
