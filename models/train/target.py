"""The model whose drafts are trained: Llama, Qwen2, Qwen3 or NSA (nsa_model.py) from a Hugging Face folder, with what drafters
read of it: the residual stream after chosen layers (taps, before any norm) and the hidden state after the last norm. Also a draft model's class.
"""

import glob
import json
import os

import safetensors.torch
import torch
from layers import Block, Cache, Mask, Norm, Shape, rope_tables
from nsa_model import Nsa
from torch import nn


class Stack(nn.Module):
  def __init__(self, s):
    super().__init__()
    self.embed_tokens = nn.Embedding(s.vocab, s.hidden)
    self.layers = nn.ModuleList(Block(s) for _ in range(s.layers))
    self.norm = Norm(s.hidden, s.eps)


class Decoder(nn.Module):
  """State dict = Hugging Face's names; `config` is config.json as read"""

  def __init__(self, config):
    super().__init__()
    self.config, self.s = config, Shape.from_config(config)
    self.model = Stack(self.s)
    if not self.s.tied:
      self.lm_head = nn.Linear(self.s.hidden, self.s.vocab, bias=False)

  @property
  def head(self):
    """the output matrix [vocab][hidden]"""
    return self.model.embed_tokens.weight if self.s.tied else self.lm_head.weight

  def forward(self, ids, mask=None, taps=(), caches=None):
    """ids [batch][rows] -> hidden after the last norm, and the outputs of layers `taps` side by side (None without taps)"""
    start = caches[0].length if caches else 0
    positions = torch.arange(start, start + ids.shape[1], device=ids.device)
    tables = rope_tables(positions, self.s.head_dim, self.s.theta)
    mask = mask or Mask()
    x, kept = self.model.embed_tokens(ids), {}
    if torch.is_autocast_enabled(ids.device.type):
      x = x.to(torch.get_autocast_dtype(ids.device.type))
    for i, block in enumerate(self.model.layers):
      x = block(x, tables, mask, caches[i] if caches else None)
      if i in taps:
        kept[i] = x
    return self.model.norm(x), torch.cat([kept[i] for i in taps], -1) if taps else None

  def logits(self, hidden):
    return nn.functional.linear(hidden, self.head).float()

  @torch.inference_mode()
  def greedy(self, ids, count):
    """the `count` likeliest tokens after ids [batch][rows] -> [batch][count]; end of text does not stop them"""
    caches, out, new = [Cache() for _ in self.model.layers], [], ids
    for _ in range(count):
      hidden, _ = self(new, caches=caches)
      new = self.logits(hidden[:, -1:]).argmax(-1)
      out.append(new)
    return torch.cat(out, 1)


def read_config(folder):
  with open(os.path.join(folder, "config.json")) as f:
    return json.load(f)


def read_tensors(folder, pattern="*.safetensors"):
  """name -> tensor over all weight files of a folder"""
  files = sorted(glob.glob(os.path.join(folder, pattern)))
  if not files:
    raise FileNotFoundError(f"{folder}: no {pattern}")
  return {name: t for file in files for name, t in safetensors.torch.load_file(file).items()}


def load_decoder(folder, dtype=torch.float32):
  """A folder's model. Tensors of multi-token prediction, which a target's folder may hold too, are left out."""
  config = read_config(folder)
  decoder, weights = (Nsa if config["model_type"] == "nsa" else Decoder)(config), read_tensors(folder)
  extra = (f"model.layers.{decoder.s.layers}.", "mtp.")
  weights = {n: t for n, t in weights.items() if not n.startswith(extra)}
  if decoder.s.tied:
    weights.pop("lm_head.weight", None)
  decoder.load_state_dict(weights)
  return decoder.to(dtype).eval()
