"""Training data: DIR/tokens.u16 (little-endian ids) and DIR/index.json, a list of [start, prompt, length, kind] (kind: greedy and
sampled responses of the target after `prompt` tokens, or a piece of a real document, whose prompt is 0). Packed once into rows
that lie on the device as a whole, so that a step moves nothing from the host. Kinds that begin with HELD are never trained on.
"""

import json
import os

import numpy as np
import torch

HELD_OUT = 50  # every so many sequences one is kept from training
HELD = "held "  # how the kinds of sequences begin that are reported on: no other is kept then


def read(folder):
  tokens = np.memmap(os.path.join(folder, "tokens.u16"), dtype="<u2", mode="r")
  with open(os.path.join(folder, "index.json")) as f:
    index = json.load(f)
  held = [e for e in index if e[3].startswith(HELD)] or index[HELD_OUT - 1 :: HELD_OUT]
  kept = {tuple(e) for e in held}
  return tokens, [e for e in index if tuple(e) not in kept], held


def write(folder, sequences):
  """sequences: (ids, prompt, kind)"""
  os.makedirs(folder, exist_ok=True)
  index, start = [], 0
  with open(os.path.join(folder, "tokens.u16"), "wb") as f:
    for ids, prompt, kind in sequences:
      f.write(np.asarray(ids, dtype="<u2").tobytes())
      index.append([start, prompt, len(ids), kind])
      start += len(ids)
  with open(os.path.join(folder, "index.json"), "w") as f:
    json.dump(index, f, separators=(",", ":"))
  return start


class Rows:
  """Packed rows [rows][row_len]: ids, documents (a number each, -1: padding) and labels (whether a token is to be predicted)"""

  def __init__(self, tokens, entries, row_len, device):
    bins = self._deal([(min(e[2], row_len), e) for e in entries if e[2] > 2], row_len)
    ids = np.zeros((len(bins), row_len), np.int32)
    documents = np.full((len(bins), row_len), -1, np.int32)
    labels = np.zeros((len(bins), row_len), bool)
    for r, content in enumerate(bins):
      at = 0
      for d, (size, (start, prompt, _, _)) in enumerate(content):
        ids[r, at : at + size] = tokens[start : start + size]
        documents[r, at : at + size] = d
        labels[r, at + max(prompt, 1) : at + size] = True
        at += size
    self.ids, self.documents = torch.from_numpy(ids).to(device), torch.from_numpy(documents).to(device)
    self.labels, self.row_len = torch.from_numpy(labels).to(device), row_len

  @staticmethod
  def _deal(sized, row_len, open_rows=64):
    """each sequence into the fullest of some open rows that it fits in"""
    done, bins = [], []  # bins: [free, content]
    for size, entry in sized:
      fits = [b for b in bins if b[0] >= size]
      if fits:
        best = min(fits, key=lambda b: b[0])
      else:
        if len(bins) >= open_rows:
          fullest = min(bins, key=lambda b: b[0])
          bins.remove(fullest)
          done.append(fullest[1])
        best = [row_len, []]
        bins.append(best)
      best[0] -= size
      best[1].append((size, entry))
    return done + [content for _, content in bins]

  def __len__(self):
    return len(self.ids)

  def take(self, rows):
    return self.ids[rows].long(), self.documents[rows], self.labels[rows]


class Batches:
  """Batch number n, the same whenever it is asked for: every row once, in a random order, then in another one"""

  def __init__(self, tokens, entries, row_len, batch_tokens, device, seed=1):
    self.rows, self.count = Rows(tokens, entries, row_len, device), max(1, batch_tokens // row_len)
    self.seed, self.device = seed, device
    self.epoch, self.order = None, None

  def batch(self, n):
    epoch, at = divmod(n * self.count, max(1, len(self.rows) - self.count + 1))
    if self.epoch != epoch:
      generator = torch.Generator().manual_seed(self.seed * 1000003 + epoch)
      self.epoch, self.order = epoch, torch.randperm(len(self.rows), generator=generator).to(self.device)
    return self.rows.take(self.order[at : at + self.count])


def label_counts(tokens, entries, vocab):
  """how often each token is to be predicted"""
  counts = np.zeros(vocab, np.int64)
  for start, prompt, length, _ in entries:
    counts += np.bincount(tokens[start + prompt : start + length], minlength=vocab)
  return torch.from_numpy(counts)
