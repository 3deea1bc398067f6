"""Makes models/tiny/drafters (tiny seeded random drafters in the layouts in which they are published, and their targets) and
models/golden/drafters.json (what tools/train's plain PyTorch computes for them: rows, chains, trees). No weights are kept but
the recipes (tiny_weights.py). models/tiny/README.md says what the files mean.

    python models/golden/make_drafter_golden.py --out models

Made with (pip): torch==2.15.0 safetensors==0.8.0 numpy==2.4.6
Computed on the CPU in fp32 from the stored weights. The target's class is first held against what transformers computed.
"""

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
from importlib.metadata import version

import numpy as np
import safetensors.torch
import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tools/train"))
from drafters import Medusa  # noqa: E402
from guess import Guesser  # noqa: E402
from layers import Shape  # noqa: E402
from layouts import llama_config, read_drafter  # noqa: E402
from target import Decoder, load_decoder  # noqa: E402
from tiny_weights import make_recipe, recipe_weights, write_recipe  # noqa: E402

VOCAB, DRAFT_VOCAB, FIRST_SPECIAL = 260, 160, 257
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FFN = 64, 4, 2, 16, 64
PROMPT, NEW, CHAIN, LATER = 20, 12, 5, 6  # tokens: of the prompt, after it, of a chain, committed before the second chain
MARGIN = 0.02  # of every choice that is recorded, in logits or log-probabilities: no rounding can turn it
TREE = dict(total=12, depth=4, top_k=3)
SHAPE = Shape(HIDDEN, 1, HEADS, KV_HEADS, HEAD_DIM, FFN, VOCAB, 1e-6, 10000.0, context=256)


def matrix(rows, cols, gain):
  return (rows, cols), 0.0, gain / math.sqrt(cols)


def norm(width, mean=1.0):
  return (width,), mean, 0.2


def block(prefix, width_in=HIDDEN, gated=False, qk_norm=False):
  """the tensors of one decoder layer, with spreads that keep attention far from uniform"""
  q, kv, a, m = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM, prefix + "self_attn.", prefix + "mlp."
  t = {
      prefix + "input_layernorm.weight": norm(HIDDEN), prefix + "post_attention_layernorm.weight": norm(HIDDEN),
      a + "q_proj.weight": matrix(2 * q if gated else q, width_in, 1.5), a + "k_proj.weight": matrix(kv, width_in, 1.5),
      a + "v_proj.weight": matrix(kv, width_in, 1.0), a + "o_proj.weight": matrix(HIDDEN, q, 1.0),
      m + "gate_proj.weight": matrix(FFN, HIDDEN, 1.5), m + "up_proj.weight": matrix(FFN, HIDDEN, 1.5),
      m + "down_proj.weight": matrix(HIDDEN, FFN, 1.5),
  }  # fmt: skip
  if qk_norm:
    t |= {a + "q_norm.weight": norm(HEAD_DIM, 1.4), a + "k_norm.weight": norm(HEAD_DIM, 1.4)}
  return t


def decoder(layers, qk_norm):
  t = {"model.embed_tokens.weight": matrix(VOCAB, HIDDEN, 2.0), "model.norm.weight": norm(HIDDEN)}
  for i in range(layers):
    t |= block(f"model.layers.{i}.", qk_norm=qk_norm)
  return t


def qwen3(layers, **more):
  c = llama_config(SHAPE, architectures=["Qwen3ForCausalLM"], model_type="qwen3", num_hidden_layers=layers, **more)
  return c | {"tie_word_embeddings": True, "attention_bias": False, "bos_token_id": 257, "eos_token_id": 257}


def ids_of_draft():  # draft id j is target id floor(13 j / 8): kept as differences, as truth values, or plainly
  p, q = VOCAB // 20, DRAFT_VOCAB // 20
  return {"d2t": ((DRAFT_VOCAB,), p - q, q, "I64"), "t2d": ((VOCAB,), q, p, "BOOL")}, ((DRAFT_VOCAB,), p, q, "I64")


def eagle3(layer):
  own = block(layer, 2 * HIDDEN)  # tokens speak through its attention alone: sharp and loud
  for name, rows, gain in (("q", HEADS * HEAD_DIM, 3.0), ("k", KV_HEADS * HEAD_DIM, 3.0)):
    own[f"{layer}self_attn.{name}_proj.weight"] = matrix(rows, 2 * HIDDEN, gain)
  own[layer + "self_attn.o_proj.weight"] = matrix(HIDDEN, HEADS * HEAD_DIM, 3.0)
  return own | ids_of_draft()[0] | {
      "fc.weight": matrix(HIDDEN, 3 * HIDDEN, 0.2), layer + "hidden_norm.weight": norm(HIDDEN), "norm.weight": norm(HIDDEN),
      "lm_head.weight": matrix(DRAFT_VOCAB, HIDDEN, 2.0),
  }  # fmt: skip


def eagle1():
  t = block("layers.0.") | {"fc.weight": matrix(HIDDEN, 2 * HIDDEN, 1.5), "fc.bias": ((HIDDEN,), 0.0, 0.5)}
  del t["layers.0.input_layernorm.weight"]
  return t


def medusa():
  t = {}
  for h in range(2):
    t |= {f"{h}.0.linear.weight": matrix(HIDDEN, HIDDEN, 1.5), f"{h}.0.linear.bias": ((HIDDEN,), 0.0, 0.5)}
    t[f"{h}.1.weight"] = matrix(VOCAB, HIDDEN, 2.0)
  return t


def medusa_vllm():
  t = {f"blocks.{h}.layers.0.weight": matrix(HIDDEN, HIDDEN, 1.5) for h in range(2)}
  return t | {"lm_head.weight": matrix(DRAFT_VOCAB, HIDDEN, 2.0), "token_map": ids_of_draft()[1]}


def mtp(layer, fc, norm_e, norm_h, last, gated):
  own = {fc: matrix(HIDDEN, 2 * HIDDEN, 1.5), norm_e: norm(HIDDEN), norm_h: norm(HIDDEN), last: norm(HIDDEN)}
  return decoder(2, True) | block(layer, gated=gated, qk_norm=True) | {f"{n}.weight": t for n, t in own.items()}


SPECULATORS = {
    "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "draft_vocab_size": DRAFT_VOCAB,
    "norm_before_residual": True, "eagle_aux_hidden_state_layer_ids": [1, 2, 3], "target_hidden_size": None,
    "transformer_layer_config": llama_config(SHAPE),
    "speculators_config": {"algorithm": "eagle3", "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
    "verifier": {"name_or_path": "qwen3-deep"}},
}  # fmt: skip
EAGLE3 = llama_config(SHAPE, architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=DRAFT_VOCAB, target_hidden_size=HIDDEN)
EAGLE3["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2], "use_aux_hidden_state": True}
MEDUSA_VLLM = {"architectures": ["MedusaModel"], "model_type": "medusa", "hidden_size": HIDDEN, "num_heads": 2,
    "num_hidden_layers": 1, "vocab_size": VOCAB, "truncated_vocab_size": DRAFT_VOCAB, "medusa_fc_bias": False,
    "original_lm_head": True, "torch_dtype": "bfloat16"}  # fmt: skip
OWN = "model.layers.2."

# name: (config, tensors, its target, or None: it lies in its target's folder, whether it needs a tokenizer, name of the file)
MODEL = "model.safetensors"
DEEP = "qwen3-deep"
FOLDERS = {
    DEEP: (qwen3(4), decoder(4, True), DEEP, True, MODEL),
    "eagle3": (EAGLE3, eagle3("midlayer."), DEEP, False, MODEL),
    "eagle3-speculators": (SPECULATORS, eagle3("layers.0.") | {"embed_tokens.weight": matrix(VOCAB, HIDDEN, 2.0)}, DEEP, False,
    MODEL),
    "eagle1": (llama_config(SHAPE, bias=True), eagle1(), DEEP, False, MODEL),
    "medusa": ({"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": DEEP}, medusa(), DEEP, False,
    "medusa_lm_head.safetensors"),
    "medusa-vllm": (MEDUSA_VLLM, medusa_vllm(), DEEP, False, MODEL),
    "mtp-deepseek": (qwen3(2, num_nextn_predict_layers=1),
    mtp(OWN, OWN + "eh_proj", OWN + "enorm", OWN + "hnorm", OWN + "shared_head.norm", False), None, True, MODEL),
    "mtp-qwen": (qwen3(2, mtp_num_hidden_layers=1),
    mtp("mtp.layers.0.", "mtp.fc", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm", True),
    None, True, MODEL),
    "draft-llama": (llama_config(SHAPE, tie_word_embeddings=True), decoder(1, False), DEEP, True, MODEL),
}  # fmt: skip


# A target that stutters: layers whisper over a tied embedding, so that it mostly says its last token again, and not always. Its
# drafters repeat the token they are fed, or the one before, so that some guesses are kept and some are dropped. No goldens.
ECHO = "echo"


def quiet(tensors, attention, mlp):
  """with output projections of these gains: of a drafter's, just enough that its guesses depend on what it attends to"""
  for name, gain in (("o_proj.weight", attention), ("down_proj.weight", mlp)):
    tensors = tensors | {n: matrix(*t[0], gain) for n, t in tensors.items() if n.endswith(name)}
  return tensors


def echo_target():
  own, (fc, deviation) = "model.layers.3.", (matrix(HIDDEN, 2 * HIDDEN, 0.1)[0], 0.1 / math.sqrt(2 * HIDDEN))
  t = quiet(decoder(3, True), 0.42, 0.42) | quiet(block(own, qk_norm=True), 0.8, 0.2)
  t |= {own + n + ".weight": norm(HIDDEN) for n in ("enorm", "hnorm", "shared_head.norm")}
  return t | {own + "eh_proj.weight": (fc, 0.0, deviation, "DIAG", 64)}


def echo_eagle1():
  t = quiet(eagle1(), 1.6, 0.1)
  del t["fc.bias"]
  for name, gain in (("q", 6.0), ("k", 6.0), ("v", 2.0)):  # they read the stream without a norm, and it is faint
    name = f"layers.0.self_attn.{name}_proj.weight"
    t[name] = matrix(*t[name][0], gain)
  return t | {"fc.weight": (*matrix(HIDDEN, 2 * HIDDEN, 0.02), "DIAG", 256)}


def echo_eagle3():
  t = quiet(eagle3("midlayer."), 0.5, 0.15) | {"d2t": ((VOCAB,), 0, 1, "I64"), "t2d": ((VOCAB,), 1, 1, "BOOL")}
  t["fc.weight"] = (*matrix(HIDDEN, 3 * HIDDEN, 0.02), "DIAG", 256)
  return t | {"lm_head.weight": (*matrix(VOCAB, HIDDEN, 2.0), "FROM", 0)}


def echo_medusa():
  t = {n: (*x, "FROM", 0) for n, x in medusa().items() if n.endswith(".1.weight")}
  return t | {
      f"{h}.0.linear.{n}": x
      for h in range(2)
      for n, x in (("weight", matrix(HIDDEN, HIDDEN, 0.4)), ("bias", norm(HIDDEN, 0.0)))
  }


ECHOES = {
    ECHO: (qwen3(3, num_nextn_predict_layers=1), echo_target(), None, True, MODEL),
    "echo-eagle1": (llama_config(SHAPE, bias=False), echo_eagle1(), ECHO, False, MODEL),
    "echo-eagle3": (EAGLE3 | {"draft_vocab_size": VOCAB}, echo_eagle3(), ECHO, False, MODEL),
    "echo-medusa": ({"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": ECHO}, echo_medusa(), ECHO, False,
    "medusa_lm_head.safetensors"),
}  # fmt: skip
ECHO_SEED = 2  # of all four: their matrices are the target's embedding again
FOLDERS |= ECHOES


# ---------------------------------------------------------------------------------------------------- what is recorded
def digits(values, n=6):
  return [float(f"{v:.{n}g}") for v in values]


def row(logits, drafter, **where):
  """enough of a row of logits (of the draft vocabulary) to tell it from any other; the first choice must be clear"""
  best = logits.topk(5)
  clear.append(float(best.values[0] - best.values[1]))
  ids = drafter.target_ids(best.indices) if hasattr(drafter, "target_ids") else best.indices
  return where | {
      "every": digits(logits[:: len(logits) // 20].tolist(), 5), "ids": ids.tolist(),
      "logits": digits(best.values.tolist(), 6), "logsumexp": digits([logits.logsumexp(-1).item()], 6)[0],
  }  # fmt: skip


clear = []  # margins met since it was last emptied


def features_of(drafter, target, ids):
  hidden, taps = target(torch.tensor([ids]), taps=drafter.taps)
  return (hidden if taps is None else taps)[0]


def record_medusa(drafter, target, ids, committed):
  logits = drafter.logits(target, features_of(drafter, target, ids))  # [heads][positions][vocabulary]
  pick = lambda j: [row(head[j - 1], drafter, head=h) for h, head in enumerate(logits)]
  rows = [{"pos": j, "heads": pick(j)} for j in (1, PROMPT // 2, PROMPT)]
  best = {n: logits[:, n - 1].topk(2) for n in committed}
  clear.extend(float((b.values[:, 0] - b.values[:, 1]).min()) for b in best.values())
  chains = [{"committed": n, "tokens": drafter.target_ids(best[n].indices[:, 0]).tolist()} for n in committed]
  return {"rows": rows, "chains": chains}


def record_draft_model(drafter, ids, committed):
  logits = drafter.logits(drafter(torch.tensor([ids]))[0])[0]
  chains = []
  for n in committed:
    tokens, steps = ids[: n + 1], []
    for _ in range(CHAIN):
      z = drafter.logits(drafter(torch.tensor([tokens]))[0])[0, -1]
      steps.append(row(z, drafter))
      tokens = tokens + [int(z.argmax())]
    chains.append({"committed": n, "tokens": tokens[n + 1 :], "steps": steps if n == PROMPT else []})
  return {"rows": [row(logits[j], drafter, pos=j) for j in (0, PROMPT // 2, PROMPT)], "chains": chains}


def record_recurrent(drafter, target, ids, committed, with_tree, variants):
  features = features_of(drafter, target, ids)
  guess = Guesser(drafter, target, ids, features)
  rows = [row(guess.logits(guess.states[0, j - 1]), drafter, pos=j) for j in (1, PROMPT // 2, PROMPT)]
  out = {"rows": rows, "chains": []}
  for n in committed:
    guess = Guesser(drafter, target, ids[: n + 1], features[:n])
    tokens, logits = guess.chain(CHAIN)
    steps = [row(z, drafter) for z in logits]
    out["chains"].append({"committed": n, "tokens": tokens, "steps": steps if n == PROMPT else []})
  if with_tree:
    guess = Guesser(drafter, target, ids[: PROMPT + 1], features[:PROMPT])
    made, kept = guess.tree(**TREE)
    clear.append(guess.margin)
    tokens, parents, scores = zip(*made)
    out["tree"] = TREE | {"committed": PROMPT, "tokens": tokens, "parents": parents, "scores": digits(scores), "kept": kept}
  if variants:
    out["norms"] = []
    for feed in ("post", "pre"):
      for recycle in ("post", "pre"):
        drafter.feed_norm, drafter.recycle_norm = feed, recycle
        drafter.taps = (target.s.layers - 1,) if feed == "pre" else ()
        features = features_of(drafter, target, ids)
        tokens, logits = Guesser(drafter, target, ids[: PROMPT + 1], features[:PROMPT]).chain(3)
        steps = [row(z, drafter) for z in logits]
        last = {k: steps[-1][k] for k in ("ids", "logits", "logsumexp")}
        out["norms"].append({"feed_norm": feed, "recycle_norm": recycle, "tokens": tokens, "last": last})
  return out


def record(name, folder, target, context):
  drafter, committed = read_drafter(folder, target), (PROMPT, PROMPT + LATER)
  ids = context["ids"] + context["greedy"]
  if isinstance(drafter, Medusa):
    return record_medusa(drafter, target, ids, committed)
  if isinstance(drafter, Decoder):
    return record_draft_model(drafter, ids, committed)
  return record_recurrent(drafter, target, ids, committed, name.startswith("eagle"), name.startswith("mtp"))


def varied(got):
  """whether guesses depend on what they follow"""
  chains = all(len(set(c["tokens"])) + 1 >= len(c["tokens"]) for c in got["chains"])
  return chains and len(set(got.get("tree", {"tokens": range(12)})["tokens"])) >= 12


def context_of(target):
  """the prompt and what the target says after it; None where that makes a poor test"""
  ids = np.random.default_rng(1).integers(0, 256, PROMPT).tolist()
  greedy = target.greedy(torch.tensor([ids]), NEW)[0].tolist()
  logits = target.logits(target(torch.tensor([ids + greedy]))[0])[0, PROMPT - 1 : -1].topk(2).values
  if float((logits[:, 0] - logits[:, 1]).min()) < MARGIN or max(greedy) >= FIRST_SPECIAL or len(set(greedy)) < 8:
    return None
  return {"ids": ids, "greedy": greedy}


# ---------------------------------------------------------------------------------------------------- the parts together
def draw(name, seed, folder):
  """the folder as the build completes it, and its recipe"""
  config, tensors, _, tokenizer, file = FOLDERS[name]
  recipe = make_recipe(tensors, "BF16", 1, seed) | ({"rest": "../folders/qwen3-tied"} if tokenizer else {})
  recipe["files"][0]["name"] = file
  weights = {n: torch.from_numpy(x) for n, x in recipe_weights(recipe).items()}
  weights = {n: t.bfloat16() if t.is_floating_point() else t for n, t in weights.items()}
  shutil.rmtree(folder, ignore_errors=True)
  os.makedirs(folder)
  with open(folder + "/config.json", "w") as f:
    f.write(json.dumps(config, separators=(",", ":")).replace(',"', ',\n"') + "\n")
  safetensors.torch.save_file(weights, f"{folder}/{file}", {"format": "pt"})
  return recipe


def keep(out, name, recipe, folder):
  kept = f"{out}/tiny/drafters/{name}"
  shutil.rmtree(kept, ignore_errors=True)
  shutil.copytree(folder, kept, ignore=shutil.ignore_patterns("*.safetensors"))
  write_recipe(kept + "/weights.json", recipe, folder)


def make(name, out, contexts, work):
  """draws seeds until every recorded choice is clear; keeps the recipe"""
  own_target = FOLDERS[name][2] in (None, name)
  target = None if own_target else load_decoder(f"{work}/{FOLDERS[name][2]}")
  for seed in range(1, 2000):
    folder = f"{work}/{name}"
    recipe = draw(name, seed, folder)
    if own_target:
      target = load_decoder(folder)
      contexts[name] = context_of(target)
      if contexts[name] is None:
        continue
    clear.clear()
    got = None if name == DEEP else record(name, folder, target, contexts[name if own_target else FOLDERS[name][2]])
    if got is None or (min(clear) >= MARGIN and varied(got)):
      break
  else:
    raise RuntimeError(f"{name}: no seed gives clear choices")
  keep(out, name, recipe, folder)
  print(f"{name}: seed {seed}, least margin {min(clear, default=0):.3f}")
  return got and {"name": name, "target": name if own_target else FOLDERS[name][2]} | got


def kept_share(drafter, target, ids, start):
  """share of first guesses that the target says, over ids from `start` on"""
  features = features_of(drafter, target, ids)
  if isinstance(drafter, Medusa):
    guesses = drafter.logits(target, features)[0, :-1].argmax(-1)
  else:
    guesses = Guesser(drafter, target, ids, features)
    guesses = drafter.target_ids(guesses.logits(guesses.states[0]).argmax(-1))
  return float((guesses[start:-1] == torch.tensor(ids[start + 2 :])).float().mean())


def make_echo(name, out, work):
  folder = f"{work}/{name}"
  recipe = draw(name, ECHO_SEED, folder)
  target = load_decoder(f"{work}/{ECHO}")
  drafter, shares = read_drafter(folder, target), []
  for seed in range(6):
    ids = np.random.default_rng(seed).integers(0, 256, PROMPT).tolist()
    ids += target.greedy(torch.tensor([ids]), 100)[0].tolist()
    shares.append(kept_share(drafter, target, ids, PROMPT))
  print(f"{name}: kept {' '.join(f'{x:.2f}' for x in shares)}")
  assert all(0.15 < x < 0.95 for x in shares), name
  keep(out, name, recipe, folder)


def check_target(out):
  """this oracle's Decoder computes what transformers does"""
  with tempfile.TemporaryDirectory() as folder:
    for name in ("qwen3-tied", "llama"):
      config = json.load(open(f"{out}/tiny/folders/{name}/config.json"))
      weights = recipe_weights(json.load(open(f"{out}/tiny/folders/{name}/weights.json")))
      json.dump(config, open(folder + "/config.json", "w"))
      tensors = {n: torch.from_numpy(x).bfloat16().float() for n, x in weights.items()}
      safetensors.torch.save_file(tensors, folder + "/model.safetensors")
      model, case = load_decoder(folder), json.load(open(f"{out}/golden/{name}.json"))["cases"][0]
      want = torch.tensor(case["logits"][-1]["values"])
      got = model.logits(model(torch.tensor([case["ids"]]))[0])[0, case["logits"][-1]["pos"]]
      assert float((got - want).abs().max()) < 1e-4, name


def main():
  ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  ap.add_argument("--out", default="models", help="folder that gets tiny/drafters/ and golden/drafters.json")
  args = ap.parse_args()
  torch.set_num_threads(1)
  contexts, drafters = {}, []
  with torch.inference_mode(), tempfile.TemporaryDirectory() as work:
    check_target(args.out)
    for name in ECHOES:
      make_echo(name, args.out, work)
    for name in (n for n in FOLDERS if n not in ECHOES):
      drafters.append(make(name, args.out, contexts, work))
  lines = ",\n".join(json.dumps(d, separators=(",", ":")) for d in drafters if d)
  versions = {package: version(package) for package in ("torch", "safetensors", "numpy")}
  with open(f"{args.out}/golden/drafters.json", "w") as f:
    head = json.dumps({"computed": "float32, CPU", "versions": versions, "targets": contexts}, separators=(",", ":"))
    f.write(f'{head[:-1]},"drafters":[\n{lines}]}}\n')


if __name__ == "__main__":
  main()
