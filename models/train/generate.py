"""Training data of the target's own writing: requests that go on from pieces of a corpus, their answers, and the token file that
train.py reads. Answers are written by hunch, or by PyTorch in large batches:

    python tools/train/generate.py --hunch build/release/hunch --model FILE --corpus TOKENS --out DATA --count 40000
    python tools/train/generate.py --torch --model DIR --corpus TOKENS --out DATA --count 40000

TOKENS holds train.u16.bin (little-endian ids) and train_index.json ([[start, length, ...], ...]: its documents). Two thirds of the
answers are greedy, the others are drawn at temperature 1 from the whole vocabulary; each is cut where it goes round in loops. Some
go on from long prompts, which are trained as well, and whole documents or long pieces of them make up the rest, so that long
contexts are trained too. --held FILE (a JSON object a line: `kind` and `prompt`, a list of ids): prompts whose greedy answers are
what train.py reports on. hunch may be interrupted: DATA/requests.jsonl stays, it goes on with what is missing in
DATA/answers.jsonl. Made with (pip): numpy==2.4.6
"""

import argparse
import itertools
import json
import os
import random
import subprocess
import sys

import data
import numpy as np

SHORTEST = 8  # tokens of an answer that is kept
HELD_TOKENS = 128  # of an answer that is reported on


def documents_of(folder):
  tokens = np.memmap(os.path.join(folder, "train.u16.bin"), dtype="<u2", mode="r")
  with open(os.path.join(folder, "train_index.json")) as f:
    return tokens, [(e[0], e[1]) for e in json.load(f)]


GRID = 8  # lengths of prompts, even on a logarithmic scale: few of them, so that batches are of one length


def pieces(tokens, documents, count, shortest, longest, dice):
  """pieces of random documents (long documents more often)"""
  weights = list(itertools.accumulate(length for _, length in documents))
  for _ in range(count):
    size = round(shortest * (longest / shortest) ** (dice.randrange(GRID) / (GRID - 1)))
    for _ in range(50):
      start, length = dice.choices(documents, cum_weights=weights)[0]
      if length >= size:
        break
    size = min(length, size)
    at = start + dice.randrange(length - size + 1)
    yield tokens[at : at + size].tolist()


def texts(tokens, documents, shortest, longest, dice):
  """without end: documents as they are, or pieces of those that are too long"""
  weights = list(itertools.accumulate(length for _, length in documents))
  while True:
    start, length = dice.choices(documents, cum_weights=weights)[0]
    size = min(length, longest) if length <= longest else int(shortest * (longest / shortest) ** dice.random())
    at = start + dice.randrange(length - size + 1)
    yield tokens[at : at + size].tolist()


def requests_of(o):
  tokens, documents = documents_of(o.corpus)
  dice, wanted = random.Random(o.seed), []
  if o.held:
    with open(o.held) as f:
      wanted += [(r["prompt"], HELD_TOKENS, {"held": r["kind"]}) for r in map(json.loads, f)]
  wanted += [(p, o.long_tokens, {"whole": True}) for p in pieces(tokens, documents, o.long_count, *o.long_prompt, dice)]
  wanted += [(p, o.tokens, {}) for p in pieces(tokens, documents, o.count, *o.prompt, dice)]
  for i, (prompt, count, more) in enumerate(wanted):
    request = {"id": i, "prompt": prompt, "max_tokens": count, "ignore_eos": True} | more
    greedy = "held" in more or i % 3 < 2
    how = {"temperature": 0} if greedy else {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "seed": o.seed + i}
    yield request | how


def before_loops(ids, limit, n=4):
  """the longest beginning of which at most this share of the runs of n tokens has occurred before: small models loop"""
  if len(ids) <= n:
    return ids
  runs = np.lib.stride_tricks.sliding_window_view(np.asarray(ids, np.uint64), n) << np.arange(0, 16 * n, 16, dtype=np.uint64)
  first = np.zeros(len(runs), np.int64)
  first[np.unique(runs.sum(1), return_index=True)[1]] = 1
  count = np.arange(1, len(runs) + 1)
  fine = np.flatnonzero(count - first.cumsum() <= limit * count)
  return ids[: fine[-1] + n]


def answered(requests, answers, limit, counts):
  """(prompt and answer, tokens of it that are not trained, kind) of what is fit for training"""
  with open(requests) as f:
    asked = {r["id"]: r for r in map(json.loads, f)}
  with open(answers) as f:
    for line in f:
      answer = json.loads(line)
      if "choices" not in answer:
        counts["failed"] += 1
        continue
      request = asked[answer["id"]]
      prompt, written = request["prompt"], answer["choices"][0]["tokens"]
      if "held" in request:
        yield prompt + written, len(prompt), data.HELD + request["held"]
        continue
      kind, ids = "sampled" if request["temperature"] else "greedy", before_loops(written, limit)
      counts["cut"] += len(ids) < len(written)
      if len(ids) < SHORTEST:
        counts["dropped"] += 1
        continue
      counts[kind] += 1
      yield prompt + ids, 0 if request.get("whole") else len(prompt), kind


def parse(arguments):
  ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  ap.add_argument("--hunch", default="build/release/hunch", help="the program; empty: take DATA/answers.jsonl as it is")
  ap.add_argument("--torch", action="store_true", help="answers by PyTorch; --model is then a Hugging Face folder")
  ap.add_argument("--seconds", type=float, default=1e9, help="with --torch: no further batch after so long")
  ap.add_argument("--model", help="the target, as hunch takes it")
  ap.add_argument("--corpus", required=True, help="folder with train.u16.bin and train_index.json")
  ap.add_argument("--out", required=True)
  ap.add_argument("--held", help="prompts to report on")
  ap.add_argument("--count", type=int, default=40000, help="requests with short prompts")
  ap.add_argument("--tokens", type=int, default=512, help="longest answer to those")
  ap.add_argument("--prompt", type=int, nargs=2, default=[32, 256], help="shortest and longest of those prompts")
  ap.add_argument("--long-count", type=int, default=512, help="requests with long prompts")
  ap.add_argument("--long-tokens", type=int, default=256)
  ap.add_argument("--long-prompt", type=int, nargs=2, default=[1024, 24576])
  ap.add_argument("--repetition", type=float, default=0.3, help="answers are cut where a greater share of 4-grams is repeated")
  ap.add_argument("--real-share", type=float, default=0.2, help="share of documents in all tokens")
  ap.add_argument("--real-tokens", type=int, default=0, help="tokens of documents, whatever the share")
  ap.add_argument("--real", type=int, nargs=2, default=[2048, 32000], help="shortest and longest piece of those")
  ap.add_argument("--max-num-seqs", type=int, default=256)
  ap.add_argument("--seed", type=int, default=1)
  ap.add_argument("more", nargs="*", help="further flags of `hunch batch`, after --")
  return ap.parse_args(arguments)


def by_hunch(o, requests, answers):
  command = [o.hunch, "batch", requests, "-o", answers, "--spec", "none", "--max-num-seqs", str(o.max_num_seqs), *o.more]
  longest = max(o.prompt[1] + o.tokens, o.long_prompt[1] + o.long_tokens if o.long_count else 0)
  command += ["-c", str(longest)] + (["-m", o.model] if o.model else [])
  status = subprocess.run(command).returncode
  if status > 1:  # 1: some lines have no answer
    sys.exit(f"generate: hunch ended with status {status}")


def by_torch(o, requests, answers):
  import torch
  from answers import write_answers
  from target import load_decoder

  cuda = torch.cuda.is_available()
  target = load_decoder(o.model, torch.bfloat16 if cuda else torch.float32).to("cuda" if cuda else "cpu")
  with open(requests) as f:
    write_answers(target, [json.loads(line) for line in f], answers, o.seconds, o.seed)


def main(arguments=None):
  o = parse(arguments)
  os.makedirs(o.out, exist_ok=True)
  requests, answers = os.path.join(o.out, "requests.jsonl"), os.path.join(o.out, "answers.jsonl")
  if not os.path.exists(requests):
    with open(requests + ".new", "w") as f:
      f.writelines(json.dumps(r, separators=(",", ":")) + "\n" for r in requests_of(o))
    os.replace(requests + ".new", requests)
  if o.torch:
    by_torch(o, requests, answers)
  elif o.hunch:
    by_hunch(o, requests, answers)
  counts = dict.fromkeys(("greedy", "sampled", "cut", "dropped", "failed"), 0)
  sequences = list(answered(requests, answers, o.repetition, counts))
  own = sum(len(ids) for ids, _, _ in sequences)
  tokens, documents = documents_of(o.corpus)
  dice, real = random.Random(o.seed + 1), 0
  for ids in texts(tokens, documents, *o.real, dice):
    if real >= (o.real_tokens or own * o.real_share / (1 - o.real_share)):
      break
    sequences.append((ids, 0, "real"))
    real += len(ids)
  dice.shuffle(sequences)  # so that what is held out is of all kinds
  total = data.write(o.out, sequences)
  print(f"{o.out}: {total} tokens, {real} of them of real documents; answers: {counts}")


if __name__ == "__main__":
  main()
