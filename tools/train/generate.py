"""Training data of the target's own writing, made by hunch: requests that go on from pieces of a corpus, their answers, and the
token file that train.py reads.

    python tools/train/generate.py --hunch build/release/hunch --model DIR --corpus TOKENS --out DATA --count 40000

TOKENS holds train.u16.bin (little-endian ids) and train_index.json ([[start, length, ...], ...]: its documents). Half the answers
are greedy, half are drawn at temperature 1 from the whole vocabulary; each is cut where it goes round in loops. Pieces of the
documents themselves, 4 to 16 thousand tokens, make up the rest, so that long contexts are trained too. The command may be
interrupted: DATA/requests.jsonl stays, hunch goes on with what is missing in DATA/answers.jsonl. Made with (pip): numpy==2.4.6
"""

import argparse
import json
import os
import random
import subprocess
import sys

import data
import numpy as np

SHORTEST = 8  # tokens of an answer that is kept


def documents_of(folder):
    tokens = np.memmap(os.path.join(folder, "train.u16.bin"), dtype="<u2", mode="r")
    with open(os.path.join(folder, "train_index.json")) as f:
        return tokens, [(e[0], e[1]) for e in json.load(f)]


def pieces(tokens, documents, count, shortest, longest, dice):
    """pieces of random documents (long documents more often), lengths even on a logarithmic scale"""
    weights = [length for _, length in documents]
    for start, length in dice.choices(documents, weights, k=count):
        size = min(length, int(shortest * (longest / shortest) ** dice.random()))
        at = start + dice.randrange(length - size + 1)
        yield tokens[at : at + size].tolist()


def write_requests(path, o):
    tokens, documents = documents_of(o.corpus)
    dice = random.Random(o.seed)
    with open(path + ".new", "w") as f:
        for i, prompt in enumerate(pieces(tokens, documents, o.count, *o.prompt, dice)):
            request = {"id": i, "prompt": prompt, "max_tokens": o.tokens, "ignore_eos": False}
            how = {"temperature": 0} if i % 2 == 0 else {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "seed": o.seed + i}
            f.write(json.dumps(request | how, separators=(",", ":")) + "\n")
    os.replace(path + ".new", path)


def before_loops(ids, limit, n=4):
    """the longest beginning of which at most this share of the runs of n tokens has occurred before: small models loop"""
    seen, end = set(), min(len(ids), n)
    for i in range(len(ids) - n + 1):
        seen.add(tuple(ids[i : i + n]))
        if i + 1 - len(seen) <= limit * (i + 1):
            end = i + n
    return ids[:end]


def answered(requests, answers, limit, counts):
    """(prompt and answer, length of the prompt, kind) of what is fit for training"""
    with open(requests) as f:
        prompts = {r["id"]: (r["prompt"], "sampled" if r["temperature"] else "greedy") for r in map(json.loads, f)}
    with open(answers) as f:
        for line in f:
            answer = json.loads(line)
            if "choices" not in answer:
                counts["failed"] += 1
                continue
            prompt, kind = prompts[answer["id"]]
            written = answer["choices"][0]["tokens"]
            ids = before_loops(written, limit)
            counts["cut"] += len(ids) < len(written)
            if len(ids) < SHORTEST:
                counts["dropped"] += 1
                continue
            counts[kind] += 1
            yield prompt + ids, len(prompt), kind


def parse(arguments):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--hunch", default="build/release/hunch", help="the program; empty: take DATA/answers.jsonl as it is")
    ap.add_argument("--model", help="the target, as hunch takes it")
    ap.add_argument("--corpus", required=True, help="folder with train.u16.bin and train_index.json")
    ap.add_argument("--out", required=True)
    ap.add_argument("--count", type=int, default=40000, help="requests")
    ap.add_argument("--tokens", type=int, default=512, help="longest answer")
    ap.add_argument("--prompt", type=int, nargs=2, default=[32, 256], help="shortest and longest prompt")
    ap.add_argument("--repetition", type=float, default=0.3, help="answers are cut where a greater share of 4-grams is repeated")
    ap.add_argument("--real-share", type=float, default=0.2, help="share of real documents in all tokens")
    ap.add_argument("--real", type=int, nargs=2, default=[4096, 16384], help="shortest and longest piece of those")
    ap.add_argument("--max-num-seqs", type=int, default=256)
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("more", nargs="*", help="further flags of `hunch batch`, after --")
    return ap.parse_args(arguments)


def main(arguments=None):
    o = parse(arguments)
    os.makedirs(o.out, exist_ok=True)
    requests, answers = os.path.join(o.out, "requests.jsonl"), os.path.join(o.out, "answers.jsonl")
    if not os.path.exists(requests):
        write_requests(requests, o)
    if o.hunch:
        command = [o.hunch, "batch", requests, "-o", answers, "--spec", "none", "--max-num-seqs", str(o.max_num_seqs), *o.more]
        command += ["-c", str(o.prompt[1] + o.tokens)] + (["-m", o.model] if o.model else [])
        status = subprocess.run(command).returncode
        if status > 1:  # 1: some lines have no answer
            sys.exit(f"generate: hunch ended with status {status}")
    counts = dict.fromkeys(("greedy", "sampled", "cut", "dropped", "failed"), 0)
    sequences = list(answered(requests, answers, o.repetition, counts))
    own = sum(len(ids) for ids, _, _ in sequences)
    tokens, documents = documents_of(o.corpus)
    dice, real = random.Random(o.seed + 1), 0
    while o.real_share > 0 and real < own * o.real_share / (1 - o.real_share):
        sequences += [(ids, 0, "real") for ids in pieces(tokens, documents, 1, *o.real, dice)]
        real += len(sequences[-1][0])
    dice.shuffle(sequences)  # so that what is held out is of all kinds
    total = data.write(o.out, sequences)
    print(f"{o.out}: {total} tokens, {real} of them of real documents; answers: {counts}")


if __name__ == "__main__":
    main()
