"""Trains a drafter for a frozen target and writes it as a folder that hunch loads:

    python tools/train/train.py METHOD --target DIR --data DIR --out DIR --minutes M

METHOD: eagle3 eagle mtp medusa draft_model. --data is what generate.py wrote. The teacher runs in the same step: nothing is
precomputed. bf16 on a GPU, fp32 on a CPU. Goes on from OUT/checkpoint.pt if there is one; ends with acceptance on held-out text
(OUT/acceptance.json) and the folder in OUT. Made with (pip): torch==2.15.0 safetensors==0.8.0 numpy==2.4.6
"""

import argparse
import json
import math
import os
import sys
import time

import accept
import data
import torch
from layers import Fast, q4
from layouts import read_drafter
from losses import SoftCe, step_weights
from methods import METHODS
from target import load_decoder

WARM_UP, LAST_RATE = 0.03, 0.05  # of the time; of the learning rate
ROUNDED_FROM = 0.6  # of the time
SAVE_EVERY, SHOW_EVERY = 60.0, 5.0  # seconds


def parse(arguments):
  ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  ap.add_argument("method", choices=METHODS)
  ap.add_argument("--target", required=True, help="Hugging Face folder of the target")
  ap.add_argument("--data", required=True, help="folder with tokens.u16 and index.json")
  ap.add_argument("--out", required=True)
  ap.add_argument("--minutes", type=float, default=3.0, help="time of training, compilation included")
  ap.add_argument("--max-steps", type=int, default=0, help="end after so many steps in place of --minutes")
  ap.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
  ap.add_argument("--lr", type=float, default=0.0, help="greatest learning rate (default: the method's)")
  ap.add_argument("--batch-tokens", type=int, default=0, help="tokens a step (default: the method's)")
  ap.add_argument("--row", type=int, default=32768, help="row length that sequences are packed into; longer ones are cut")
  ap.add_argument(
      "--optimizer", choices=("muon", "adamw"), default="muon", help="muon: for matrices inside of layers (adamw: --lr 5e-4)"
  )
  ap.add_argument(
      "--steps", type=int, default=0, help="guesses in a row that are trained (Medusa: heads; default: the method's)"
  )
  ap.add_argument("--taps", type=lambda s: [int(x) for x in s.split(",")], default=[1, 3, 6], help="eagle3: outputs of layers")
  ap.add_argument("--init", default="", help="eagle3: folder of a drafter to go on from, of the same taps")
  ap.add_argument("--draft-vocab", type=int, default=8192, help="eagle3: tokens of its head; 0: all")
  ap.add_argument("--layout", default="", help="eagle3: eagle3, speculators; mtp: mtp, mtp-qwen; medusa: medusa, medusa-vllm")
  ap.add_argument("--own-heads", action="store_true", help="medusa: an output matrix for each head")
  ap.add_argument("--res-blocks", type=int, default=1, help="medusa: residual blocks of a head")
  ap.add_argument("--draft-hidden", type=int, default=256, help="draft_model: width")
  ap.add_argument("--draft-layers", type=int, default=2)
  ap.add_argument("--draft-heads", type=int, default=4)
  ap.add_argument("--attention", choices=("flex", "plain"), default="flex", help="on a GPU: compiled, or masks in memory")
  ap.add_argument("--no-compile", action="store_true", help="nothing else is compiled")
  ap.add_argument("--round", action="store_true", help="at last with matrices as Q4_0 stores them, and written so")
  ap.add_argument("--seed", type=int, default=1)
  return ap.parse_args(arguments)


class Clock:
  """How far training is, by the time that is left once the first steps have compiled everything, or by steps"""

  def __init__(self, o, before):
    self.o, self.start, self.before, self.first = o, time.time(), before, None

  def elapsed(self):
    return self.before + time.time() - self.start

  def fraction(self, step):
    if self.o.max_steps:
      return min(1.0, step / self.o.max_steps)
    now, end = self.elapsed(), 60 * self.o.minutes
    if step <= 3:
      self.first = now
      return 1.0 if now >= end else 0.0
    first = 0.0 if self.before else self.first or 0.0
    return min(1.0, (now - first) / max(1e-9, end - first))


def rate(fraction):
  if fraction < WARM_UP:
    return max(0.02, fraction / WARM_UP)
  return LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * (fraction - WARM_UP) / (1 - WARM_UP)))


class Trainer:
  def __init__(self, o):
    torch.manual_seed(o.seed)
    self.o, self.device = o, torch.device(o.device)
    self.cuda = self.device.type == "cuda"
    if self.cuda:
      torch.set_float32_matmul_precision("high")
      Fast.use(o.attention, not o.no_compile)
    os.makedirs(o.out, exist_ok=True)
    target = load_decoder(o.target, torch.bfloat16 if self.cuda else torch.float32)
    self.target = target.to(self.device).requires_grad_(False)
    self.method = METHODS[o.method](self.target, o)
    self.tokens, train, self.held = data.read(o.data)
    self.drafter = self.method.build(self.tokens, train).to(self.device)
    self.params = [p for p in self.drafter.parameters() if p.requires_grad]
    batch_tokens = o.batch_tokens or self.method.batch_tokens
    self.batches = data.Batches(self.tokens, train, o.row, batch_tokens, self.device, o.seed)
    self.matrices = [p for p in self.params if o.round and p.ndim == 2 and p.shape[1] % 32 == 0]
    self.loss = SoftCe(compiled=self.cuda and not o.no_compile)
    self.optimizers = self.make_optimizers()
    self.step, self.before = 0, 0.0
    count = sum(p.numel() for p in self.params)
    print(f"{o.method}: {count / 1e6:.2f} M parameters, {len(train)} sequences, on {self.device}", flush=True)

  def make_optimizers(self):
    """AdamW; or Muon (Jordan et al. 2024, steps as large as AdamW's) for matrices other than embeddings and heads"""
    inside = lambda name, p: p.ndim == 2 and "head" not in name and "embed" not in name and self.o.optimizer == "muon"
    named = [(n, p) for n, p in self.drafter.named_parameters() if p.requires_grad]
    rest, matrices = [p for n, p in named if not inside(n, p)], [p for n, p in named if inside(n, p)]
    made = [torch.optim.AdamW(rest, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0, fused=self.cuda)] if rest else []
    if matrices:
      made.append(torch.optim.Muon(matrices, lr=1e-4, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"))
    return made

  def checkpoint(self, clock):
    path = os.path.join(self.o.out, "checkpoint.pt")
    state = {"drafter": self.drafter.state_dict(), "step": self.step}
    state["optimizers"] = [x.state_dict() for x in self.optimizers]
    torch.save(state | {"elapsed": clock.elapsed()}, path + ".new")
    os.replace(path + ".new", path)

  def resume(self):
    path = os.path.join(self.o.out, "checkpoint.pt")
    if os.path.exists(path):
      state = torch.load(path, map_location=self.device, weights_only=True)
      self.drafter.load_state_dict(state["drafter"])
      for x, kept in zip(self.optimizers, state["optimizers"]):
        x.load_state_dict(kept)
      self.step, self.before = state["step"], state["elapsed"]
      print(f"goes on after step {self.step}", flush=True)

  @torch.no_grad()
  def put(self, values):
    for p, value in zip(self.matrices, values):
      p.copy_(value)

  def one(self, factor, rounded):
    """-> loss, hits and guesses by depth, tokens; all but the last on the device, not waited for"""
    kept = [p.detach().clone() for p in self.matrices] if rounded else []
    if rounded:
      self.put([q4(p.detach()) for p in self.matrices])
    ids, documents, labels = self.batches.batch(self.step)
    weights, exist = step_weights(documents, labels, self.method.steps, self.method.decay)
    with torch.autocast(self.device.type, torch.bfloat16, enabled=self.cuda):
      hidden, taps = self.method.features(ids, documents)
      states, state = self.method.states(self.drafter, ids, documents, hidden, taps)
      following = torch.nn.functional.pad(ids[:, 1:], (0, 1)).flatten()
      loss, hits = self.loss(
          states, self.method.heads(self.drafter), hidden.flatten(0, 1), self.target.head, following, weights,
          self.method.ids(self.drafter), self.method.soft,
      )  # fmt: skip
      total = loss + (self.method.extra_loss(state, hidden, weights) if state is not None else 0.0)
    total.backward()
    self.put(kept)
    torch.nn.utils.clip_grad_norm_(self.params, 0.5)
    for optimizer in self.optimizers:
      for group in optimizer.param_groups:
        group["lr"] = (self.o.lr or self.method.lr) * factor
      optimizer.step()
      optimizer.zero_grad(set_to_none=True)
    self.step += 1
    return loss.detach(), hits, exist, ids.numel()

  def run(self):
    self.resume()
    clock = Clock(self.o, self.before)
    shown = saved = time.time()
    sums, done, events, log = None, 0, [], open(os.path.join(self.o.out, "log.jsonl"), "a")
    while (fraction := clock.fraction(self.step)) < 1:
      loss, hits, exist, count = self.one(rate(fraction), fraction >= ROUNDED_FROM)
      now = [loss, torch.ones_like(loss), hits, exist]
      sums = now if sums is None else [a + b for a, b in zip(sums, now)]
      done += count
      if self.cuda:  # the host stays two steps ahead, so that the clock is honest
        events.append(torch.cuda.Event())
        events[-1].record()
        if len(events) > 2:
          events.pop(0).synchronize()
      t = time.time()
      if t - shown >= SHOW_EVERY or self.step == 1:
        self.show(clock, sums, done / (t - shown), log)
        sums, done, shown = None, 0, time.time()
      if t - saved >= SAVE_EVERY:
        self.checkpoint(clock)
        saved = time.time()
    self.checkpoint(clock)
    if sums is not None:
      self.show(clock, sums, done / max(1e-9, time.time() - shown), log)
    log.close()

  def show(self, clock, sums, speed, log):
    loss, steps, hits, exist = (x.tolist() for x in sums)
    right = [h / max(1, n) for h, n in zip(hits, exist)]
    fraction = clock.fraction(self.step)
    left = 60 * self.o.minutes - clock.elapsed() if not self.o.max_steps else 0
    line = f"{self.o.method} step {self.step}  {speed / 1e3:.0f} k tokens/s  loss {loss / steps:.4f}  right " + " ".join(
        f"{r:.3f}" for r in right
    )
    line += f"  {100 * fraction:.0f} %" if self.o.max_steps else f"  {max(0, left):.0f} s left"
    print(("\r\x1b[K" if sys.stdout.isatty() else "") + line, end="" if sys.stdout.isatty() else "\n", flush=True)
    record = {
        "step": self.step,
        "elapsed": round(clock.elapsed(), 1),
        "tokens_per_second": round(speed),
        "loss": loss / steps,
    }
    log.write(json.dumps(record | {"right": [round(r, 4) for r in right]}) + "\n")
    log.flush()
    if not math.isfinite(loss):
      raise SystemExit(f"{self.o.method}: the loss is not finite at step {self.step}")

  def finish(self):
    """writes the folder, reads it again and reports what that one accepts"""
    if sys.stdout.isatty():
      print()
    self.put([q4(p.detach()) for p in self.matrices])
    self.method.write(self.drafter, self.o.out)
    drafter = read_drafter(self.o.out, self.target).to(self.device)
    rows = accept.report(self.method, drafter, self.tokens, self.held, self.device)
    accept.show(rows)
    with open(os.path.join(self.o.out, "acceptance.json"), "w") as f:
      json.dump({"method": self.o.method, "steps": self.step, "rows": rows}, f, indent=1)
    return rows


def main(arguments=None):
  trainer = Trainer(parse(arguments))
  trainer.run()
  return trainer.finish()


if __name__ == "__main__":
  main()
