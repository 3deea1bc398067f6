"""What is installed: type information that matches the module, a version, no needless imports."""
import ast
import importlib.metadata
import inspect
import pathlib
import re
import subprocess
import sys
import unittest

import hunch
from hunch import _hunch
from shipped import ROOT

FOLDER = pathlib.Path(hunch.__file__).parent


class Package(unittest.TestCase):
  def test_the_stub_names_everything_in_the_module_and_nothing_else(self):
    self.assertTrue((FOLDER / "py.typed").is_file())
    stub = ast.parse((FOLDER / "_hunch.pyi").read_text())
    classes = {node.name: node for node in stub.body if isinstance(node, ast.ClassDef)}
    real = {name: value for name, value in vars(_hunch).items() if inspect.isclass(value)}
    self.assertEqual(set(classes), set(real))
    for name, node in classes.items():
      said = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
      there = {part for part in vars(real[name]) if not part.startswith("__")}
      self.assertEqual({part for part in said if not part.startswith("__")}, there, name)

  def test_the_version_is_the_projects(self):
    version = re.search(r"project\(hunch VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
    self.assertEqual(hunch.__version__, version)
    self.assertEqual(importlib.metadata.version("hunch"), version)

  def test_pandas_is_imported_for_reports_only(self):
    code = "import sys, hunch; assert 'pandas' not in sys.modules; import hunch.report; assert 'pandas' in sys.modules"
    self.assertEqual(subprocess.run([sys.executable, "-c", code]).returncode, 0)

  def test_everything_public_is_there(self):
    for name in hunch.__all__:
      self.assertTrue(hasattr(hunch, name), name)


if __name__ == "__main__":
  unittest.main()
