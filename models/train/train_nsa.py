"""Trains a small NSA model (nsa_model.py) from scratch on one GPU, driven by the clock, and writes it as a Hugging Face folder:

    python tools/train/train_nsa.py --corpus TOKENS --tokenizer DIR --tasks FILE --out OUT --seconds 330

TOKENS: folders (commas between) with train.u16.bin and train_index.json; heldout.* in one of them. FILE: a Python module with
Synth(tokenizer, seed, passages).row(tokens, eot, marks=True) -> ids and [(start, end, source)]: text with answers that are to be
looked up further up, and Passages(tokenizer, tokens, index), which it takes passages from. Contexts grow from stage to stage; at
first every block is selected; in the last part weights are rounded as Q4_0 rounds them. OUT/hf: the model; OUT/eval.json: losses
and look-ups by distance, also with forced blocks only; OUT/tokens and OUT/held.jsonl: what generate.py takes for its drafter.
"""

import argparse
import importlib.util
import json
import mmap
import multiprocessing
import os
import random
import shutil
import time

import nsa_model
import numpy as np
import torch
import torch.nn.functional as F
from layers import Fast
from layouts import write_folder
from tokenizers import Tokenizer
from torch.utils.checkpoint import checkpoint

BEGIN = time.time()
CONFIG = {
    "architectures": ["NsaForCausalLM"], "model_type": "nsa", "hidden_act": "silu", "hidden_size": 256, "num_hidden_layers": 6,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 384, "rms_norm_eps": 1e-6,
    "rope_theta": 1e6, "max_position_embeddings": 16384, "vocab_size": 16384, "tie_word_embeddings": True,
    "attention_bias": False, "torch_dtype": "bfloat16",
    "nsa": {"variant": "std", "cmp_len": 16, "cmp_stride": 8, "cmp_kind": "weighted", "cmp_rope": "after_at_block_start",
    "sel_block": 32, "sel_count": 16, "init_blocks": 1, "local_blocks": 2, "window": 128, "window_counts_self": True,
    "kv_sharing": "shared"},
}  # fmt: skip
MARK = 1 << 15  # of a token id: it belongs to an answer
RATES = 3e-3, 0.015  # of AdamW (embeddings, norms, compressors) and Muon (matrices)
DISTANCES = (512, 2048, 8192, 16384)


def parse(arguments=None):
  ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  ap.add_argument("--corpus", required=True)
  ap.add_argument("--tokenizer", required=True)
  ap.add_argument("--tasks", required=True)
  ap.add_argument("--out", required=True)
  ap.add_argument("--config", type=json.loads, default={}, help="keys of config.json that differ")
  ap.add_argument("--seconds", type=float, default=330, help="from start to end of training, compilation included")
  ap.add_argument("--contexts", type=lambda s: [int(x) for x in s.split(",")], default=[2048, 8192, 16384])
  ap.add_argument("--shares", type=lambda s: [float(x) for x in s.split(",")], default=[0.56, 0.26, 0.18], help="of the time")
  ap.add_argument("--tasks-share", type=float, default=0.4, help="of all rows")
  ap.add_argument("--batch-tokens", type=int, default=131072)
  ap.add_argument("--pool-tokens", type=int, default=24000000, help="of tasks, for each context")
  ap.add_argument("--workers", type=int, default=12)
  ap.add_argument("--warm", action="store_true", help="some steps of each context and no more: compiles them for another process")
  ap.add_argument("--seed", type=int, default=1)
  return ap.parse_args(arguments)


class Corpus:
  def __init__(self, folders, name):
    parts, self.index, start = [], [], 0
    for path in (os.path.join(f, name) for f in folders.split(",")):
      if os.path.exists(path + ".u16.bin"):
        parts.append(np.fromfile(path + ".u16.bin", "<u2"))
        with open(path + "_index.json") as f:
          self.index += [[e[0] + start, *e[1:]] for e in json.load(f)]
        start += len(parts[-1])
    self.tokens, self.ends = np.concatenate(parts), np.cumsum([e[1] for e in self.index])

  def row(self, length, dice):
    e = self.index[int(np.searchsorted(self.ends, dice.random() * self.ends[-1], side="right"))]
    at = e[0] + (0 if dice.random() < 0.1 else int(dice.random() * max(1, e[1] - length // 2)))
    at = max(0, min(at, len(self.tokens) - length))
    return self.tokens[at : at + length]


def tasks_of(o, corpus, seed):
  spec = importlib.util.spec_from_file_location("tasks", o.tasks)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  tokenizer = Tokenizer.from_file(os.path.join(o.tokenizer, "tokenizer.json"))
  long = [e for e in corpus.index if e[1] > 400 and "code" not in e[2]] or corpus.index
  made = module.Synth(tokenizer, seed, module.Passages(tokenizer, corpus.tokens, long))
  return lambda length: made.row(length, EOT, marks=True)


class Pools:
  """Rows of tasks, one pool a context, which processes fill for as long as training lasts"""

  def __init__(self, o, corpus):
    shared = lambda shape, kind: np.frombuffer(mmap.mmap(-1, int(np.prod(shape)) * np.dtype(kind).itemsize), kind).reshape(shape)
    each = [max(2, o.pool_tokens // c // o.workers) for c in o.contexts]
    self.rows = [shared((o.workers, n, c + 1), "<u2") for n, c in zip(each, o.contexts)]
    self.filled, self.stage = shared((o.workers, len(each)), "<i8"), shared((1,), "<i8")
    fork = multiprocessing.get_context("fork")
    for w in range(o.workers):
      fork.Process(target=self.fill, args=(o, corpus, w), daemon=True).start()

  def fill(self, o, corpus, w):
    os.nice(5)
    parent, row = os.getppid(), tasks_of(o, corpus, 1000 * o.seed + w)
    while os.getppid() == parent:
      s = int(self.stage[0])  # rows of later stages beforehand
      later = [i for i in range(s + 1, len(self.rows)) if self.filled[w, i] < self.rows[i].shape[1] // 2]
      s = later[0] if later and self.filled[w, s] > 20 and self.filled[w].sum() % 3 == 0 else s
      length = self.rows[s].shape[2]
      ids, marks = row(length)
      out = np.asarray(ids, "<u2")
      for a, e, _ in marks:
        out[a:e] |= MARK
      self.rows[s][w, self.filled[w, s] % self.rows[s].shape[1]] = out
      self.filled[w, s] += 1

  def row(self, s, dice):
    w = dice.randrange(len(self.filled))
    n = min(int(self.filled[w, s]), self.rows[s].shape[1])
    return self.rows[s][w, dice.randrange(n)] if n else None


def token_losses(h, w, t):
  return F.cross_entropy(F.linear(h, w.to(h.dtype)).float(), t, reduction="none")


class Training:
  def __init__(self, o):
    self.o, self.cuda = o, torch.cuda.is_available()
    self.device = torch.device("cuda" if self.cuda else "cpu")
    self.dtype = torch.bfloat16 if self.cuda else None
    if self.cuda:
      torch.set_float32_matmul_precision("high")
      Fast.use()
    config = CONFIG | o.config | {"nsa": CONFIG["nsa"] | o.config.get("nsa", {})}
    self.net = nsa_model.Nsa(config | {"eos_token_id": [END, EOT], "bos_token_id": EOT, "pad_token_id": EOT}).begin(o.seed)
    self.net.to(self.device)
    small = lambda n, p: p.ndim != 2 or "embed" in n or "compress" in n
    named = list(self.net.named_parameters())
    self.rest = [p for n, p in named if small(n, p)]
    adam = torch.optim.AdamW(self.rest, betas=(0.9, 0.95), eps=1e-9, weight_decay=0.0, fused=self.cuda)
    self.optimizers = [adam, torch.optim.Muon([p for n, p in named if not small(n, p)], weight_decay=0.02)]
    self.dice, self.log = torch.Generator().manual_seed(o.seed), open(os.path.join(o.out, "log.jsonl"), "a")
    self.say(parameters=sum(p.numel() for _, p in named))

  def say(self, **what):
    line = json.dumps({"at": round(time.time() - BEGIN, 1)} | what)
    print(line, flush=True)
    self.log.write(line + "\n")
    self.log.flush()

  def memory(self):
    return round(torch.cuda.max_memory_allocated() / 2**30, 1) if self.cuda else 0

  def losses(self, x):
    """x [batch][rows + 1] -> losses, weights, whether of an answer, all [batch * rows]"""
    marked, ids = x >= MARK, x & (MARK - 1)
    hidden, _ = self.net(ids[:, :-1].contiguous(), dtype=self.dtype)
    t, m = ids[:, 1:].flatten().long(), marked[:, 1:].flatten()
    weight = 1.0 + m.float()
    table = self.net.weight(self.net.model.embed_tokens)
    run, parts = nsa_model.piece(token_losses), zip(hidden.flatten(0, 1).split(16384), t.split(16384))
    losses = torch.cat([checkpoint(run, h, table, part, use_reentrant=False, preserve_rng_state=False) for h, part in parts])
    return losses, weight, m

  def step(self, batch, fraction):
    """-> loss, loss of answers, of guidance, on the device"""
    net, x = self.net, batch.to(self.device, non_blocking=True)
    rows, part = x.shape[1] - 1, min(48, (x.shape[1] - 1) // 4)
    net.count = nsa_model.DENSE if fraction < 0.15 else net.n.count
    net.rounding = fraction >= self.o.shares[0] / sum(self.o.shares)  # from the second stage on
    net.sample = torch.randperm(rows, generator=self.dice)[:part].sort().values.to(self.device)
    losses, weight, marked = self.losses(x)
    guided = torch.stack(net.guided).mean()
    ((losses * weight).sum() / weight.sum() + 0.3 * guided).backward()
    torch.nn.utils.clip_grad_norm_(self.rest, 1.0)
    for optimizer, rate in zip(self.optimizers, RATES):
      for group in optimizer.param_groups:
        group["lr"] = rate * min(1.0, 0.02 + fraction / 0.03, max(0.0, 1 - fraction) / 0.4)
      optimizer.step()
    net.zero_grad(set_to_none=True)
    plain = losses.detach()
    return torch.stack([plain.mean(), (plain * marked).sum() / marked.sum().clamp(min=1), guided.detach()])

  def run(self, corpus, pools):
    o, dice, stage, begun, fraction = self.o, random.Random(self.o.seed), -1, None, 0.0
    shown, sums, done, step, total = time.time(), [], 0, 0, 0
    ends = np.cumsum(o.shares) / sum(o.shares)
    while fraction < 1:
      now = int(np.searchsorted(ends, fraction, side="right"))
      if now != stage:
        stage = pools.stage[0] = now
        while (pools.filled[:, stage] > 0).mean() < 0.5:
          time.sleep(0.1)
        self.say(context=o.contexts[stage], pools=pools.filled.sum(0).tolist())
      size, length = max(1, o.batch_tokens // o.contexts[stage]), o.contexts[stage] + 1
      rows = [pools.row(stage, dice) if dice.random() < o.tasks_share else None for _ in range(size)]
      rows = [corpus.row(length, dice) if x is None else x for x in rows]
      batch = torch.from_numpy(np.stack(rows).astype(np.int32))
      sums.append(self.step(batch, fraction))
      step, done, total = step + 1, done + batch.numel(), total + batch.numel()
      if self.cuda and step % 4 == 0:
        torch.cuda.synchronize()  # so that the clock is honest
      if begun is None and (step == 4 or time.time() - BEGIN > o.seconds / 2):
        begun = time.time()  # compiled
      fraction = (time.time() - begun) / max(1.0, BEGIN + o.seconds - begun) if begun else 0.0
      if time.time() - shown > 10 or step in (1, 4):
        loss = torch.stack(sums).mean(0).tolist()
        self.say(
            step=step, done=round(fraction, 3), loss=round(loss[0], 4), answers=round(loss[1], 4), guide=round(loss[2], 4),
            tokens_per_second=int(done / (time.time() - shown)), millions=round(total / 1e6, 1),
            gib=self.memory(),
        )  # fmt: skip
        if not np.isfinite(loss[0]):
          raise SystemExit("the loss is not finite")
        shown, sums, done = time.time(), [], 0

  def evaluate(self, context, rows):
    """rows [(ids, marks)]: -> by mode: loss of rows without marks; shares of answers that are right in every token, and count"""
    size, out = max(1, self.o.batch_tokens // context), {}
    self.net.sample, nsa_model.piece = None, lambda f: f  # only FlexAttention in what is compiled: the modes differ in shape
    for mode, count in (("selection", self.net.n.count), ("forced blocks only", 0), ("all blocks", nsa_model.DENSE)):
      self.net.count, cells, real = count, {}, []
      for a in range(0, len(rows), size):
        some = rows[a : a + size]
        ids = torch.tensor(np.stack([r for r, _ in some] + [some[0][0]] * (size - len(some))).astype(np.int32))
        ids = ids.to(self.device)
        hidden = self.net(ids[:, :-1].contiguous(), dtype=self.dtype)[0].detach()  # with gradients: compiled so
        for (_, marks), h, row in zip(some, hidden, ids.long()):
          with torch.no_grad():
            z = F.linear(h, self.net.weight(self.net.model.embed_tokens).to(h.dtype)).float()
          if not marks:
            real.append(F.cross_entropy(z, row[1:]).item())
          right = (z.argmax(-1) == row[1:]).cpu().numpy()
          for b, e, source in marks:
            near = next((d for d in DISTANCES if b - source < d), None)
            if 0 < b < e <= context and near:
              cells.setdefault(near, []).append(right[b - 1 : e - 1].all())
        del hidden
      answers = {f"below {d}": [round(float(np.mean(c)), 4), len(c)] for d, c in sorted(cells.items())}
      out[mode] = {"loss of text": round(float(np.mean(real)), 4), "answers": answers}
      self.say(context=context, mode=mode, **out[mode])
    return out

  def write(self, folder):
    config, tensors = self.net.config, {}
    for name, p in self.net.state_dict().items():
      rounds = p.ndim == 2 and name.endswith(".weight")
      tensors[name] = nsa_model.q4(p) if rounds else p  # so that Q4_0 of the file is what was trained
    write_folder(folder, config, tensors)
    for name in os.listdir(self.o.tokenizer):
      if name.startswith(("tokenizer", "special", "generation")):
        shutil.copy(os.path.join(self.o.tokenizer, name), folder)


def held_rows(o, held, context, count):
  """[(ids, marks)]: tasks, and plain text without marks"""
  row, dice = tasks_of(o, held, 987654321), random.Random(5)
  tasks = [row(context + 1) for _ in range(count)]
  return tasks + [(held.row(context + 1, dice), []) for _ in range(count // 3 + 1)]


def for_drafter(o, corpus, pools, rows):
  """OUT/tokens: pieces of text and of tasks as documents; OUT/held.jsonl: prompts of fixed lengths, each before an answer or in text"""
  dice, index, out, at = random.Random(7), [], [], 0
  for s, context in enumerate(o.contexts):
    for _ in range(o.pool_tokens // 8 // context):
      row = pools.row(s, dice) if dice.random() < 0.6 else None
      out.append(corpus.row(context + 1, dice) if row is None else row & (MARK - 1))
      index.append([at, context + 1, "text", ""])
      at += context + 1
  os.makedirs(o.out + "/tokens", exist_ok=True)
  np.concatenate(out).tofile(o.out + "/tokens/train.u16.bin")
  with open(o.out + "/tokens/train_index.json", "w") as f:
    json.dump(index, f)
  with open(o.out + "/held.new", "w") as f:
    for size in (o.contexts[-1] // 16, o.contexts[-1] // 4, o.contexts[-1] // 2):
      kept = {}
      for ids, marks in rows:
        starts = [a for a, _, source in marks if size <= a < len(ids) - 8 and source >= a - size] if marks else [len(ids) - 200]
        kind = "lookup" if marks else "text"
        if starts and starts[-1] >= size and kept.setdefault(kind, 0) < 4:
          kept[kind] += 1
          prompt = [int(x) for x in ids[starts[-1] - size : starts[-1]]]
          f.write(json.dumps({"kind": kind, "prompt": prompt}) + "\n")
  os.replace(o.out + "/held.new", o.out + "/held.jsonl")


def warm(t, o):
  """as `run` does, over noise: what is compiled lies in PyTorch's caches then"""
  for context in o.contexts:
    batch = torch.randint(0, t.net.s.vocab, (max(1, o.batch_tokens // context), context + 1), dtype=torch.int32)
    for _ in range(4):
      begin, loss = time.time(), t.step(batch, 0.7).tolist()
      t.say(warm=context, loss=loss[0], step_seconds=round(time.time() - begin, 2), gib=t.memory())
  t.write(o.out + "/hf")


def main(arguments=None):
  global EOT, END
  o = parse(arguments)
  os.makedirs(o.out, exist_ok=True)
  os.environ["TOKENIZERS_PARALLELISM"] = "false"
  tokenizer = Tokenizer.from_file(os.path.join(o.tokenizer, "tokenizer.json"))
  EOT, END = (tokenizer.token_to_id(x) for x in ("<|endoftext|>", "<|im_end|>"))
  if o.warm:
    return warm(Training(o), o)
  corpus, held = Corpus(o.corpus, "train"), Corpus(o.corpus, "heldout")
  pools = Pools(o, corpus)  # processes before the GPU is touched
  helper = multiprocessing.get_context("fork").Pool(1)
  made = {c: helper.apply_async(held_rows, (o, held, c, max(8, o.pool_tokens // 80 // c))) for c in o.contexts[-2:]}
  t = Training(o)
  try:
    t.run(corpus, pools)
    t.write(o.out + "/hf")
    rows = {c: r.get() for c, r in made.items()}
    torch.cuda.empty_cache()
    for_drafter(o, corpus, pools, [r for c in rows for r in rows[c]])
    evals = {c: t.evaluate(c, rows[c]) for c in rows}
    with open(o.out + "/eval.json", "w") as f:
      json.dump(evals, f, indent=1)
  finally:
    helper.terminate()
    for p in multiprocessing.active_children():
      p.kill()


if __name__ == "__main__":
  main()
