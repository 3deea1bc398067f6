"""The examples of docs/python.md run, in their order and in one namespace, from the repository's root, as a reader would."""
import contextlib
import io
import os
import re
import unittest

from shipped import ROOT

EXAMPLE = re.compile(r"^```python\n(.*?)^```$(?:\n+```text\n(.*?)^```$)?", re.M | re.S)


class Examples(unittest.TestCase):
  def test_they_run_and_print_what_stands_below_them(self):
    os.chdir(ROOT)
    names = {"__name__": "__main__"}
    examples = EXAMPLE.findall((ROOT / "docs" / "python.md").read_text())
    self.assertGreaterEqual(len(examples), 6)
    for code, expected in examples:
      said = io.StringIO()
      with self.subTest(code.splitlines()[0]), contextlib.redirect_stdout(said):
        exec(compile(code, "docs/python.md", "exec"), names)
      if expected:
        self.assertEqual(said.getvalue(), expected)


if __name__ == "__main__":
  unittest.main()
