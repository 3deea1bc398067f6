#!/usr/bin/env python3
"""lm-evaluation-harness, unmodified, against the server: log-likelihoods of what the model itself says greedily must be the very
sums of the log-probabilities that `hunch batch` gives it, must be called greedy, and greedy texts must be the same.

By hand, with the package lm-eval[api] and the model's Hugging Face folder (its tokenizer; nothing is downloaded):
    HUNCH=build/release/hunch python3 tests/server/lm_eval_check.py FOLDER
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from served import BINARY, MODEL, ROOT, Served

CONTEXTS = 60
LIKELIHOOD = """task: said
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{context}}}}"
doc_to_choice: choices
doc_to_target: 0
target_delimiter: ""
metric_list: [{{metric: acc}}]
"""
TEXTS = """task: goes_on
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{context}}}}"
doc_to_target: "{{{{text}}}}"
target_delimiter: ""
generation_kwargs: {{until: ["\\n\\n"], max_gen_toks: 24, temperature: 0}}
metric_list: [{{metric: exact_match}}]
"""


def batch(bodies):
  lines = "".join(json.dumps({"id": str(i), "temperature": 0, "add_special_tokens": False, **b}) + "\n" for i, b in enumerate(bodies))
  out = subprocess.run([BINARY, "batch", "-m", MODEL, "-", "-o", "-", "-c", "2048", "-t", "1"], input=lines, capture_output=True, text=True, check=True).stdout
  answers = {line["id"]: line for line in map(json.loads, out.splitlines())}
  return [answers[str(i)]["choices"][0] for i in range(len(bodies))]


def main():
  tokenizer = sys.argv[1]
  words = (ROOT / "README.md").read_text().split()
  contexts = [" ".join(words[9 * i:9 * i + 12]) for i in range(CONTEXTS)]
  said = batch([{"prompt": c, "max_tokens": 6, "ignore_eos": True, "logprobs": 0} for c in contexts])
  texts = batch([{"prompt": c, "max_tokens": 24, "stop": ["\n\n"]} for c in contexts])
  served = Served()
  with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    try:
      tokens = lambda text: served.post("/tokenize", {"content": text})[2]["tokens"]
      rows, sums = [], {}
      for context, one, text in zip(contexts, said, texts):
        # Where the harness cuts the text as the model wrote it, the same tokens are scored.
        if tokens(context + one["text"]) != tokens(context) + one["tokens"]:
          continue
        sums[context] = sum(one["logprobs"]["token_logprobs"])
        rows.append({"context": context, "choices": [one["text"], " something else"], "text": text["text"]})
      (folder / "data.json").write_text("".join(json.dumps(r) + "\n" for r in rows))
      for name, form in (("said", LIKELIHOOD), ("goes_on", TEXTS)):
        (folder / f"{name}.yaml").write_text(form.format(data=folder / "data.json"))
      settings = f"model=wren-34m,base_url={served.url}/v1/completions,tokenizer={tokenizer},num_concurrent=4,max_length=2000"
      subprocess.run([sys.executable, "-m", "lm_eval", "--model", "local-completions", "--model_args", settings, "--tasks", "said,goes_on",
          "--include_path", str(folder), "--output_path", str(folder / "out"), "--log_samples", "--batch_size", "4"], check=True,
          env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(folder / "cache")})
      samples = {}
      for path in (folder / "out").rglob("samples_*.jsonl"):
        for line in path.read_text().splitlines():
          sample = json.loads(line)
          samples.setdefault("said" if "samples_said" in path.name else "goes_on", []).append(sample)
    finally:
      served.kill()
  wrong = 0
  for sample in samples["said"]:
    likelihood, greedy = sample["filtered_resps"][0]
    expected = sums[sample["doc"]["context"]]
    if float(likelihood) != expected or str(greedy) != "True":
      wrong += 1
      print(f"{sample['doc']['context']!r}: {likelihood} greedy {greedy}, expected {expected}")
  for sample in samples["goes_on"]:
    if sample["filtered_resps"][0] != sample["doc"]["text"]:
      wrong += 1
      print(f"{sample['doc']['context']!r}: {sample['filtered_resps'][0]!r}, expected {sample['doc']['text']!r}")
  print(f"{len(samples['said'])} likelihoods and {len(samples['goes_on'])} texts (of {CONTEXTS} contexts), {wrong} wrong")
  return 1 if wrong or not rows else 0


if __name__ == "__main__":
  sys.exit(main())
