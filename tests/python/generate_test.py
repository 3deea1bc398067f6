"""LLM.generate and LLM.chat: the same tokens as the program's, in vLLM's shapes; errors in the engine's words."""
import json
import re
import unittest

import numpy as np
from hunch import LLM, SamplingParams
from shipped import GREEDY, MODEL, PROMPT, PROMPTS, ShippedModel, greedy, run_json

PLAIN, SELF = {"method": "none"}, {"method": "self", "num_speculative_tokens": 4}


class Generate(ShippedModel):
  def test_greedy_equals_the_program(self):
    theirs = run_json("-p", PROMPT, "-n", 24, "--temp", 0, "-c", 1024)
    [ours] = self.llm.generate(PROMPT, GREEDY)
    said = ours.outputs[0]
    self.assertEqual((said.token_ids, said.text, said.finish_reason), tuple(theirs[key] for key in ("tokens", "text", "finish_reason")))
    self.assertTrue(ours.metrics.lossless)

  def test_a_seeded_sample_equals_the_program(self):
    theirs = run_json("-p", PROMPT, "-n", 24, "--temp", 0.9, "--top-k", 40, "--top-p", 0.95, "--min-p", 0, "-s", 11,
        "-c", 1024)
    [ours] = self.llm.generate([PROMPT], SamplingParams(temperature=0.9, top_k=40, top_p=0.95, seed=11, max_tokens=24))
    self.assertEqual(ours.outputs[0].token_ids, theirs["tokens"])
    self.assertEqual(ours.metrics.seed, 11)

  def test_speculation_changes_no_token(self):
    for params in (GREEDY, SamplingParams(seed=5, max_tokens=24)):
      plain = self.llm.generate(PROMPTS, params, speculative_config=PLAIN)
      guessed = self.llm.generate(PROMPTS, params, speculative_config=SELF)
      self.assertEqual([o.outputs for o in plain], [o.outputs for o in guessed])
      self.assertEqual({o.metrics.drafter for o in guessed}, {"self"})
      self.assertTrue(all(o.metrics.rounds > 0 and o.metrics.mean_acceptance_length >= 1 for o in guessed))

  def test_prompts_run_together_and_answers_stand_in_their_order(self):
    alone = [self.one(p).token_ids for p in PROMPTS]
    finished = self.llm.get_metrics().requests_finished
    together = self.llm.generate(PROMPTS, GREEDY)
    self.assertEqual([o.outputs[0].token_ids for o in together], alone)
    self.assertEqual([o.prompt for o in together], PROMPTS)
    self.assertEqual(self.llm.get_metrics().requests_finished, finished + len(PROMPTS))
    self.assertEqual(len({o.request_id for o in together}), len(PROMPTS))

  def test_each_prompt_may_have_its_own_params(self):
    out = self.llm.generate(PROMPTS, [greedy(n) for n in (3, 5, 7)])
    self.assertEqual([len(o.outputs[0].token_ids) for o in out], [3, 5, 7])
    self.assertRaisesRegex(ValueError, "2 sampling_params for 3 prompts", self.llm.generate, PROMPTS, [GREEDY, GREEDY])

  def test_prompts_may_be_token_ids(self):
    ids = self.llm.tokenizer.encode(PROMPT)
    expected = self.one().token_ids
    for prompt in (ids, [ids], {"prompt_token_ids": ids}, [{"prompt": PROMPT}], np.array(ids)):
      [out] = self.llm.generate(prompt, GREEDY)
      self.assertEqual(out.prompt_token_ids, ids)
      self.assertEqual(out.outputs[0].token_ids, expected)
    self.assertEqual(self.llm.generate([], GREEDY), [])

  def test_n_samples_differ_and_come_again_with_their_seed(self):
    params = SamplingParams(n=3, seed=3, max_tokens=12)
    [first], [again] = self.llm.generate(PROMPT, params), self.llm.generate(PROMPT, params)
    tokens = [o.token_ids for o in first.outputs]
    self.assertEqual([o.index for o in first.outputs], [0, 1, 2])
    self.assertEqual(len(set(map(tuple, tokens))), 3)
    self.assertEqual(tokens, [o.token_ids for o in again.outputs])
    [drawn] = self.llm.generate(PROMPT, SamplingParams(n=2, max_tokens=8))
    [same] = self.llm.generate(PROMPT, SamplingParams(n=2, seed=drawn.metrics.seed, max_tokens=8))
    self.assertEqual(same.outputs, drawn.outputs)

  def test_logprobs_are_dictionaries_and_arrays_of_the_same_values(self):
    [out] = self.llm.generate(PROMPT, greedy(6, logprobs=3, prompt_logprobs=2))
    sample = out.outputs[0]
    self.assertEqual((sample.logprobs_array.shape, sample.logprobs_array.dtype), ((6,), np.float32))
    self.assertEqual((sample.top_token_ids.shape, sample.top_logprobs.shape), ((6, 3), (6, 3)))
    self.assertTrue((np.diff(sample.top_logprobs, axis=1) <= 0).all())
    self.assertTrue((np.exp(sample.top_logprobs).sum(axis=1) <= 1 + 1e-5).all())
    for i, row in enumerate(sample.logprobs):  # greedy: what was taken is the likeliest
      taken = row[sample.token_ids[i]]
      self.assertEqual((taken.rank, taken.logprob), (1, float(sample.logprobs_array[i])))
    self.assertAlmostEqual(sample.cumulative_logprob, float(sample.logprobs_array.sum()), places=4)
    self.assertIsNone(out.prompt_logprobs[0])
    self.assertEqual(len(out.prompt_logprobs), len(out.prompt_token_ids))
    self.assertEqual(out.prompt_logprobs_array.shape, (len(out.prompt_token_ids),))
    self.assertTrue(np.isnan(out.prompt_logprobs_array[0]) and (out.prompt_logprobs_array[1:] <= 0).all())
    self.assertIsNone(self.one().logprobs)

  def test_a_stop_text_ends_the_text_before_it(self):
    whole = self.one()
    stop = whole.text[8:11]
    out = self.one(params=greedy(stop=stop))
    self.assertEqual((out.finish_reason, out.stop_reason), ("stop", stop))
    self.assertEqual(out.text, whole.text.split(stop)[0])

  def test_a_banned_token_is_never_written(self):
    whole = self.one()
    banned = whole.token_ids[0]
    out = self.one(params=greedy(logit_bias={banned: -100}))
    self.assertNotIn(banned, out.token_ids)

  def test_a_bad_word_is_never_written_and_allowed_tokens_are_all_there_is(self):
    whole = self.one()
    decode, encode = self.llm.tokenizer.decode, self.llm.tokenizer.encode
    [word, *_] = (decode(i).strip() for i in whole.token_ids  # one token, at a text's beginning and inside
        if decode(i).startswith(" ") and len(encode(decode(i).strip(), add_special_tokens=False)) == 1)
    out = self.one(params=greedy(bad_words=[word]))
    self.assertNotIn(word, [decode(i).strip() for i in out.token_ids])
    allowed = encode("yes no", add_special_tokens=False)
    out = self.one(params=SamplingParams(max_tokens=8, allowed_token_ids=allowed, ignore_eos=True))
    self.assertLessEqual(set(out.token_ids), set(allowed))

  def test_a_stop_id_is_the_reason_and_no_part_of_the_output(self):
    whole = self.one()
    stop = whole.token_ids[5]
    out = self.one(params=greedy(stop_token_ids=[stop]))
    self.assertEqual((out.finish_reason, out.stop_reason), ("stop", stop))
    self.assertNotIn(stop, out.token_ids)

  def test_special_tokens_are_shown_where_asked_for(self):
    special = self.llm.tokenizer.eos_token_id
    shown, hidden = (self.one(params=SamplingParams(max_tokens=3, allowed_token_ids=[special], ignore_eos=True,
        skip_special_tokens=skip)) for skip in (False, True))
    self.assertEqual(shown.token_ids, [special] * 3)
    self.assertEqual(shown.text, self.llm.tokenizer.decode([special] * 3, skip_special_tokens=False))
    self.assertEqual(hidden.text, "")

  def test_output_has_the_structure_that_was_asked_for(self):
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"enum": [1, 2]}},
        "required": ["name", "age"], "additionalProperties": False}
    for wanted, fits in (({"choice": ["port", "starboard"]}, lambda text: text in ("port", "starboard")),
        ({"regex": "[a-c]{3}-[0-9]{2}"}, lambda text: re.fullmatch("[a-c]{3}-[0-9]{2}", text)),
        ({"json": schema}, lambda text: set(json.loads(text)) == {"name", "age"}),
        ({"grammar": 'root ::= "aye" | "nay"'}, lambda text: text in ("aye", "nay"))):
      params = SamplingParams(seed=4, max_tokens=200, structured_outputs=wanted)
      guessed, plain = (self.one(params=params, speculative_config=how) for how in (SELF, PLAIN))
      self.assertTrue(fits(guessed.text), guessed.text)
      self.assertEqual(guessed.token_ids, plain.token_ids)
    self.assertRaises(ValueError, self.llm.generate, PROMPT, SamplingParams(structured_outputs={"regex": "[a"}))

  def test_chat_answers_the_models_own_form(self):
    messages = [{"role": "user", "content": "Tell me a story."}]
    [out] = self.llm.chat(messages, GREEDY)
    theirs = run_json("-p", "Tell me a story.", "--chat", "-n", 24, "--temp", 0, "-c", 1024)
    self.assertEqual(out.outputs[0].token_ids, theirs["tokens"])
    self.assertEqual(out.prompt_token_ids, self.llm.tokenizer.apply_chat_template(messages))
    self.assertEqual(len(self.llm.chat([messages, messages], GREEDY)), 2)

  def test_the_tokenizer_reads_what_it_wrote(self):
    text = "A line, Ünïcode and 語."
    ids = self.llm.tokenizer.encode(text, add_special_tokens=False)
    self.assertEqual(self.llm.tokenizer.decode(ids), text)
    self.assertGreater(self.llm.tokenizer.vocab_size, max(ids))

  def test_what_cannot_be_is_a_value_error_in_the_engines_words(self):
    for params, words in (({"top_p": 2}, "top-p is 2"), ({"temperature": -1}, "temperature"),
        ({"logprobs": 10 ** 6}, "logprobs is"), ({"presence_penalty": 9}, "presence_penalty is 9"),
        ({"stop": "x" * 5000}, "stop: text 0"), ({"logit_bias": {10 ** 8: 1}}, "logit_bias has token id"),
        ({"structured_outputs": {"choice": "yes"}}, "choice must be a list of strings")):
      with self.assertRaisesRegex(ValueError, words, msg=params):
        self.llm.generate(PROMPT, SamplingParams(**params))
    for prompt in ("", "\ud800", {"text": "x"}, {"prompt_token_ids": []}, b"x", {"prompt": "x", "multi_modal_data": {}}, [None], [10 ** 8], [[0.5]], "x" * 20000):
      with self.assertRaises(ValueError, msg=repr(prompt)[:40]):
        self.llm.generate(prompt, GREEDY)
    with self.assertRaisesRegex(ValueError, "not JSON compliant"):
      self.llm.chat([{"role": "user", "content": "x", "weight": float("nan")}])
    refused = lambda words, *given, **more: self.assertRaisesRegex(ValueError, words, self.llm.generate, *given, **more)
    refused("sampling_params must be", PROMPT, {"max_tokens": 4})
    refused("the prompt has 2000 tokens, the context holds 1024", [5] * 2000, GREEDY)
    refused('speculative_config: unknown key "num_spec_tokens"', PROMPT, GREEDY, speculative_config={"method": "self", "num_spec_tokens": 4})
    refused("method eagle3 needs a drafter", PROMPT, GREEDY, speculative_config={"method": "eagle3"})

  def test_a_batch_with_one_bad_request_runs_none_of_it(self):
    before = self.llm.get_metrics().requests_finished
    endless = SamplingParams(max_tokens=None, ignore_eos=True)
    self.assertRaises(ValueError, self.llm.generate, PROMPTS, [endless, endless, SamplingParams(temperature=-1)])
    self.assertEqual(self.llm.get_metrics().requests_finished, before)
    self.assertEqual(len(self.llm.generate(PROMPT, GREEDY)), 1)


class Arguments(unittest.TestCase):
  def test_sampling_params_are_checked_when_they_are_made(self):
    for wrong in ({"n": 0}, {"n": 1.5}, {"max_tokens": 0}, {"min_tokens": 20}, {"temperature": "hot"}, {"top_k": -2},
        {"seed": -1}, {"logprobs": -1}, {"top_k": 1 << 40}, {"include_stop_str_in_output": True},
        {"structured_outputs": {"regex": "a", "choice": ["b"]}}, {"structured_outputs": {"schema": "a"}}):
      with self.assertRaises(ValueError, msg=wrong):
        SamplingParams(**wrong)

  def test_arguments_that_cannot_be_are_refused_before_loading(self):
    for wrong, words in (({"tensor_parallel_size": 2}, "it must be 1"), ({"quantization": "awq"}, "hunch quantize"),
        ({"gpu_memory_utilization": 2}, "at most 1"),
        ({"speculative_config": {"method": "medusa2"}}, "medusa2"), ({"max_model_len": 0}, "at least 1"),
        ({"speculative_config": "self"}, "dictionary"), ({"threads": 100000}, "1 to 1024"), ({"seed": -1}, "seed is -1"),
        ({"max_num_seqs": 1 << 40}, "max_num_seqs is")):
      with self.assertRaisesRegex(ValueError, words, msg=wrong):
        LLM(model=MODEL, **wrong)
    self.assertRaisesRegex(TypeError, "did you mean max_model_len", LLM, model=MODEL, max_model_length=5)
    for name in ("seed", "threads", "max_model_len"):
      self.assertRaisesRegex(TypeError, f"{name} must be a whole number, not 1.5", LLM, model=MODEL, **{name: 1.5})

  def test_a_model_that_is_not_there_is_a_runtime_error_that_names_it(self):
    self.assertRaisesRegex((RuntimeError, ValueError), "no-such-model", LLM, model="/tmp/no-such-model")

  def test_vllms_harmless_arguments_are_taken_and_a_seed_makes_runs_repeat(self):
    texts = []
    for _ in range(2):
      with LLM(MODEL, max_model_len=np.int64(256), enforce_eager=True, tensor_parallel_size=1, gpu_memory_utilization=0.9,
          seed=np.uint64(1), threads=np.int32(1), trust_remote_code=False) as llm:
        params = [SamplingParams(max_tokens=np.int64(8)), SamplingParams(max_tokens=8, seed=np.int64(9)), SamplingParams(max_tokens=8)]
        outputs = llm.generate(PROMPTS, params)
        self.assertEqual([o.metrics.seed for o in outputs], [1, 9, 2])
        texts.append([o.outputs[0].text for o in outputs])
      self.assertRaisesRegex(RuntimeError, "closed", llm.generate, PROMPT)
      llm.close()
    self.assertEqual(*texts)

  def test_a_drafter_named_by_the_configuration_guesses(self):
    drafter = MODEL.replace("34m.gguf", "34m-draft.gguf")
    with LLM(MODEL, max_model_len=256, speculative_config={"method": "draft_model", "model": drafter}) as llm:
      [guessed], [plain] = llm.generate(PROMPT, GREEDY), llm.generate(PROMPT, GREEDY, speculative_config=PLAIN)
    self.assertEqual(guessed.metrics.drafter, "draft_model")
    self.assertEqual(guessed.outputs[0].token_ids, plain.outputs[0].token_ids)


if __name__ == "__main__":
  unittest.main()
