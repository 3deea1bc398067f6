"""Learned drafters: what hunch info and hunch quantize make of them, and every way to hand in a wrong one."""
import json
import math
import os
import struct

from program import expect

CONFIG = dict(architectures=["LlamaForCausalLMEagle3"], model_type="llama", hidden_size=32, intermediate_size=64, num_hidden_layers=1,
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=40, draft_vocab_size=20, max_position_embeddings=512,
    eagle_config=dict(eagle_aux_hidden_state_layer_ids=[1, 3, 6]))


def safetensors(tensors, zero=False):
  """A file of {name: (kind, shape)}, kinds as struct has them; values are small whole numbers or 0."""
  header, data = {}, bytearray()
  for name, (kind, shape) in tensors.items():
    count = math.prod(shape)
    begin = len(data)
    data += bytes(struct.calcsize(f"<{count}{kind}")) if zero else struct.pack(f"<{count}{kind}", *(i % 7 for i in range(count)))
    header[name] = dict(dtype=dict(f="F32", q="I64")[kind], shape=shape, data_offsets=[begin, len(data)])
  text = json.dumps(header).encode()
  return struct.pack("<Q", len(text)) + text + data


def zeros(shapes, d2t=0):
  """Tensors of f32 zeros, and a map of so many draft tokens to the same ones of the target."""
  return safetensors({**{name: ("f", shape) for name, shape in shapes.items()}, **({"d2t": ("q", [d2t])} if d2t else {})}, zero=True)


def layer(at, width, inputs, ffn, heads, kv_heads, head):
  shapes = {"self_attn.q_proj": [heads * head, inputs], "self_attn.k_proj": [kv_heads * head, inputs],
      "self_attn.v_proj": [kv_heads * head, inputs], "self_attn.o_proj": [width, heads * head], "mlp.gate_proj": [ffn, width],
      "mlp.up_proj": [ffn, width], "mlp.down_proj": [width, ffn], "input_layernorm": [width], "post_attention_layernorm": [width]}
  return {f"{at}{name}.weight": shape for name, shape in shapes.items()}


TENSORS = {"fc.weight": ("f", [32, 96]), "norm.weight": ("f", [32]), "lm_head.weight": ("f", [20, 32]), "d2t": ("q", [20])}


def folder(hunch, name, config=CONFIG, **files):
  path = os.path.join(hunch.folder, name)
  os.makedirs(path)
  hunch.file(os.path.join(name, "config.json"), config if isinstance(config, bytes) else json.dumps(config).encode())
  for file, data in (files or {"model.safetensors": safetensors(TENSORS)}).items():
    hunch.file(os.path.join(name, file), data)
  return path


def test_info_and_quantize_know_drafters(hunch):
  source, out = folder(hunch, "good"), os.path.join(hunch.folder, "good.gguf")
  result = hunch("quantize", source, out, "--type", "q4_0")
  assert result.code == 0 and out in result.err, result
  for path, encoding in ((source, "f32"), (out, "q4_0")):
    said = hunch.json("info", path, "--json")
    assert (said["method"], said["draft_vocab"], said["target_hidden"]) == ("eagle3", 20, 32), said
    assert (said["taps"], said["taps_convention"]) == ([1, 3, 6], "outputs"), said
    assert said["encodings"][encoding]["tensors"] >= 2 and said["encodings"]["integers"]["tensors"] == 1, said
  result = hunch("info", out)
  assert result.code == 0 and "eagle3" in result.out and "20 tokens" in result.out, result
  expect(hunch("run", "-m", out, "-p", "a"), 1, "and this with --model-draft")


# Some of every kind; src/checkpoint/drafter_file_test.cpp and src/cli/drafter_flags_test.cpp have them all.
def test_wrong_drafters_are_named_with_what_to_do(hunch):
  changed = lambda **changes: {k: v for k, v in {**CONFIG, **changes}.items() if v is not None}
  pickled = folder(hunch, "pickled", **{"pytorch_model.bin": b"x"})
  cases = [
      (os.path.join(hunch.folder, "none"), "No such file"),
      (pickled, "python3 -c \"import torch, safetensors.torch as s; s.save_file("),
      (os.path.join(pickled, "pytorch_model.bin"), "pickled weights can run code"),
      (folder(hunch, "torn", **{"model.safetensors": safetensors(TENSORS)[:-3]}), "past the end of the file"),
      (folder(hunch, "broken_json", b"{"), "config.json: not valid JSON"),
      (folder(hunch, "unknown", dict(model_type="gpt7"), **{"model.safetensors": safetensors({"x.weight": ("f", [2])})}),
      "no drafter that is known (speculators_model_type absent"),
  ]
  for path, message in cases:
    expect(hunch.run("-p", "hello", "-n", "2", "--model-draft", path), 1, message)
  expect(hunch.run("-p", "hello", "--spec", "eagle3", "--model-draft", hunch.model), 1, "a drafter of method draft_model, not eagle3")
  for key, value, message in (("hidden_size", -1, "hidden_size: -1 is out of range"), ("rope_theta", "x", "rope_theta: must be a finite number")):
    expect(hunch("info", folder(hunch, f"wrong_{key}", changed(**{key: value}))), 1, message)


def test_drafters_of_another_model_are_refused(hunch):
  eagle3, eagle, mtp = "LlamaForCausalLMEagle3", "EagleLlamaForCausalLM", "Qwen3NextMTP"
  taps = lambda *layers: dict(eagle_config=dict(eagle_aux_hidden_state_layer_ids=layers))
  for i, (kind, changes, message) in enumerate((
      (eagle3, dict(target_hidden_size=48), "48, but the target's hidden size is 512"),
      (eagle3, dict(num_hidden_layers=2), "EAGLE-3 drafters of one layer"),
      (eagle3, taps(1, 3), "2 layers; there must be 3"),
      (eagle3, taps(1, 3, 8), "the output of layer 8 is asked for"),
      (eagle3, taps(-1, 3, 6), "the output of layer -1 is asked for"),
      (eagle3, dict(draft_vocab_size=16385), "16385 is out of range"),
      (eagle, dict(hidden_size=48), "48, but the target's is 512"), (eagle3, dict(vocab_size=40), "40, but the target's is 16384"),
      (eagle, dict(vocab_size=40), "40, but the target's is 16384"),
      (eagle, dict(num_hidden_layers=2), "EAGLE drafters of one layer"),
      (mtp, dict(hidden_size=48), "48, but the target's is 512"),
      (mtp, dict(num_key_value_heads=3), "3 KV heads do not divide 4"),
      (mtp, dict(head_dim=7), "7 is odd"),
      (mtp, dict(rope_scaling=dict(rope_type="yarn")), "rope type 'yarn' is not known"))):
    config = {**CONFIG, "architectures": [kind], "hidden_size": 512, "vocab_size": 16384, **changes}
    expect(hunch.run("-p", "hello", "-n", "2", "--model-draft", folder(hunch, f"other{i}", config)), 1, message)


def test_methods_and_models_must_fit_what_is_loaded(hunch):
  needs = 'method eagle3 needs a drafter: --model-draft PATH or "model" in --speculative-config'
  run = lambda *flags: hunch.run("-p", "hello", "-n", "2", *flags)
  expect(run("--spec", "eagle3"), 2, needs)
  expect(run("--speculative-config", '{"method": "eagle3", "num_speculative_tokens": 3}'), 2, needs)
  expect(run("--speculative-config", '{"method": "telepathy", "model": "x"}'), 2, '"method" must be one of auto, ')
  expect(run("--speculative-config", '{"method": "ngram", "model": "x"}'), 1, "No such file")
  expect(run("--token-tree", "[(0, 1)]"), 2, "--token-tree: ")
  expect(hunch("quantize", hunch.model, "x.gguf", "--type", "q8_0", "--method", "ngram"), 2, "--method must be one of medusa")


def test_a_line_of_a_batch_may_name_only_what_is_loaded(hunch):
  lines = [dict(id="a", prompt="hello", max_tokens=2, speculative_config=dict(method="eagle3")),
      dict(id="b", prompt="hello", max_tokens=2, speculative_config=dict(model="/no/such")),
      dict(id="c", prompt="hello", max_tokens=2, speculative_config=dict(method="none"))]
  source = hunch.file("drafters.in", "".join(json.dumps(line) + "\n" for line in lines).encode())
  result = hunch("batch", source, "-o", "-")
  assert result.code == 1, result
  answers = {a["id"]: a for a in map(json.loads, result.out.splitlines())}
  assert "method eagle3 needs a drafter" in answers["a"]["error"]["message"], answers["a"]
  assert "/no/such is not loaded; loaded drafters: none" in answers["b"]["error"]["message"], answers["b"]
  assert "error" not in answers["c"], answers["c"]


def test_a_drafter_that_is_never_right_is_reported(hunch):
  # For the shipped model's shapes, with weights of 0: whatever the text, it guesses the least of its tokens. Those are the first
  # ones of the target's vocabulary, which are special and come of no text.
  width, ffn, heads, kv_heads, head = 512, 64, 2, 1, 64
  shapes = {"fc.weight": [width, 3 * width], "norm.weight": [width], "lm_head.weight": [2, width],
      "midlayer.hidden_norm.weight": [width], **layer("midlayer.", width, 2 * width, ffn, heads, kv_heads, head)}
  config = {**CONFIG, "hidden_size": width, "intermediate_size": ffn, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
      "head_dim": head, "vocab_size": 16384, "draft_vocab_size": 2}
  source = folder(hunch, "luckless", config, **{"model.safetensors": zeros(shapes, d2t=2)})
  for d2t, becomes in (((0, 16383), 16384), ((1, 0), 1)):
    wrong = folder(hunch, f"map{becomes}", config, **{"model.safetensors": zeros(shapes, d2t=2)[:-16] + struct.pack("<2q", *d2t)})
    expect(hunch.run("-p", "a", "-n", "2", "--model-draft", wrong), 1, f"draft token 1 becomes {becomes}: ids must ascend")
  run = lambda count, *flags: hunch.run("-p", "Once upon a time", "-n", count, "--temp", "0", "--ignore-eos", "--draft", "1",
      "--model-draft", source, "--spec", "eagle3", *flags)
  said = "eagle3 has drafted 64 rounds without one token being kept: was it made for this model? (" + source + ")"
  result = run(66)
  assert result.code == 0 and said in result.err and result.out, result
  result = run(65)
  assert result.code == 0 and "without one token being kept" not in result.err, result
  result = run(66, "--json")
  assert result.code == 0 and json.loads(result.out)["warning"] == said, result


def test_bench_accept_measures_drafters_and_every_side_of_a_modules_norms(hunch):
  width, ffn = 512, 64
  shapes = {"fc.weight": [width, 2 * width], "pre_fc_norm_embedding.weight": [width], "pre_fc_norm_hidden.weight": [width],
      "norm.weight": [width], **layer("layers.0.", width, width, ffn, 2, 1, 64)}
  config = dict(architectures=["Qwen3NextMTP"], model_type="qwen3_next_mtp", hidden_size=width, intermediate_size=ffn,
      num_hidden_layers=28,  # of the model whose checkpoint it may lie in
      num_attention_heads=2, num_key_value_heads=1, head_dim=64, vocab_size=16384, rms_norm_eps=1e-6)
  source = folder(hunch, "module", config, **{"model.safetensors": zeros(shapes)})
  prompts = hunch.file("prompts.jsonl", b'{"text": "Once upon a time", "kind": "tale"}\n')
  accept = lambda *flags: hunch("bench", "accept", prompts, "-n", "4", "--draft", "2", *flags)
  rows = json.loads(accept("--model-draft", source, "--mtp-norms", "all", "--json").out)["rows"]
  assert [(r["mtp_feed_norm"], r["mtp_recycle_norm"]) for r in rows] == [("post", "post"), ("post", "pre"), ("pre", "post"), ("pre", "pre")], rows
  assert all(r["policy"] == "mtp" and r["mean_tokens_per_round"] >= 1 and len(r["conditional_acceptance"]) == 2 for r in rows), rows
  result = accept("--model-draft", source, "--policies", "mtp,mtp-tree6,default", "--mtp-norms", "pre-post")
  assert result.code == 0 and result.out.count("feed norm pre, recycle norm post") == 2 and "mtp-tree6" in result.out, result
  expect(accept("--mtp-norms", "all"), 2, "brings no prediction module for method mtp")
  expect(accept("--mtp-norms", "both"), 2, '--mtp-norms must be one of post-post, post-pre, pre-post, pre-pre, not "both"')
  expect(accept("--model-draft", source, "--policies", "default", "--mtp-norms", "all"), 2, "add it to --policies")
  expect(accept("--policies", "eagle3"), 2, "method eagle3 needs a drafter: --model-draft PATH")
  expect(accept("--policies", "eagle3-wide"), 2, "behind a method there is -N, -treeN or both")
