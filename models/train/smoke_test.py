"""Each method trains for a few steps on a tiny seeded target, is written, read again and computes the same; the tree's scores are
those of its paths drafted alone; the loss made in chunks is the plain one. Skipped without torch. Not part of ./test:

    python tools/train/smoke_test.py
"""

import contextlib
import io
import json
import os
import sys
import tempfile
import unittest

try:
  import safetensors.torch
  import torch
except ImportError as missing:
  print(f"smoke_test: skipped, {missing}")
  sys.exit(0)

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "../../models/golden")]
import accept  # noqa: E402
import answers  # noqa: E402
import data  # noqa: E402
import generate  # noqa: E402
import layers  # noqa: E402
import layouts  # noqa: E402
import train  # noqa: E402
from drafters import Eagle3, Medusa  # noqa: E402
from guess import Guesser  # noqa: E402
from losses import SoftCe  # noqa: E402
from methods import layer_shape  # noqa: E402
from target import load_decoder  # noqa: E402
from tiny_weights import recipe_weights  # noqa: E402

RECIPES = os.path.join(os.path.dirname(os.path.dirname(HERE)), "models", "tiny", "drafters")


def tiny_target(folder):
  """models/tiny/drafters/qwen3-deep, drawn"""
  os.makedirs(folder)
  with open(os.path.join(RECIPES, "qwen3-deep", "weights.json")) as f:
    recipe = json.load(f)
  weights = {n: torch.from_numpy(x).bfloat16() for n, x in recipe_weights(recipe).items()}
  safetensors.torch.save_file(weights, folder + "/model.safetensors", {"format": "pt"})
  with open(os.path.join(RECIPES, "qwen3-deep", "config.json")) as f, open(folder + "/config.json", "w") as out:
    out.write(f.read())
  return load_decoder(folder)


class Training(unittest.TestCase):
  @classmethod
  def setUpClass(cls):
    torch.manual_seed(1)
    torch.set_num_threads(1)
    cls.scratch = tempfile.TemporaryDirectory()
    cls.work = cls.scratch.name
    cls.target = tiny_target(cls.work + "/target")
    prompts = torch.randint(0, 256, (60, 8))
    ids = torch.cat([prompts, cls.target.greedy(prompts, 40)], 1).tolist()
    long = [(torch.randint(0, 256, (150,)).tolist(), 0, "real") for _ in range(60)]
    data.write(cls.work + "/data", [(row, 8, "greedy") for row in ids] + long)

  @classmethod
  def tearDownClass(cls):
    cls.scratch.cleanup()

  def train(self, method, *more, steps=12):
    out = f"{self.work}/{method}{'-'.join(more)}"
    common = ["--target", self.work + "/target", "--data", self.work + "/data", "--out", out, "--device", "cpu"]
    sizes = ["--row", "160", "--batch-tokens", "768", "--max-steps", str(steps), "--lr", "2e-3"]
    options = train.parse([method, *common, *sizes, *more])
    with contextlib.redirect_stdout(io.StringIO()):
      trainer = train.Trainer(options)
      trainer.run()
      rows = trainer.finish()
    with open(out + "/log.jsonl") as f:
      losses = [json.loads(line)["loss"] for line in f]
    self.assertLess(losses[-1], losses[0], "the loss falls")
    self.assertEqual([(r["context"], r["kind"]) for r in rows], [(8, "greedy")])
    return trainer, layouts.read_drafter(out, self.target)

  def check_same(self, trainer, read):
    """rounded to what is stored, the trained drafter computes what the folder does"""
    ids = torch.randint(0, 256, (2, 24))
    documents = torch.zeros_like(ids)
    hidden, taps = trainer.method.features(ids, documents)
    with torch.no_grad():
      for p in trainer.drafter.parameters():
        p.copy_(p.bfloat16().float())
      both = [trainer.method.states(d, ids, documents, hidden, taps, training=False)[0] for d in (trainer.drafter, read)]
      logits = [states @ trainer.method.heads(d)[0].T for states, d in zip(both, (trainer.drafter, read))]
    torch.testing.assert_close(*logits)

  def test_eagle3(self):
    for layout in ("eagle3", "speculators"):
      trainer, read = self.train("eagle3", "--taps", "0,1,2", "--draft-vocab", "200", "--layout", layout)
      self.check_same(trainer, read)
      self.assertEqual(read.taps, (0, 1, 2))
      self.assertTrue(torch.equal(read.d2t, trainer.drafter.d2t))

  def test_eagle3_goes_on_from_a_folder_with_more_tokens(self):
    first, _ = self.train("eagle3", "--taps", "0,1,2", "--draft-vocab", "200")
    more = ("--taps", "0,1,2", "--draft-vocab", "250", "--init", first.o.out)
    method = train.METHODS["eagle3"](self.target, train.parse(["eagle3", "--target", "", "--data", "", "--out", "", *more]))
    tokens, entries, _ = data.read(self.work + "/data")
    with contextlib.redirect_stdout(io.StringIO()):
      second = method.build(tokens, entries)
    old = layouts.read_drafter(first.o.out, self.target)
    row = {int(t): second.lm_head.weight[i] for i, t in enumerate(second.vocabulary())}
    self.assertEqual(len(row), 250)
    for i, t in enumerate(old.vocabulary()):
      self.assertTrue(torch.equal(row[int(t)], old.lm_head.weight[i]))

  def test_eagle(self):
    self.check_same(*self.train("eagle", steps=30))
    self.check_same(*self.train("eagle", "--optimizer", "muon", "--steps", "2", steps=30))

  def test_mtp(self):
    for layout in ("mtp", "mtp-qwen"):
      self.check_same(*self.train("mtp", "--layout", layout))
      again = load_decoder(f"{self.work}/mtp--layout-{layout}")  # the target is in that folder, whole
      self.assertTrue(torch.equal(again.head, self.target.head))

  def test_medusa(self):
    for more in ((), ("--own-heads",), ("--own-heads", "--layout", "medusa-vllm"), ("--own-heads", "--res-blocks", "2")):
      self.check_same(*self.train("medusa", *more, steps=40))

  def test_draft_model(self):
    self.check_same(*self.train("draft_model", "--draft-hidden", "32", "--draft-heads", "2"))

  def test_training_goes_on_from_its_checkpoint(self):
    trainer, _ = self.train("medusa", "--steps", "2", "--optimizer", "adamw", steps=40)
    trainer.o.max_steps = 42
    with contextlib.redirect_stdout(io.StringIO()):
      second = train.Trainer(trainer.o)
      second.run()
    self.assertEqual((second.step, second.optimizers[0].state[second.params[0]]["step"].item()), (42, 42))


class Parts(unittest.TestCase):
  @classmethod
  def setUpClass(cls):
    cls.scratch = tempfile.TemporaryDirectory()
    cls.target = tiny_target(cls.scratch.name + "/target")

  @classmethod
  def tearDownClass(cls):
    cls.scratch.cleanup()

  def test_a_trees_scores_are_those_of_its_paths_drafted_alone(self):
    torch.manual_seed(3)
    drafter = Eagle3(layer_shape(self.target.s), (0, 1, 2))
    ids = torch.randint(0, 256, (12,))
    with torch.inference_mode():
      taps = self.target(ids[None], taps=drafter.taps)[1][0]
      made, kept = Guesser(drafter, self.target, ids.tolist(), taps[:11]).tree(8, 3, 2)
      for i in kept:
        path = [i]
        while made[path[0]][1] >= 0:
          path.insert(0, made[path[0]][1])
        guess, score = Guesser(drafter, self.target, ids.tolist(), taps[:11]), 0.0
        state = guess.states[:, -1:]
        for depth, node in enumerate(path):
          token = torch.tensor([made[node][0]])
          score += float(guess.logits(state[0, 0]).log_softmax(-1)[token])
          rows = torch.ones(1, guess.cache.length + 1, dtype=torch.bool)
          position = torch.tensor([12 + depth])
          state = guess._rows(token, drafter.recycle(state), position, layers.Mask.given(rows))
        self.assertAlmostEqual(score, made[i][2], places=4)

  def test_the_loss_in_chunks_is_the_plain_one(self):
    torch.manual_seed(4)
    states = torch.randn(2, 10, 8, requires_grad=True)
    head, teacher, teacher_head = torch.randn(6, 8, requires_grad=True), torch.randn(10, 8), torch.randn(9, 8)
    ids, weights, labels = torch.tensor([0, 2, 3, 5, 7, 8]), torch.rand(2, 10), torch.zeros(10, dtype=torch.long)
    loss, _ = SoftCe(chunk_rows=4)(states, [head], teacher, teacher_head, labels, weights, ids)
    got = torch.autograd.grad(loss, (states, head))
    logits = teacher @ teacher_head.T
    inside = torch.isin(logits.argmax(-1), ids)
    p = logits[:, ids].softmax(-1)
    plain = -(weights * inside * (p * (states @ head.T).log_softmax(-1)).sum(-1)).sum()
    want = torch.autograd.grad(plain, (states, head))
    torch.testing.assert_close(loss, plain)
    for a, b in zip(got, want):
      torch.testing.assert_close(a, b)

  def test_training_rehearses_inference(self):
    """the states of the rehearsal's steps are those of a chain that guesses the given tokens"""
    torch.manual_seed(5)
    options = train.parse(["eagle3", "--target", "", "--data", "", "--out", "", "--taps", "0,1,2", "--steps", "3"])
    method = train.METHODS["eagle3"](self.target, options)
    drafter = Eagle3(layer_shape(self.target.s), (0, 1, 2))
    ids, n = torch.randint(0, 256, (1, 16)), 9
    documents = torch.zeros_like(ids)
    hidden, taps = method.features(ids, documents)
    with torch.no_grad():
      states, _ = method.states(drafter, ids, documents, hidden, taps, training=False)
      guess = Guesser(drafter, self.target, ids[0, : n + 1].tolist(), taps[0, :n])
      state = guess.states[:, -1:]
      for s in range(3):
        torch.testing.assert_close(states[s, n + s], drafter.readout(state)[0, 0])
        rows = torch.ones(1, guess.cache.length + 1, dtype=torch.bool)
        position = torch.tensor([n + 1 + s])
        state = guess._rows(ids[0, n + 1 + s : n + 2 + s], drafter.recycle(state), position, layers.Mask.given(rows))

  def test_a_target_that_drafts_for_itself_is_always_right(self):
    method = train.METHODS["draft_model"](
        self.target, train.parse(["draft_model", "--target", "", "--data", "", "--out", ""])
    )
    prompts = torch.randint(0, 256, (2, 120))
    tokens = torch.cat([prompts, self.target.greedy(prompts, 30)], 1).flatten().numpy()
    rows = accept.report(method, self.target, tokens, [[0, 120, 150, "held a"], [150, 120, 150, "held b"]], torch.device("cpu"))
    self.assertEqual([(r["context"], r["kind"]) for r in rows], [(128, "a"), (128, "b")])
    self.assertEqual([r["acceptance"] for r in rows], [[1.0] * accept.DEPTH] * 2)

  def test_answers_in_batches_are_the_targets_own(self):
    torch.manual_seed(6)
    prompts = torch.randint(0, 256, (5, 12))
    got = answers.answer(self.target, prompts, 9, [0.0] * 5, torch.Generator())
    self.assertTrue(torch.equal(got, self.target.greedy(prompts, 9)))
    drawn = answers.answer(self.target, prompts, 9, [0.0, 1.0] + [0.0] * 3, torch.Generator().manual_seed(1))
    self.assertEqual([i for i in range(5) if not torch.equal(drawn[i], got[i])], [1])

  def test_answers_are_cut_where_they_loop(self):
    straight = list(range(40))
    self.assertEqual(generate.before_loops(straight, 0.3), straight)
    cut = generate.before_loops(straight + [1, 2] * 50, 0.3)
    self.assertEqual(cut[:40], straight)
    self.assertLess(len(cut), 65)
    self.assertLess(len(generate.before_loops([7] * 100, 0.3)), 8)

  def test_medusa_heads_begin_as_the_output_matrix(self):
    drafter = Medusa(8, 20, 2, output="target")
    x = torch.randn(3, 8)
    torch.testing.assert_close(drafter.states(x)[1], x)


if __name__ == "__main__":
  unittest.main()
