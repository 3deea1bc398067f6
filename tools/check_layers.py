#!/usr/bin/env python3
"""Checks who includes whom (ARCHITECTURE.md, "Who may include whom") and prints file:line of every violation.

    tools/check_layers.py                exit 0: clean, 1: violations
    tools/check_layers.py --self-test    proves on a small planted tree that every rule finds its violation

./test runs both. Only the preprocessor's view counts: `#include` lines outside comments.
"""
import argparse
import pathlib
import re
import sys
import tempfile

# A folder may include those to its left. Folders of one group stand side by side and do not see each other.
ORDER = ["base", "tensor", "checkpoint", "backend", "kv", "sparse", "model", "draft", "accept", "engine", "api", "server",
    "cli bindings"]
RANK = {name: rank for rank, group in enumerate(ORDER) for name in group.split()}

# Where each file (stem) is a part of its own. In backend/ each folder is one, except ops/ (arguments and contracts).
PART_FOLDERS = {("sparse", "policies"), ("model", "families"), ("draft", "proposers"), ("accept", "rules")}

CUDA = re.compile(r"^(cu(da|blas|fft|dnn|rand|sparse)|nccl|nvrtc|nvToolsExt|nvtx3/|cub/|thrust/|cooperative_groups|cutlass/|cute/"
    r"|mma\.h$|driver_types\.h$|vector_types\.h$|device_launch_parameters\.h$)")
SOCKETS = re.compile(r"^(sys/(socket|un|epoll|select)\.h|netinet/|arpa/|netdb\.h|net/|(sys/)?poll\.h|ifaddrs\.h)")
C_HEADERS = {"stdint.h", "stddef.h", "stdbool.h"}  # for a public header in C
SOURCES = {".h", ".hpp", ".cpp", ".cc", ".c", ".cu", ".cuh", ".inc"}
KINDS = {"order", "text", "part", "public", "cuda", "socket", "path", "macro"}  # and "folder"


def without_comments(text):
  """The text with comments blanked and lines kept; string literals are left alone ("//" inside one is no comment)."""
  pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'"\'', re.S)
  return pattern.sub(lambda m: m[0] if m[0][0] in "\"'" else re.sub(r"[^\n]", " ", m[0]), text)


def part_of(pieces):
  """The part that a path under src/ belongs to, as a key that equals that of the files of the same part; None if of none."""
  if len(pieces) < 3:
    return None
  if pieces[0] == "backend" and pieces[1] != "ops":
    return pieces[:2]
  if pieces[:2] in PART_FOLDERS:
    return (*pieces[:2], re.sub(r"_(test|fuzz)$", "", pathlib.PurePath(pieces[2]).stem))
  return None


def same_part(a, b):
  """`vegas_scores.h` belongs to `vegas`; `eagle3` does not belong to `eagle`."""
  if a is None or a[:-1] != b[:-1] or a[0] == "backend":
    return a == b
  short, long = sorted((a[-1], b[-1]), key=len)
  return f"{long}_".startswith(f"{short}_")


class Checker:
  def __init__(self, root):
    self.root = root
    self.files = self.includes = 0
    self.violations = []  # (path, line, kind, message)
    for top in ("src", "include", "bindings", "tests", "bench"):
      for path in sorted((self.root / top).rglob("*")):
        if path.suffix in SOURCES and path.is_file():
          self.check_file(path.relative_to(self.root))

  def check_file(self, path):
    self.files += 1
    top, folder = path.parts[:2]
    if top == "src" and (len(path.parts) < 3 or (folder not in RANK and folder != "text")):
      message = f"src/{folder} has no place in the order of folders (tools/check_layers.py, ORDER)"
      self.violations.append((path.as_posix(), 1, "folder", message))
      return
    text = without_comments((self.root / path).read_text(encoding="utf-8", errors="replace"))
    for number, line in enumerate(text.split("\n"), 1):
      if include := re.match(r"\s*#\s*include\b\s*(.*)$", line):
        self.includes += 1
        if violation := self.check(path.parts, include[1].strip()):
          self.violations.append((path.as_posix(), number, *violation))

  def check(self, path, what):
    """(kind, message) if this file may not include that."""
    spelled = re.match(r'<([^>]+)>|"([^"]+)"', what)
    if not spelled:
      return "macro", f"`{what}`: name the file, an include by macro hides who includes whom"
    name = spelled[1] or spelled[2]
    if CUDA.match(name):
      if path[0] != "tests" and path[:3] != ("src", "backend", "cuda"):
        return "cuda", f"<{name}>: only src/backend/cuda includes CUDA headers"
    elif SOCKETS.match(name):
      if path[0] != "tests" and path[:2] != ("src", "server"):
        return "socket", f"<{name}>: only src/server includes socket headers"
    elif spelled[2]:
      return self.check_quoted(path, name)
    elif path[0] == "include" and re.search(r"[./]", name) and name not in C_HEADERS and not name.startswith("hunch/"):
      return "public", f"<{name}>: the public headers include the standard library and each other, nothing else"
    return None

  def check_quoted(self, path, name):
    top, target = path[0], pathlib.PurePosixPath(name).parts
    to = target[0]
    if to == "hunch" and (self.root / "include" / name).is_file():
      return None
    if top == "include":
      return "public", f'"{name}": the public headers include the standard library and "hunch/...", nothing else'
    if not (self.root / "src" / name).is_file():
      beside = self.root.joinpath(*path[:-1], name).is_file()
      if beside and top != "src":
        return None
      return "path", f'"{name}": {"write the full path from src/" if beside else "no such file in src/ or include/"}'
    if top in ("tests", "bench"):
      return None  # what crosses folders stands there, and may look anywhere
    folder = path[1] if top == "src" else top
    if folder != to:
      if "text" in (folder, to):
        if to != "base" and (folder == "text" or RANK[folder] < RANK["engine"]):
          return "text", f'"{name}": src/{folder} may not include src/{to}; text sees only base, engine and above see text'
      elif RANK.get(to, len(ORDER)) >= RANK[folder]:
        return "order", f'"{name}": src/{folder} may not include src/{to}, which stands to its right'
    mine, theirs = part_of(path[1:]), part_of(target)
    if theirs is None or same_part(mine, theirs):
      return None
    if mine is not None and mine[0] == "backend" and theirs == ("backend", "reference"):
      return None  # a backend may inherit the reference
    return "part", f'"{name}": nobody includes a part ({"/".join(theirs)}); reach it by name through base/registry.h'


# ------------------------------------------------------------------------------------------------------------ self-test
# The clean tree: a path and its includes; the headers named must exist here too.
CLEAN = """
include/hunch/api.h: <vector> "hunch/c.h"
include/hunch/c.h: <stdint.h>
src/base/a.h: <string> "hunch/api.h"
src/tensor/t.h: "base/a.h"
src/text/tokens.h: "base/a.h" <simdjson.h>
src/backend/backend.h: "backend/ops/op.h" "tensor/t.h"
src/backend/ops/op.h:
src/backend/reference/ref.h: "backend/backend.h"
src/backend/cpu/cpu.h: "backend/reference/ref.h"
src/backend/cpu/cpu_test.cpp: "backend/cpu/cpu.h" <gtest/gtest.h>
src/backend/cuda/cuda.cu: <cuda_runtime.h> "backend/reference/ref.h"
src/sparse/policy.h: "backend/backend.h"
src/sparse/policies/vegas.cpp: "sparse/policies/vegas_scores.h"
src/sparse/policies/vegas_scores.h:
src/sparse/policies/vegas_test.cpp: "sparse/policies/vegas_scores.h"
src/sparse/policies/full.h:
src/model/families/llama.h:
src/draft/proposers/eagle.h:
src/draft/proposers/eagle3.cpp:
src/accept/rules/match.h:
src/engine/engine.h: "text/tokens.h" "sparse/policy.h"
src/server/http.h: <sys/socket.h> "engine/engine.h"
src/cli/flags.h: "server/http.h"
bindings/c/c.cpp: "hunch/c.h" "engine/engine.h"
tests/conformance/all_test.cpp: "sparse/policies/full.h" "prompts.h"
tests/conformance/prompts.h:
"""

# A file of the clean tree that gets one more include, the include, the kind expected. A test may include what its folder may.
PLANTS = """
src/base/a.h: "tensor/t.h" order
src/server/http.h: "cli/flags.h" order
src/backend/cpu/cpu_test.cpp: "sparse/policy.h" order
src/text/tokens.h: "tensor/t.h" text
src/sparse/policy.h: "text/tokens.h" text
src/sparse/policies/vegas.cpp: "sparse/policies/full.h" part
src/sparse/policies/vegas_test.cpp: "sparse/policies/full.h" part
src/sparse/policy.h: "sparse/policies/full.h" part
src/draft/proposers/eagle3.cpp: "draft/proposers/eagle.h" part
src/engine/engine.h: "model/families/llama.h" part
src/backend/reference/ref.h: "backend/cpu/cpu.h" part
src/backend/cuda/cuda.cu: "backend/cpu/cpu.h" part
src/backend/backend.h: "backend/reference/ref.h" part
bindings/c/c.cpp: "accept/rules/match.h" part
include/hunch/api.h: "base/a.h" public
include/hunch/api.h: <fmt/core.h> public
src/backend/cpu/cpu.h: <cuda_runtime.h> cuda
src/engine/engine.h: "cuda_fp16.h" cuda
src/base/a.h: <arpa/inet.h> socket
src/backend/cpu/cpu_test.cpp: "cpu.h" path
src/engine/engine.h: "engine/nosuch.h" path
src/tensor/t.h: TENSOR_HEADER macro
"""


def self_test():
  clean = {path: includes.split() for path, includes in (line.split(":") for line in CLEAN.split("\n") if line)}
  plants = [line.replace(":", "").split() for line in PLANTS.split("\n") if line]
  with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)

    def write(path, includes):
      (root / path).parent.mkdir(parents=True, exist_ok=True)
      # Comments that look like violations, and a line of code, around the real ones.
      body = ['// #include "engine/engine.h"', '/* about\n#include "engine/engine.h"\n*/ const char* url = "http://x/*";']
      body += [f"#  include {include}  // why" for include in includes]
      (root / path).write_text("\n".join(body) + "\nint x; /* the end */\n", encoding="utf-8")

    def expect(expected, what):
      found = [violation[:3] for violation in Checker(root).violations]
      if found != expected:
        sys.exit(f"self-test: {what}: expected {expected}, found {found}")

    for path, includes in clean.items():
      write(path, includes)
    expect([], "the clean tree")
    for path, include, kind in plants:
      write(path, clean[path] + [include])
      line = 4 + len(clean[path]) + 1  # after the four lines of comments
      expect([(path, line, kind)], f"{path} with {include}")
      write(path, clean[path])
    write("src/utils/u.h", [])
    expect([("src/utils/u.h", 1, "folder")], "a folder outside the order")

  missing = KINDS - {kind for _, _, kind in plants}
  if missing:
    sys.exit(f"self-test: rules without a planted violation: {missing}")
  print(f"layers: self-test, all of {len(plants) + 1} planted violations found")
  return 0


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--self-test", action="store_true")
  if parser.parse_args().self_test:
    return self_test()
  checker = Checker(pathlib.Path(__file__).resolve().parent.parent)
  for path, line, _, message in checker.violations:
    print(f"{path}:{line}: {message}")
  print(f"layers: {checker.files} files, {checker.includes} includes, {len(checker.violations)} violations")
  return 1 if checker.violations or not checker.includes else 0


if __name__ == "__main__":
  sys.exit(main())
