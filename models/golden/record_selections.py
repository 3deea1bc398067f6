r"""Records queries, keys and the sets that the PyTorch oracle selects from them, for the C++ test that a policy's selected sets
equal the oracle's, except at ties. Writes OUT/rounds.json and OUT/rounds.bin; models/tiny/README.md gives the layout.

    python models/golden/record_selections.py --oracle vegas_ref.py --model models/wren-34m --prompts long_prompts.jsonl \
        --out models/golden/selection

Made with (pip): torch==2.15.0 safetensors==0.8.0 tokenizers==0.23.3
The oracle decodes a short prompt in fp32 and speculates as the default policy does; the queries, keys and draft log-sum-exps of
its prompt selection and first verify rounds are kept. Keys are then rounded to BF16, and the oracle's own selection code runs
again on scores computed in fp32 from the rounded keys: what is recorded is what those very numbers select.
"""
import argparse
import hashlib
import importlib.util
import json
import types

import torch

GAMMA, SEED, TEMPERATURE = 7, 1, 0.8

# name in the record: fields of the oracle's Policy
POLICIES = {
    "logit first_last shared": dict(metric="logit", rows="first_last"),
    "logit all shared": dict(metric="logit", rows="all"),
    "logit first_last per_kv": dict(metric="logit", rows="first_last", per_kv=True),
    "weight first_last shared": dict(metric="weight", rows="first_last"),
    "weight all shared": dict(metric="weight", rows="all"),
    "weight all max per_kv spread8": dict(metric="weight", rows="all", combine="max", per_kv=True, spread=8),
    "dweight all max shared spread16": dict(metric="dweight", rows="all", combine="max", spread=16),
    "dweight all max per_kv spread16": dict(metric="dweight", rows="all", combine="max", per_kv=True, spread=16),
    "last_accepted shared": dict(name="last_accepted", metric="weight", rows="last"),
}
RUN = "dweight all max per_kv spread16"  # the policy under which the recorded run drafts
BUDGETS = [(0.07, 16), (0.02, 4)]  # kept ratio, least number of positions


def load_oracle(path):
  spec = importlib.util.spec_from_file_location("oracle", path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def listen(oracle, model, passes):
  """make the oracle's own run fill `passes`: one dict per selection with q, k, lse by layer, p and acc"""
  index = {id(l): i for i, l in enumerate(model.ly)}
  latest = {}
  plain_qkv = model.qkv

  def qkv(layer, x, pos):
    q, k, v = plain_qkv(layer, x, pos)
    latest[index[id(layer)]] = (q[0].clone(), k[0].clone(), int(pos[0, 0]))
    return q, k, v

  class Listening(oracle.Sparse):
    def select(self, p, acc):
      lse = [torch.stack(l, 0)[:, 0].flatten(1).clone() if l else None for l in self.lse]  # [gamma][heads]
      passes.append(dict(p=int(p[0]), acc=int(acc[0]), lse=lse, rows=dict(latest), cache=[k[0].clone() for k in self.c.k]))
      super().select(p, acc)

  model.qkv, oracle.Sparse = qkv, Listening


def select_again(sparse, policy, rows, keys, lse, p, acc, dtype):
  """the oracle's selection of one layer from recorded tensors -> (bool [sets][positions], scores [sets][positions], k);
  rows [R][H][D], keys [p + R][K][D], lse [gamma][H] or None"""
  R, H, D = rows.shape
  S, K, _ = keys.shape
  shape = types.SimpleNamespace(L=1, K=K, H=H, D=D, device="cpu")
  sp = sparse(shape, policy, types.SimpleNamespace(S=S, k=None))
  q = rows.to(dtype).view(1, R, K, H // K, D).permute(0, 2, 3, 1, 4)
  sc = (q @ keys.to(dtype).permute(1, 2, 0)[None, :, None]) * D**-0.5  # [1][K][G][R][S]
  seen = torch.arange(S)[None] <= p + torch.arange(R)[:, None]
  weights = sc.masked_fill(~seen, -torch.inf).softmax(-1)
  if lse is not None and policy.metric == "dweight":
    sp.lse[0] = [l.to(dtype).view(1, K, H // K) for l in lse]
  sp.collector()(0, sc, weights)
  scores, pooled = [], sp.pooled
  sp.pooled = lambda *a: scores.append(pooled(*a)) or scores[-1]
  sp.select(torch.tensor([p]), torch.tensor([acc]))
  return sp.sel[0][0], scores[0][0], int(sp.k[0])


class Blob:
  """arrays one after another in a file; `put` returns what the JSON says about one"""

  def __init__(self):
    self.data = bytearray()

  def put(self, t):
    kind = {torch.float32: "f32", torch.bfloat16: "bf16"}[t.dtype]
    raw = t.contiguous().view(torch.int16 if kind == "bf16" else torch.int32).numpy().tobytes()
    where = {"offset": len(self.data), "dtype": kind, "shape": list(t.shape)}
    self.data += raw
    return where


def main():
  ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  ap.add_argument("--oracle", required=True, help="the oracle's source file")
  ap.add_argument("--model", required=True)
  ap.add_argument("--prompts", required=True, help="jsonl with id and text")
  ap.add_argument("--prompt", default=None, help="id of the prompt (default: the first of kind edit)")
  ap.add_argument("--length", type=int, default=256, help="tokens kept, from the prompt's end")
  ap.add_argument("--layers", default="5")
  ap.add_argument("--rounds", type=int, default=2)
  ap.add_argument("--out", required=True)
  args = ap.parse_args()
  from tokenizers import Tokenizer

  oracle = load_oracle(args.oracle)
  model = oracle.Model.load(args.model)
  prompts = [json.loads(line) for line in open(args.prompts)]
  prompt = next(p for p in prompts if (p["id"] == args.prompt if args.prompt else p["kind"] == "edit"))
  ids = Tokenizer.from_file(args.model + "/tokenizer.json").encode(prompt["text"], add_special_tokens=False).ids[-args.length :]

  passes, sparse = [], oracle.Sparse
  listen(oracle, model, passes)
  run = oracle.Policy(ratio=0.07, min_tokens=16, **POLICIES[RUN])
  sampling = oracle.Sampling(TEMPERATURE, 0, 1.0, SEED)
  oracle.speculative(model, torch.tensor([ids]), args.rounds * (GAMMA + 1), sampling, run, GAMMA, "match")
  passes = passes[: args.rounds + 1]
  layers = [int(x) for x in args.layers.split(",")]
  end = passes[-1]["p"]

  blob = Blob()
  committed = {l: passes[-1]["cache"][l][:, :end].transpose(0, 1).to(torch.bfloat16) for l in layers}  # [end][K][D]
  out = {
      "model": "wren-34m", "prompt": prompt["id"], "prompt_tokens": len(ids), "ids": ids,
      "oracle_sha256": hashlib.sha256(open(args.oracle, "rb").read()).hexdigest(), "torch": torch.__version__,
      "heads": model.H, "kv_heads": model.K, "head_dim": model.D, "gamma": GAMMA,
      "run": {"policy": RUN, "ratio": 0.07, "min_tokens": 16, "rule": "match", "temperature": TEMPERATURE, "seed": SEED},
      "keys": [{"layer": l, **blob.put(committed[l])} for l in layers],
      "passes": [],
  }  # fmt: skip
  closest, flips, count = 1.0, 0, 0
  for t in passes:
    entry = {"kind": "prompt" if t["lse"][0] is None else "verify", "p": t["p"], "accepted_row": t["acc"], "layers": []}
    for l in layers:
      q, k, first = t["rows"][l]
      assert first == t["p"]
      own = k.to(torch.bfloat16)
      keys = torch.cat([committed[l][: t["p"]], own]).float()
      layer = {"layer": l, "queries": blob.put(q), "row_keys": blob.put(own), "draft_lse": None, "selections": []}
      if t["lse"][l] is not None:
        layer["draft_lse"] = blob.put(t["lse"][l])
      for name, fields in POLICIES.items():
        for ratio, least in BUDGETS:
          policy = oracle.Policy(ratio=ratio, min_tokens=least, **fields)
          kept, score, budget = select_again(sparse, policy, q, keys, t["lse"][l], t["p"], t["acc"], torch.float32)
          exact, _, _ = select_again(sparse, policy, q, keys, t["lse"][l], t["p"], t["acc"], torch.float64)
          sets = []
          for c in range(kept.shape[0]):
            chosen = kept[c].nonzero()[:, 0].tolist()
            low, high = float(score[c][kept[c]].min()), float(score[c][: t["p"]][~kept[c][: t["p"]]].max())
            assert len(chosen) == budget and low >= high
            sets.append({"kept": chosen, "last_kept": float(f"{low:.9g}"), "first_dropped": float(f"{high:.9g}")})
            closest = min(closest, (low - high) / max(abs(low), abs(high)))
            flips += int((kept[c] != exact[c]).any())
            count += 1
          layer["selections"].append({
              "name": name, "metric": policy.metric, "rows": policy.rows, "combine": policy.combine,
              "spread": policy.spread, "per_kv": policy.per_kv, "ratio": ratio, "min_tokens": least,
              "k": budget, "sets": sets,
          })  # fmt: skip
      entry["layers"].append(layer)
    out["passes"].append(entry)
  with open(args.out + "/rounds.bin", "wb") as f:
    f.write(blob.data)
  with open(args.out + "/rounds.json", "w") as f:
    json.dump(out, f, separators=(",", ":"))
    f.write("\n")
  print("passes", [(e["kind"], e["p"], e["accepted_row"]) for e in out["passes"]], len(blob.data), "bytes")
  print(f"{count} sets; closest cut {closest:.2e} relative; {flips} differ in fp64")


if __name__ == "__main__":
  main()
