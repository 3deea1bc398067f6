"""The NSA model against its definition written out row by row, in all the ways that it runs. Skipped without torch.

    python tools/train/nsa_test.py
"""

import os
import sys
import unittest

try:
  import torch
except ImportError as missing:
  print(f"nsa_test: skipped, {missing}")
  sys.exit(0)

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import nsa_model  # noqa: E402
from layers import rope_tables, rotate  # noqa: E402

CONFIG = {
    "model_type": "nsa", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "intermediate_size": 64, "vocab_size": 96, "rms_norm_eps": 1e-6, "rope_theta": 1e4,
    "max_position_embeddings": 512, "tie_word_embeddings": True,
    "nsa": {"variant": "std", "cmp_len": 8, "cmp_stride": 4, "cmp_kind": "weighted", "cmp_rope": "after_at_block_start",
    "sel_block": 16, "sel_count": 5, "init_blocks": 1, "local_blocks": 2, "window": 20, "kv_sharing": "shared"},
}  # fmt: skip


def made(seed=1):
  net = nsa_model.Nsa(CONFIG).begin(seed)
  with torch.no_grad():
    for name, p in net.named_parameters():
      if "compress" in name or "pe" in name or "g_proj" in name or "norm" in name:
        p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(len(name))) * 0.2)
      elif "q_proj" in name or "k_proj" in name:
        p.mul_(4)
  return net


def by_definition(net, layer, x):
  """a layer's attention for x [rows][hidden], already normed -> before o_proj [rows][heads * dim], selected sets by (t, kv head)"""
  s, n, a, rows = net.s, net.n, layer.self_attn, len(x)
  q, k, v = ((x @ p.weight.T).view(rows, -1, s.head_dim) for p in (a.q_proj, a.k_proj, a.v_proj))
  turn = lambda y, at: rotate(y[None, None], *rope_tables(torch.tensor([at]), s.head_dim, s.theta))[0, 0, 0]
  gate, scale, sets = torch.sigmoid(x @ a.g_proj.weight.T).view(rows, s.heads, 3), s.head_dim**-0.5, {}
  out = torch.zeros(rows, s.heads, s.head_dim, dtype=x.dtype)
  for h in range(s.kv_heads):
    kc, vc = [], []
    for i in range((rows - n.l) // n.d + 1):
      at = range(i * n.d, i * n.d + n.l)
      kc.append(turn(sum(a.compress_key[h, m] * (k[r, h] + a.intra_block_pe[h, m]) for m, r in enumerate(at))[None], i * n.d))
      vc.append(sum(a.compress_value[h, m] * v[r, h] for m, r in enumerate(at)))
    roped = [turn(k[r, h][None], r) for r in range(rows)]
    heads = range(h * s.heads // s.kv_heads, (h + 1) * s.heads // s.kv_heads)
    for t in range(rows):
      queries = {g: turn(q[t, g][None], t) for g in heads}
      attend = lambda g, keys, values: (torch.stack([queries[g] @ y for y in keys]) * scale).softmax(0) @ torch.stack(values)
      seen = [i for i in range(len(kc)) if i * n.d + n.l - 1 <= t]
      total = dict.fromkeys(range(len(kc)), 0.0)
      for g in heads:
        for i, p in zip(seen, (torch.stack([queries[g] @ kc[i] for i in seen]) * scale).softmax(0).tolist() if seen else []):
          total[i] += p
      r, c, score = n.block // n.d, n.l // n.d, []
      for j in range(t // n.block + 1):
        near = j < n.init or t // n.block - j < n.local
        score.append(1e9 if near else sum(total.get(r * j + m + u - (c - 1), 0.0) for m in range(c) for u in range(r)))
      sets[t, h] = sorted(sorted(range(len(score)), key=lambda j: (-score[j], j))[: n.count])
      chosen = [i for j in sets[t, h] for i in range(j * n.block, min(t + 1, (j + 1) * n.block))]
      window = range(max(0, t - n.window + 1), t + 1)
      for g in heads:
        parts = [attend(g, [kc[i] for i in seen], [vc[i] for i in seen])] if seen else [torch.zeros(s.head_dim)]
        parts += [attend(g, [roped[i] for i in w], [v[i, h] for i in w]) for w in (chosen, window)]
        out[t, g] = sum(gate[t, g, b] * parts[b] for b in range(3))
  return out.flatten(1), sets


class Model(unittest.TestCase):
  def setUp(self):
    torch.manual_seed(2)
    torch.set_num_threads(1)
    self.net = made()

  def run_all(self, ids, flex=False):
    self.net.flex, self.net.kept = flex, []
    with torch.no_grad():
      hidden, taps = self.net(ids, taps=(0, 1))
    return hidden, taps, self.net.kept

  @torch.no_grad()
  def test_forward_is_the_definition(self):
    net, ids = self.net, torch.randint(0, 96, (1, 150))
    hidden, taps, kept = self.run_all(ids)
    x = net.model.embed_tokens(ids)[0]
    for i, layer in enumerate(net.model.layers):
      out, sets = by_definition(net, layer, layer.input_layernorm(x))
      for (t, h), want in sets.items():
        self.assertEqual(kept[i][0, h, t].nonzero().flatten().tolist(), want, (i, t, h))
      x = x + layer.self_attn.o_proj(out)
      y, m = layer.post_attention_layernorm(x), layer.mlp
      x = x + m.down_proj(torch.nn.functional.silu(m.gate_proj(y)) * m.up_proj(y))
      torch.testing.assert_close(taps[0, :, i * 32 : i * 32 + 32], x, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(hidden[0], net.model.norm(x), atol=1e-4, rtol=1e-4)

  def test_flex_attention_is_plain(self):
    ids = torch.randint(0, 96, (2, 256))
    want, got = self.run_all(ids), self.run_all(ids, flex=True)
    torch.testing.assert_close(want[:2], got[:2], atol=1e-4, rtol=1e-4)
    self.assertTrue(all(torch.equal(a, b) for a, b in zip(want[2], got[2])))

  def test_everything_is_trained(self):
    self.net.sample = torch.arange(3, 150, 17)
    hidden, _ = self.net(torch.randint(0, 96, (2, 150)))
    (self.net.logits(hidden).logsumexp(-1).mean() + sum(self.net.guided)).backward()
    self.assertEqual([n for n, p in self.net.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0], [])

  def test_answers_with_caches_are_those_without(self):
    ids = torch.randint(0, 96, (3, 70))
    got = self.net.answer(ids, 40, lambda logits, some: logits.argmax(-1), at_once=140, step=32)
    for i in range(40):
      with torch.no_grad():
        now = self.net.logits(self.net(ids)[0][:, -1:]).argmax(-1)
      self.assertTrue(torch.equal(now[:, 0], got[:, i]), i)
      ids = torch.cat([ids, now], 1)

  def test_equal_scores_go_to_the_lower_block(self):
    n = self.net.n
    scores, t = torch.zeros(1, 1, 1, 12), torch.tensor([11 * n.block])
    scores[..., 7] = 1
    self.assertEqual(nsa_model.best(scores, t, n, 5)[0, 0, 0].nonzero().flatten().tolist(), [0, 1, 7, 10, 11])
    self.assertEqual(nsa_model.best(scores, t, n, 0)[0, 0, 0].nonzero().flatten().tolist(), [0, 10, 11])

  def test_rounding_is_q4_0s(self):
    w = torch.randn(4, 64, requires_grad=True)
    r = nsa_model.q4(w)
    r.sum().backward()
    self.assertTrue(torch.equal(w.grad, torch.ones(4, 64)))
    for a, b in zip(w.detach().reshape(-1, 32).tolist(), r.detach().reshape(-1, 32).tolist()):
      d = max(a, key=abs) / -8
      for x, y in zip(a, b):
        self.assertAlmostEqual(y, (min(15, int(x / d + 8.5)) - 8) * d, delta=abs(d) * 0.04)
    again = nsa_model.q4(r.detach().bfloat16().float())
    torch.testing.assert_close(again, r, atol=1e-6, rtol=0)


if __name__ == "__main__":
  unittest.main()
