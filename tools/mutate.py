#!/usr/bin/env python3
"""Mutation testing: proves that the tests would notice the faults that break exactness or silently weaken the drafts.

Each mutant replaces one piece of text of a production source; tools/mutants/FOLDER.txt lists them:

    src/FILE: PROGRAM FILTER         the test that must fail, or a name given to it above (NAME = PROGRAM FILTER);
                                     without a file: the same file, another test
    - what is wrong then             `!` for `-`: in the marked subset
        text with [-what goes-]{+what comes+}, as git's word diff writes it

The tree is copied to a scratch folder (the repository is never edited), built once, checked to pass, then rebuilt incrementally
per mutant; the named test program must fail. The run fails if a mutant survives, does not build, or if its text does not occur
exactly once any more, so the table cannot rot.

    tools/mutate.py [--ci] [--only SUBSTRING] [--release] [--scratch DIR] [--jobs N] [--list]

--ci runs the marked subset (about ten minutes on 2 cores beside the first build). --release compiles as preset release does:
slower, but where ccache knows that build, the first build is done at once.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
os.environ.setdefault('HUNCH_THIRD_PARTY', str(ROOT / 'build/third_party'))  # the scratch tree has none of its own
BUILD = 'build/mutate'  # in the scratch folder, as deep as the presets' are: compilers see the same relative paths
KINDS = ('.cpp', '.h', '.c', '.map', '.in', '.html', '.css', '.js')  # of files that the build reads


class Mutant(NamedTuple):
  name: str
  file: str
  find: str
  replace: str
  program: str
  filter: str
  ci: bool = False


def mutants_of(path: Path):
  """The mutants of one file of tools/mutants (its form: this program's docstring)."""
  out, aliases, source, test = [], {}, '', ()
  for line in path.read_text().splitlines():
    if line.startswith('    '):
      out[-1][1].append(line[4:])
    elif line[:2] in ('- ', '! '):
      out.append((line[2:], [], source, test, line[0] == '!'))
    elif head := re.fullmatch(r'(\w+) = (\S+) (\S+)', line):
      aliases[head[1]] = head.group(2, 3)
    elif head := re.fullmatch(r'(\S*): (\S+)(?: (\S+))?', line):
      source, test = head[1] or source, head.group(2, 3) if head[3] else aliases[head[2]]
    elif line:
      sys.exit(f'mutate: {path}: neither a heading nor a mutant: {line}')
  for name, lines, source, test, ci in out:
    text = '\n'.join(lines)
    yield Mutant(name, source, variant(text, '-', '+'), variant(text, '+', '-'), *test, ci)


def variant(text, kept, dropped):
  """One side of a word diff. The brackets of both marks: [-only before-], {+only after+}."""
  marks = {'-': r'\[-(.*?)-\]', '+': r'\{\+(.*?)\+\}'}
  return re.sub(marks[kept], r'\1', re.sub(marks[dropped], '', text, flags=re.S), flags=re.S)


MUTANTS = [mutant for path in sorted((ROOT / 'tools/mutants').glob('*.txt')) for mutant in mutants_of(path)]


def copy_if_changed(source: Path, target: Path):
  data = source.read_bytes()
  if target.exists() and target.read_bytes() == data:
    return
  target.parent.mkdir(parents=True, exist_ok=True)
  target.write_bytes(data)


def make_scratch(scratch: Path, suites):
  """A copy of what the programs need; data and models are links. Unchanged files keep their times, so builds stay incremental."""
  wanted = set()
  files = [ROOT / 'CMakeLists.txt']
  for folder in ['src', 'include', 'bindings'] + [f'tests/{suite}' for suite in suites]:
    files += [f for f in (ROOT / folder).rglob('*') if f.is_file() and f.suffix in KINDS]
  files += (ROOT / 'tests').glob('*/*.h')  # suites share some
  for file in files:
    relative = file.relative_to(ROOT)
    wanted.add(scratch / relative)
    copy_if_changed(file, scratch / relative)
  for file in scratch.glob('src/**/*'):
    if file.is_file() and file not in wanted:
      file.unlink()
  if not (scratch / 'models').is_symlink():  # with the source of the program that makes the tiny ones
    (scratch / 'models').symlink_to(ROOT / 'models')


def build(scratch: Path, programs, jobs):
  command = ['ninja', '-C', str(scratch / BUILD), '-j', str(jobs), *sorted(programs)]
  return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def passes(scratch: Path, program, test_filter):
  """True if the program ran at least one test and all passed. Crashes and hangs count as failures."""
  command = [str(scratch / BUILD / program), '--gtest_filter=' + test_filter, '--gtest_brief=1', '--gtest_fail_fast']
  try:
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
  except subprocess.TimeoutExpired:
    return False, 'timed out'
  if '0 tests from 0 test' in run.stdout:
    sys.exit(f'mutate: {program} has no test that matches {test_filter}')
  return run.returncode == 0, run.stdout[-2000:]


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--ci', action='store_true', help='the marked subset only')
  parser.add_argument('--only', default='', help='mutants whose name contains this')
  parser.add_argument('--scratch', type=Path, default=ROOT / 'build' / 'mutate')
  parser.add_argument('--jobs', type=int, default=os.cpu_count() or 2)
  parser.add_argument('--release', action='store_true', help='compile as preset release does')
  parser.add_argument('--list', action='store_true', help='name them, and check that each finds its text; builds nothing')
  args = parser.parse_args()

  mutants = [m for m in MUTANTS if (m.ci or not args.ci) and args.only in m.name]
  for m in MUTANTS:  # all of them, also in --ci: a text that no longer occurs is a hole in the table
    count = (ROOT / m.file).read_text().count(m.find)
    if count != 1:
      sys.exit(f'mutate: the text of "{m.name}" occurs {count} times in {m.file}, not once; bring the table up to date:\n{m.find}')
  if args.list:
    for m in mutants:
      print(f'{"ci " if m.ci else "   "} {m.file}: {m.name}')
    return 0
  third_party = Path(os.environ.get('HUNCH_THIRD_PARTY') or ROOT / 'build/third_party')
  if not list(third_party.glob('xgrammar-*/lib/libxgrammar.a')):  # an offline machine: their tests are skipped there
    mutants = [m for m in mutants if m.program != 'structured_suite' and not m.filter.startswith('Grammars')]
  if not mutants:
    sys.exit('mutate: no such mutant')

  start = time.monotonic()
  scratch = args.scratch.resolve()
  os.environ['CCACHE_BASEDIR'] = str(scratch)  # as scripts/build sets it for the tree itself: the same relative paths
  programs = {m.program for m in mutants}
  make_scratch(scratch, sorted(p[:-len('_suite')] for p in programs if p.endswith('_suite')))
  if shutil.which('ninja') is None:
    sys.exit('mutate: ninja is not installed')
  flags = ['-DCMAKE_BUILD_TYPE=Release'] if args.release else ['-DCMAKE_BUILD_TYPE=None', '-DCMAKE_CXX_FLAGS=-O1 -w']
  subprocess.run(['cmake', '-S', str(scratch), '-B', str(scratch / BUILD), '-G', 'Ninja', *flags], check=True,
      stdout=subprocess.DEVNULL)
  built = build(scratch, programs, args.jobs)
  if built.returncode != 0:
    sys.exit('mutate: the tree does not build\n' + built.stdout[-4000:])
  for program, test_filter in sorted({(m.program, m.filter) for m in mutants}):
    ok, output = passes(scratch, program, test_filter)
    if not ok:
      sys.exit(f'mutate: {program} {test_filter} fails without any mutation\n{output}')
  print(f'built and passed unmutated in {time.monotonic() - start:.0f} s; {len(mutants)} mutants', flush=True)

  survivors = []
  for m in mutants:
    begin = time.monotonic()
    original = (ROOT / m.file).read_text()
    target = scratch / m.file
    target.write_text(original.replace(m.find, m.replace))
    try:
      built = build(scratch, {m.program}, args.jobs)
      if built.returncode != 0:
        survivors.append(m.name + ' (does not build)')
        print(f'BROKEN    {m.name}\n{built.stdout[-3000:]}', flush=True)
        continue
      ok, _ = passes(scratch, m.program, m.filter)
    finally:
      target.write_text(original)
    if ok:
      survivors.append(m.name)
    print(f'{"SURVIVED" if ok else "killed  "}  {m.name}  [{m.program}, {time.monotonic() - begin:.0f} s]', flush=True)
  print(f'{len(mutants) - len(survivors)} of {len(mutants)} killed in {time.monotonic() - start:.0f} s')
  for name in survivors:
    print('survived: ' + name)
  return 1 if survivors else 0


if __name__ == '__main__':
  sys.exit(main())
