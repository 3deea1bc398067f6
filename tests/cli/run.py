#!/usr/bin/env python3
"""Black-box tests of the command line. Every test_* function of the modules below runs against one binary and one model.

usage: run.py --binary build/release/hunch --model models/wren-34m.gguf [--only NAME]
"""
import argparse
import os
import sys
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import bad_input, batch, bench, drafters, interrupts, output, program  # noqa: E402,E401


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--binary", required=True)
  parser.add_argument("--model", required=True)
  parser.add_argument("--only", default="", help="run the tests whose name contains this")
  options = parser.parse_args()
  hunch = program.Hunch(os.path.abspath(options.binary), os.path.abspath(options.model))
  failed = passed = 0
  for module in (bad_input, drafters, batch, output, bench, interrupts):
    for name in sorted(n for n in dir(module) if n.startswith("test_") and options.only in n):
      start = time.monotonic()
      try:
        getattr(module, name)(hunch)
        passed += 1
      except Exception:  # one broken test must not hide the others
        failed += 1
        print(f"FAIL {module.__name__}.{name}")
        traceback.print_exc()
        continue
      print(f"ok   {module.__name__}.{name} ({time.monotonic() - start:.1f} s)")
  print(f"{passed} passed, {failed} failed")
  return 1 if failed or not passed else 0


if __name__ == "__main__":
  sys.exit(main())
