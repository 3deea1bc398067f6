"""tools/compare_bench.py: pairing, the ratio that counts, exit codes."""
import contextlib
import io
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools"))
import compare_bench  # noqa: E402


def row(speed, **changes):
    return {"model_type": "m", "n_threads": 2, "n_prompt": 0, "n_gen": 8, "n_depth": 64, "test": "tg8 @ d64", "avg_ts": speed, **changes}


class CompareBench(unittest.TestCase):
    def run_on(self, before, after, *flags):
        with tempfile.TemporaryDirectory() as folder:
            paths = []
            for name, rows in (("a.jsonl", before), ("b.jsonl", after)):
                paths.append(os.path.join(folder, name))
                with open(paths[-1], "w", encoding="utf-8") as file:
                    file.write("\n".join(json.dumps(r) for r in rows))
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
                code = compare_bench.main([*paths, *flags])
            return code, out.getvalue()

    def test_a_fall_below_the_threshold_fails(self):
        self.assertEqual(self.run_on([row(100)], [row(96)])[0], 0)
        self.assertEqual(self.run_on([row(100)], [row(94)])[0], 1)
        self.assertEqual(self.run_on([row(100)], [row(94)], "--threshold", "0.9")[0], 0)

    def test_pairs_cancel_what_both_runs_of_a_pair_share(self):
        code, out = self.run_on([row(100), row(10), row(50)], [row(100), row(10), row(50)])
        self.assertEqual(code, 0)
        self.assertIn("1.000 | 1.000 to 1.000 | 3", out)

    def test_tests_are_told_apart_by_depth_and_drafter(self):
        self.assertEqual(self.run_on([row(100)], [row(1, n_depth=128)])[0], 2)
        self.assertEqual(self.run_on([row(100)], [row(1, drafter="self")])[0], 2)


if __name__ == "__main__":
    unittest.main()
