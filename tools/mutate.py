#!/usr/bin/env python3
"""Mutation testing: proves that the tests would notice the faults that break exactness or silently weaken the drafts.

Each mutant replaces one piece of text of a production source; tools/mutants/FOLDER.txt lists them:

    src/FILE: PROGRAM FILTER         the test that must fail, or a name given to it above (NAME = PROGRAM FILTER);
                                     without a file: the same file, another test
    - what is wrong then             `!` for `-`: in the marked subset
        text with [-what goes-]{+what comes+}, as git's word diff writes it

Each mutant is a copy of one file: what of the test program includes it is compiled from the copy and linked with the other objects
of the build that `./test` uses (unit tests: dev, suites: release), several mutants at a time. The named test must fail. The run
fails if a mutant survives, does not build, or if its text does not occur exactly once any more, so the table cannot rot.
"""
import argparse
import os
import re
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ('src', 'include')  # folders that compilers look for headers in


class Mutant(NamedTuple):
  name: str
  file: str
  find: str
  replace: str
  program: str
  filter: str
  ci: bool


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


def run(*words, **more):
  """The finished program; what it said is its stdout."""
  return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)


def ninja(build: Path, *arguments):
  return run('ninja', '-C', build, *arguments).stdout


@lru_cache(None)
def includes(build: Path):
  """What each object of a build was compiled from, as ninja noted it."""
  out, files = {}, []
  for line in ninja(build, '-t', 'deps').splitlines():
    if not line.startswith(' '):
      files = out.setdefault(line.split(':')[0], set())
    else:
      files.add(os.path.normpath(build / line.strip()))
  return out


@lru_cache(None)
def command(build: Path, target):
  """The words of the command that makes a target, without ninja's own first line."""
  line = ninja(build, '-t', 'commands', '-s', target).splitlines()[-1]
  return [word for word in shlex.split(line.split(' && ')[1] if line.startswith(': && ') else line) if word != ':']


def compile_and_link(m: Mutant, build: Path, work: Path):
  """The mutant's test program in `work`, or None and what the compiler said."""
  mutated = work / m.file
  mutated.parent.mkdir(parents=True)
  original = ROOT / m.file
  mutated.write_text(original.read_text().replace(m.find, m.replace))
  link = list(command(build, m.program))
  objects = [word for word in link if word.endswith('.o') and str(original) in includes(build).get(word, ())]
  if not objects:
    return None, f'{m.program} has no part that includes {m.file}'
  steps = []
  for number, name in enumerate(objects):
    words = [str(mutated) if word == str(original) else word for word in command(build, name)]
    first = next(i for i, word in enumerate(words) if word.startswith('-I'))
    words[first:first] = [f'-I{work / folder}' for folder in SOURCES] + ['-w']  # a mutant may leave names unused
    made = work / f'{number}.o'
    words[words.index('-o') + 1], words[words.index('-MF') + 1] = str(made), str(made) + '.d'
    link[link.index(name)] = str(made)
    steps.append(words)
  program = work / m.program
  link[link.index('-o') + 1] = str(program)
  for words in steps + [link]:
    made = run(*words, cwd=build)
    if made.returncode != 0:
      return None, made.stdout[-3000:]
  return program, ''


def passes(program: Path, test_filter):
  """True if the program ran at least one test and all passed. Crashes and hangs count as failures."""
  try:
    tests = run(program, '--gtest_filter=' + test_filter, '--gtest_brief=1', '--gtest_fail_fast', timeout=300)
  except subprocess.TimeoutExpired:
    return False, 'timed out'
  if '0 tests from 0 test' in tests.stdout:
    return False, f'{program.name} has no test that matches {test_filter}'
  return tests.returncode == 0, tests.stdout[-2000:]


def try_mutant(m: Mutant, build: Path, deadline):
  begin = time.monotonic()
  if begin > deadline:
    return 'left out'
  with TemporaryDirectory(prefix='mutant-', dir=build) as work:
    program, why = compile_and_link(m, build, Path(work))
    if program is None:
      verdict, rest = 'BROKEN  ', '\n' + why
    else:
      verdict, rest = 'SURVIVED' if passes(program, m.filter)[0] else 'killed  ', ''
  print(f'{verdict}  {m.name}  [{m.program}, {time.monotonic() - begin:.0f} s]{rest}', flush=True)
  return verdict.strip()


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--ci', action='store_true', help='the marked subset only')
  parser.add_argument('--some', type=int, help='so many that stand together: others for every commit')
  parser.add_argument('--only', default='', help='mutants whose name contains this')
  parser.add_argument('--minutes', type=float, default=float('inf'), help='begin none later, and say how many that left out')
  parser.add_argument('--release', action='store_true', help='unit tests of build/release too, where kernels compile faster')
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
  if args.some and mutants:
    first = int(run('git', 'rev-parse', 'HEAD', cwd=ROOT).stdout, 16) % len(mutants)
    mutants = (mutants[first:] + mutants[:first])[:args.some]
  if not mutants:
    sys.exit('mutate: no such mutant')

  start = time.monotonic()
  def build_of(program):
    return ROOT / 'build' / ('dev' if program.endswith('_test') and not args.release else 'release')
  for build in sorted({build_of(m.program) for m in mutants}):
    made = run(ROOT / 'scripts/build', build.name, *sorted({m.program for m in mutants if build_of(m.program) == build}))
    if made.returncode != 0:
      sys.exit('mutate: the tree does not build\n' + made.stdout[-4000:])
    includes(build)
  with ThreadPoolExecutor(os.cpu_count()) as pool:
    tests = sorted({(m.program, m.filter) for m in mutants})
    for (program, test_filter), (ok, output) in zip(tests, pool.map(lambda t: passes(build_of(t[0]) / t[0], t[1]), tests)):
      if not ok:
        sys.exit(f'mutate: {program} {test_filter} fails without any mutation\n{output}')
    print(f'built and passed unmutated in {time.monotonic() - start:.0f} s; {len(mutants)} mutants', flush=True)
    # A copy that changes nothing must survive, or a fault of this program would pass for a test's success.
    controls = {m.program: m._replace(name='unchanged', replace=m.find) for m in mutants}.values()
    if set(pool.map(lambda m: try_mutant(m, build_of(m.program), float('inf')), controls)) != {'SURVIVED'}:
      sys.exit('mutate: a copy without a change does not build or pass')
    verdicts = list(pool.map(lambda m: try_mutant(m, build_of(m.program), start + 60 * args.minutes), mutants))
  survivors = [f'{m.name} ({v})' for m, v in zip(mutants, verdicts) if v not in ('killed', 'left out')]
  tried = len(mutants) - verdicts.count('left out')
  if tried < len(mutants):
    print(f'{len(mutants) - tried} mutants left out: {args.minutes:g} minutes were over')
  print(f'{tried - len(survivors)} of {tried} killed in {time.monotonic() - start:.0f} s')
  for name in survivors:
    print('survived: ' + name)
  return 1 if survivors else 0


if __name__ == '__main__':
  sys.exit(main())
