"""tools/make_chart.py: JSON lines of figures to the README's chart."""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ET

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools/make_chart.py"
SVG = "{http://www.w3.org/2000/svg}"


class MakeChart(unittest.TestCase):
    def run_it(self, text):
        with tempfile.TemporaryDirectory() as folder:
            rows, out = pathlib.Path(folder, "rows.jsonl"), pathlib.Path(folder, "chart.svg")
            rows.write_text(text)
            done = subprocess.run([sys.executable, SCRIPT, rows, "-o", out], capture_output=True, text=True)
            return done, ET.fromstring(out.read_text()) if out.exists() else None

    def test_draws_a_line_a_kind_with_higher_ratios_higher(self):
        rows = [dict(context=c, ratio=c / 8192 * f, kind=k) for c in (28672, 4096, 16384) for k, f in (("all", 1), ("a&b", 0.5))]
        done, svg = self.run_it("\n".join(map(json.dumps, rows)))
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [[tuple(map(float, p.split(","))) for p in e.get("points").split()] for e in svg.iter(SVG + "polyline")]
        self.assertEqual([len(line) for line in lines], [3, 3])
        for line in lines:
            self.assertEqual(line, sorted(line))  # by context
            self.assertGreater(line[0][1], line[2][1])  # y grows downwards
        self.assertGreater(lines[0][2][1], lines[1][2][1])  # "all" is last, and here the faster
        texts = [e.text for e in svg.iter(SVG + "text")]
        for wanted in ("28K", "4K", "all 3.50x", "a&b 1.75x"):
            self.assertIn(wanted, texts)

    def test_refuses_rows_that_are_none_and_says_which(self):
        good = '{"context": 4096, "ratio": 1.2, "kind": "all"}'
        for text, words in (("", "no rows"), (good + "\n{}", ":2:"), (good + "\n" + good, "a second row of all"), ('{"context": 1, "ratio": -1, "kind": "x"}', "out of range")):
            done, svg = self.run_it(text)
            self.assertEqual(done.returncode, 1)
            self.assertIsNone(svg)
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main()
