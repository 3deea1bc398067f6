#!/usr/bin/env python3
"""Checks who includes whom (ARCHITECTURE.md, "Who may include whom") and prints file:line of every violation.

    tools/check_layers.py [--root FOLDER]     exit 0: clean, 1: violations
    tools/check_layers.py --self-test         proves on a small planted tree that every rule finds its violation

./test runs both. Only the preprocessor's view counts: `#include` lines outside comments.
"""
import argparse
import pathlib
import re
import sys
import tempfile

# A folder may include those to its left. Folders of one group stand side by side and do not see each other.
ORDER = [["base"], ["tensor"], ["checkpoint"], ["backend"], ["kv"], ["sparse"], ["model"], ["draft"], ["accept"], ["engine"],
    ["api"], ["server"], ["cli", "bindings"]]
RANK = {name: rank for rank, group in enumerate(ORDER) for name in group}
TEXT_SEES, SEES_TEXT = {"base"}, {"engine", "api", "server", "cli", "bindings"}

# Where each file (stem) is a part of its own. In backend/ each folder is one, except ops/ (arguments and contracts).
PART_FOLDERS = {("sparse", "policies"), ("model", "families"), ("draft", "proposers"), ("accept", "rules")}

CUDA = re.compile(r"^(cuda|cublas|cufft|cudnn|curand|cusparse|nccl|nvrtc|nvToolsExt|nvtx3/|cub/|thrust/|cooperative_groups|cutlass/|cute/"
    r"|mma\.h$|driver_types\.h$|vector_types\.h$|device_launch_parameters\.h$)")
SOCKETS = re.compile(r"^(sys/(socket|un|epoll|select)\.h|netinet/|arpa/|netdb\.h|net/|poll\.h|sys/poll\.h|ifaddrs\.h)")
C_HEADERS = {"stdint.h", "stddef.h", "stdbool.h"}  # for a public header in C
SOURCES = {".h", ".hpp", ".cpp", ".cc", ".c", ".cu", ".cuh", ".inc"}
INCLUDE = re.compile(r"^\s*#\s*include\b\s*(.*)$")
KINDS = {"order", "text", "part", "public", "cuda", "socket", "path", "macro", "folder"}


def without_comments(text):
  """The text with comments blanked and lines kept; string literals are left alone ("//" inside one is no comment)."""
  pattern = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'"\'', re.S)
  return pattern.sub(lambda m: m[0] if m[0][0] in "\"'" else re.sub(r"[^\n]", " ", m[0]), text)


def part_of(path):
  """The part a path under src/ belongs to, as a key that equals that of the files of the same part; None if of none."""
  pieces = path.parts
  if len(pieces) >= 3 and pieces[0] == "backend" and pieces[1] != "ops":
    return ("backend", pieces[1])
  if len(pieces) >= 3 and pieces[:2] in PART_FOLDERS:
    return (*pieces[:2], re.sub(r"_(test|fuzz)$", "", pathlib.PurePath(pieces[2]).stem))
  return None


def same_part(a, b):
  """`vegas_scores.h` belongs to `vegas`; `eagle3` does not belong to `eagle`."""
  if a is None or b is None or a[:-1] != b[:-1]:
    return False
  if a[0] == "backend":
    return a == b
  return a[-1] == b[-1] or a[-1].startswith(b[-1] + "_") or b[-1].startswith(a[-1] + "_")


class Checker:
  def __init__(self, root):
    self.root = pathlib.Path(root)
    self.files = self.includes = 0
    self.violations = []  # (path, line, kind, message)

  def run(self):
    for top in ("src", "include", "bindings", "tests", "bench"):
      for path in sorted((self.root / top).rglob("*")):
        if path.suffix in SOURCES and path.is_file():
          self.file(path.relative_to(self.root), top)
    return self

  def file(self, path, top):
    self.files += 1
    inside = pathlib.PurePath(*path.parts[1:])  # path under its top folder
    folder = None
    if top == "src":
      folder = inside.parts[0]
      if len(inside.parts) < 2 or (folder not in RANK and folder != "text"):
        self.add(path, 1, "folder", f"src/{folder} has no place in the order of folders (tools/check_layers.py, ORDER)")
        return
    elif top == "bindings":
      folder = "bindings"
    text = without_comments((self.root / path).read_text(encoding="utf-8", errors="replace"))
    for number, line in enumerate(text.split("\n"), 1):
      match = INCLUDE.match(line)
      if match:
        self.includes += 1
        self.include(path, number, match[1].strip(), top, folder, inside)

  def include(self, path, line, what, top, folder, inside):
    if what.startswith("<") and ">" in what:
      self.system(path, line, what[1:what.index(">")], top, inside)
    elif what.startswith('"') and what.count('"') >= 2:
      self.project(path, line, pathlib.PurePosixPath(what.split('"')[1]), top, folder, inside)
    else:
      self.add(path, line, "macro", f"`{what}`: name the file, an include by macro hides who includes whom")

  def system(self, path, line, name, top, inside):
    in_cuda = top == "src" and inside.parts[:2] == ("backend", "cuda")
    if CUDA.match(name) and not in_cuda and top != "tests":
      self.add(path, line, "cuda", f"<{name}>: only src/backend/cuda includes CUDA headers")
    elif SOCKETS.match(name) and top != "tests" and not (top == "src" and inside.parts[0] == "server"):
      self.add(path, line, "socket", f"<{name}>: only src/server includes socket headers")
    elif top == "include" and re.search(r"[./]", name) and name not in C_HEADERS and not name.startswith("hunch/"):
      self.add(path, line, "public", f"<{name}>: the public headers include the standard library and each other, nothing else")

  def project(self, path, line, target, top, folder, inside):
    name = str(target)
    if CUDA.match(name) or SOCKETS.match(name):
      self.system(path, line, name, top, inside)
      return
    if target.parts[0] == "hunch" and (self.root / "include" / target).is_file():
      return
    if top == "include":
      self.add(path, line, "public", f'"{name}": the public headers include the standard library and "hunch/...", nothing else')
      return
    if not (self.root / "src" / target).is_file():
      beside = (self.root / path).parent / target
      if top in ("tests", "bench", "bindings") and beside.is_file():
        return
      hint = "write the full path from src/" if beside.is_file() else "no such file in src/ or include/"
      self.add(path, line, "path", f'"{name}": {hint}')
      return
    if top in ("tests", "bench"):
      return  # what crosses folders stands there, and may look anywhere
    to = target.parts[0]
    if folder != to and "text" in (folder, to):
      allowed = to in TEXT_SEES if folder == "text" else folder in SEES_TEXT
      if not allowed:
        self.add(path, line, "text", f'"{name}": src/{folder} may not include src/{to}; text sees only base, engine and above see text')
        return
    elif folder != to and not (to in RANK and RANK[to] < RANK[folder]):
      self.add(path, line, "order", f'"{name}": src/{folder} may not include src/{to}, which stands to its right')
      return
    theirs = part_of(target)
    mine = part_of(inside) if top == "src" else None
    if theirs is None or same_part(mine, theirs):
      return
    if mine is not None and mine[0] == "backend" and theirs == ("backend", "reference"):
      return  # a backend may inherit the reference
    self.add(path, line, "part", f'"{name}": nobody includes a part ({"/".join(theirs)}); reach it by name through base/registry.h')

  def add(self, path, line, kind, message):
    self.violations.append((path.as_posix(), line, kind, message))


# ------------------------------------------------------------------------------------------------------------ self-test
# The clean tree: a path and its includes; the headers named must exist here too.
CLEAN = """
include/hunch/api.h: <vector> "hunch/more.h"
include/hunch/more.h: <cstdint>
include/hunch/c.h: <stdint.h>
src/base/a.h: <string> "hunch/more.h"
src/tensor/t.h: "base/a.h"
src/text/tokens.h: "base/a.h" <simdjson.h>
src/checkpoint/c.h: "tensor/t.h"
src/backend/backend.h: "backend/ops/op.h" "checkpoint/c.h"
src/backend/ops/op.h: "base/a.h"
src/backend/reference/ref.h: "backend/backend.h"
src/backend/cpu/cpu.h: "backend/reference/ref.h"
src/backend/cpu/cpu_test.cpp: "backend/cpu/cpu.h" <gtest/gtest.h>
src/backend/cuda/cuda.cu: <cuda_runtime.h> "backend/reference/ref.h"
src/kv/pool.h: "backend/backend.h"
src/sparse/policy.h: "kv/pool.h"
src/sparse/policies/vegas.cpp: "sparse/policies/vegas.h" "sparse/policies/vegas_scores.h"
src/sparse/policies/vegas.h: "sparse/policy.h"
src/sparse/policies/vegas_scores.h:
src/sparse/policies/vegas_test.cpp: "sparse/policies/vegas.h"
src/sparse/policies/full.h: "sparse/policy.h"
src/model/model.h: "sparse/policy.h"
src/model/families/llama.h: "model/model.h"
src/draft/proposer.h: "model/model.h"
src/draft/proposers/eagle.h: "draft/proposer.h"
src/draft/proposers/eagle3.cpp: "draft/proposer.h"
src/accept/rule.h: "draft/proposer.h"
src/accept/rules/match.h: "accept/rule.h"
src/engine/engine.cpp: "accept/rule.h" "text/tokens.h" "hunch/api.h"
src/engine/engine.h:
src/api/answer.cpp: "engine/engine.h" "text/tokens.h"
src/cli/flags.h:
src/server/http.cpp: <sys/socket.h> <netinet/in.h> "engine/engine.h"
src/server/http.h:
src/cli/run.cpp: "engine/engine.h" "text/tokens.h"
bindings/c/c.cpp: "hunch/c.h" "engine/engine.h"
tests/conformance/all_test.cpp: "backend/cpu/cpu.h" "sparse/policies/full.h" "prompts.h"
tests/conformance/prompts.h:
"""
CLEAN = {path: includes.split() for path, includes in (line.split(":", 1) for line in CLEAN.strip().split("\n"))}

# A file of the clean tree that gets one more include, the include, the kind expected. A test may include what its folder may.
PLANTS = """
src/base/a.h: "tensor/t.h" order
src/checkpoint/c.h: "backend/backend.h" order
src/backend/backend.h: "kv/pool.h" order
src/sparse/policy.h: "model/model.h" order
src/draft/proposer.h: "accept/rule.h" order
src/engine/engine.cpp: "server/http.h" order
src/server/http.cpp: "cli/flags.h" order
src/api/answer.cpp: "server/http.h" order
src/backend/cpu/cpu_test.cpp: "kv/pool.h" order
src/text/tokens.h: "tensor/t.h" text
src/model/model.h: "text/tokens.h" text
src/base/a.h: "text/tokens.h" text
src/sparse/policies/vegas.cpp: "sparse/policies/full.h" part
src/sparse/policies/vegas_test.cpp: "sparse/policies/full.h" part
src/sparse/policy.h: "sparse/policies/full.h" part
src/draft/proposers/eagle3.cpp: "draft/proposers/eagle.h" part
src/engine/engine.cpp: "accept/rules/match.h" part
src/engine/engine.cpp: "model/families/llama.h" part
src/backend/reference/ref.h: "backend/cpu/cpu.h" part
src/backend/backend.h: "backend/reference/ref.h" part
src/kv/pool.h: "backend/cpu/cpu.h" part
src/cli/run.cpp: "backend/reference/ref.h" part
bindings/c/c.cpp: "accept/rules/match.h" part
include/hunch/api.h: "base/a.h" public
include/hunch/api.h: <fmt/core.h> public
src/backend/cpu/cpu.h: <cuda_runtime.h> cuda
src/engine/engine.cpp: "cuda_fp16.h" cuda
src/cli/run.cpp: <sys/socket.h> socket
src/base/a.h: <arpa/inet.h> socket
src/backend/cpu/cpu_test.cpp: "cpu.h" path
src/engine/engine.cpp: "engine/nosuch.h" path
src/tensor/t.h: TENSOR_HEADER macro
"""
PLANTS = [(path.rstrip(":"), include, kind) for path, include, kind in map(str.split, PLANTS.strip().split("\n"))]


def self_test():
  failures = []

  def expect(condition, message):
    if not condition:
      failures.append(message)

  with tempfile.TemporaryDirectory() as folder:
    root = pathlib.Path(folder)

    def write(path, includes):
      (root / path).parent.mkdir(parents=True, exist_ok=True)
      # Comments that look like violations, and a line of code, around the real ones.
      body = ['// #include "engine/engine.h"', '/* about\n#include "engine/engine.h"\n*/ const char* url = "http://x/*";']
      body += [f"#  include {include}  // why" for include in includes]
      (root / path).write_text("\n".join(body) + "\nint x; /* the end */\n", encoding="utf-8")

    for path, includes in CLEAN.items():
      write(path, includes)
    clean = Checker(root).run()
    expect(not clean.violations, f"the clean tree is not clean: {clean.violations}")
    expect(clean.files == len(CLEAN), f"{clean.files} of {len(CLEAN)} files read")
    expect(clean.includes == sum(map(len, CLEAN.values())), f"{clean.includes} includes read of {sum(map(len, CLEAN.values()))}")

    for path, include, kind in PLANTS:
      write(path, CLEAN[path] + [include])
      found = [violation[:3] for violation in Checker(root).run().violations]
      line = 4 + len(CLEAN[path]) + 1  # after the four lines of comments
      expect(found == [(path, line, kind)], f"{path} with {include}: expected {kind} at line {line}, found {found}")
      write(path, CLEAN[path])

    write("src/utils/u.h", [])
    expect([v[2] for v in Checker(root).run().violations] == ["folder"], "a folder outside the order went unnoticed")

  planted = {kind for _, _, kind in PLANTS} | {"folder"}
  expect(planted == KINDS, f"rules without a planted violation: {KINDS - planted}")
  for failure in failures:
    print("self-test:", failure)
  print(f"layers: self-test, {len(PLANTS) + 1} planted violations, {len(failures)} not as expected")
  return 1 if failures else 0


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parent.parent)
  parser.add_argument("--self-test", action="store_true")
  options = parser.parse_args()
  if options.self_test:
    return self_test()
  checker = Checker(options.root).run()
  for path, line, _, message in checker.violations:
    print(f"{path}:{line}: {message}")
  print(f"layers: {checker.files} files, {checker.includes} includes, {len(checker.violations)} violations")
  if not checker.includes:
    print("layers: nothing to check under", options.root)
    return 1
  return 1 if checker.violations else 0


if __name__ == "__main__":
  sys.exit(main())
