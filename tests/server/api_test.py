#!/usr/bin/env python3
"""The server through its routes: answers whole and streamed, many at once, several models, and that they are those of `hunch run`."""
import json
import subprocess
import unittest
from concurrent.futures import ThreadPoolExecutor

from served import (BINARY, MODEL, PROMPT, ROOT, ServerTest, answers_of, body_of, completion_bytes, events, get_bytes, read_all, serve,
    status_of)


def text_of(stream):
  """(text, finish reason) of the chunks of a completion stream; checks what all chunks have in common."""
  chunks = [json.loads(e) for e in stream[:-1]]
  assert stream[-1] == "[DONE]"
  assert len({(c["id"], c["created"], c["model"]) for c in chunks}) == 1
  reasons = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]]
  assert all(r is None for r in reasons[:-1])
  return "".join(c["choices"][0]["text"] for c in chunks if c["choices"]), reasons[-1]


def end_of(choice):
  return choice["text"], choice["finish_reason"]


class Answers(ServerTest):
  def choice(self, **body):
    return self.complete(**body)["choices"][0]

  def stream(self, **body):
    status, headers, data = self.request("POST", "/v1/completions", {"prompt": PROMPT, "temperature": 0, "stream": True, **body})
    self.assertEqual((status, headers["Content-Type"]), (200, "text/event-stream; charset=utf-8"))
    return events(data)

  def test_greedy_answers_are_those_of_hunch_run_whole_streamed_guessed_or_not(self):
    done = subprocess.run([BINARY, "run", "-m", MODEL, "-p", PROMPT, "-n", "60", "--temp", "0", "--json", "--no-bos", "-c", "2048", "-t", "1"],
        capture_output=True, text=True, check=True)
    expected = json.loads(done.stdout)["text"]
    for config in (None, {"method": "none"}, {"method": "ngram", "num_speculative_tokens": 4}, {"method": "suffix"}):
      more = {} if config is None else {"speculative_config": config}
      self.assertEqual(end_of(self.choice(max_tokens=60, **more)), (expected, "length"), config)
      self.assertEqual(text_of(self.stream(max_tokens=60, **more)), (expected, "length"), config)

  def test_usage_comes_last_where_it_is_asked_for(self):
    last = json.loads(self.stream(max_tokens=5, stream_options={"include_usage": True})[-2])
    self.assertEqual((last["choices"], last["usage"]["completion_tokens"]), ([], 5))
    self.assertEqual(self.complete(max_tokens=5)["usage"]["completion_tokens"], 5)

  def test_choices_of_several_prompts_and_samples_are_indexed(self):
    body = {"prompt": [PROMPT, "The sea was"], "n": 2, "max_tokens": 6, "temperature": 0.8, "seed": 7}
    before = self.metric("vllm:request_params_n_sum")
    whole = self.ask(body)[2]
    self.assertEqual([c["index"] for c in whole["choices"]], [0, 1, 2, 3])
    self.assertEqual(self.metric("vllm:request_params_n_sum") - before, 4)
    texts = [""] * 4
    for event in events(self.request("POST", "/v1/completions", {**body, "stream": True})[2])[:-1]:
      for choice in json.loads(event)["choices"]:
        texts[choice["index"]] += choice["text"]
    self.assertEqual(texts, [c["text"] for c in whole["choices"]])

  def test_a_seed_fixes_a_text_whoever_else_is_served(self):
    text = lambda seed: self.choice(max_tokens=30, temperature=1.0, seed=seed)["text"]
    alone = text(11)
    with ThreadPoolExecutor(6) as pool:
      got = list(pool.map(text, (11, 12) * 3))
    self.assertEqual({got[0], got[2], got[4]}, {alone})
    self.assertNotEqual(got[1], alone)

  def test_bad_bodies_are_400_with_their_field_and_leave_the_connection_open(self):
    with self.socket() as s:
      for body, param in (({"max_tokens": -2}, "max_tokens"), ({"temperature": -1}, "temperature"), ({"n": 1000000}, "n"),
          ({"speculative_config": {"methd": "ngram"}}, None)):
        s.sendall(completion_bytes({"prompt": PROMPT, **body}, close=False))
        data = s.recv(65536)
        self.assertEqual(status_of(data), 400, body)
        self.assertEqual(self.error(body_of(data)[1], param=param)["type"], "invalid_request_error")
      s.sendall(get_bytes("/health", close=True))
      self.assertEqual(status_of(read_all(s)), 200)
    for body in ("{", "", "[" * 100000):
      self.assertEqual(self.request("POST", "/v1/completions", body)[0], 400)
    status, _, body = self.ask({"prompt": "a " * 4000})
    self.assertEqual((status, self.error(body)["code"]), (400, "context_length_exceeded"))

  def test_unknown_models_are_404_and_list_those_there_are(self):
    status, _, body = self.ask({"model": "gpt", "prompt": "x"})
    self.assertEqual((status, self.error(body)["code"]), (404, "model_not_found"))
    self.assertIn("wren-34m", body["error"]["message"])

  def test_stop_texts_end_an_answer(self):
    text = self.choice(max_tokens=40)["text"]
    stop = text[20:26]
    expected = text[:text.index(stop)], "stop"
    self.assertEqual(end_of(self.choice(max_tokens=40, stop=[stop])), expected)
    self.assertEqual(text_of(self.stream(max_tokens=40, stop=stop)), expected)

  def test_models_and_the_other_informing_routes(self):
    models = json.loads(self.get("/v1/models")[2])
    self.assertEqual([m["id"] for m in models["data"]], ["wren-34m"])
    self.assertEqual(json.loads(self.get("/v1/models/wren-34m")[2])["id"], "wren-34m")
    self.assertEqual(self.get("/v1/models/other")[0], 404)
    for path in ("/version", "/props", "/slots", "/openapi.json"):
      status, headers, body = self.get(path)
      self.assertEqual((status, headers["Content-Type"]), (200, "application/json"), path)
      json.loads(body)
    self.assertNotIn(b"/models/wren", self.get("/v1/models")[2])

  def test_the_chat_page_and_its_files_are_served_for_themselves_only(self):
    for path, kind in (("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")):
      status, headers, body = self.get(path)
      self.assertEqual((status, headers["Content-Type"]), (200, kind + "; charset=utf-8"))
      self.assertIn("default-src 'self'", headers["Content-Security-Policy"])
      name = {"/": "index.html"}.get(path, path[1:])
      self.assertEqual(body, (ROOT / "src/server/page" / name).read_bytes())

  def test_tokens_of_a_text_and_back(self):
    ids = self.post("/tokenize", {"content": PROMPT})[2]["tokens"]
    self.assertEqual(self.post("/tokenize", {"prompt": PROMPT, "add_special_tokens": False})[2]["count"], len(ids))
    self.assertEqual(self.post("/detokenize", {"tokens": ids})[2].get("content"), PROMPT)
    refused = self.refusals("too_many_fields"), self.refusals("bad_request_body")
    for path, body in (("/detokenize", {"tokens": [1 << 40]}), ("/detokenize", {"tokens": [5] * 40000}),
        ("/tokenize", b'{"content":"a","content":"b"}'), ("/tokenize", {f"k{i}": 1 for i in range(1100)})):
      self.assertEqual(self.post(path, body)[0], 400, path)
    self.assertEqual((self.refusals("too_many_fields"), self.refusals("bad_request_body")), (refused[0] + 1, refused[1] + 3))

  def test_metrics_follow_the_requests(self):
    before = self.metric("vllm:generation_tokens_total")
    self.complete(max_tokens=33, speculative_config={"method": "suffix"}, vendor_field=1)
    after = self.metrics()
    self.assertEqual(self.metric("vllm:generation_tokens_total") - before, 33)
    self.assertGreater(after['hunch:choices_by_drafter_total{model_name="wren-34m",drafter="suffix"}'], 0)
    self.assertEqual(after['hunch:lossless{model_name="wren-34m",engine="0"}'], 1)
    self.assertEqual(after['hunch:unknown_fields_total{model_name="wren-34m",engine="0"}'], 1)
    self.until(self.idle, 2)

  def test_many_streams_at_once_lose_nothing(self):
    expected = self.choice(max_tokens=50)["text"]
    sockets = [self.asking({"prompt": PROMPT, "temperature": 0, "max_tokens": 50, "stream": True}) for _ in range(40)]
    for s in sockets[4::5]:
      s.close()  # some leave
    del sockets[4::5]
    for answer in answers_of(sockets):
      self.assertEqual(text_of(events(body_of(answer)[1])), (expected, "length"))
    self.until(self.idle, 5)


class Lossy(ServerTest):
  FLAGS = ("--unverified", "--spec", "self", "--policy", "streamingllm")

  def test_a_lossy_setting_is_told_in_answers_and_metrics(self):
    self.assertIs(self.complete(max_tokens=8)["metrics"]["lossless"], False)
    metrics = self.metrics()
    self.assertEqual(metrics['hunch:lossy_choices_total{model_name="wren-34m",engine="0"}'], 1)
    self.assertEqual(metrics['hunch:lossless{model_name="wren-34m",engine="0"}'], 0)


class SeveralModels(unittest.TestCase):
  def test_requests_name_their_model_and_get_it(self):
    tiny = sorted((ROOT / "models/tiny").glob("*.gguf"))
    self.assertTrue(tiny)
    served = serve(self, "-m", str(tiny[0]), "--served-model-name", "big", "--served-model-name", "small", "-c", "512")
    self.assertEqual([m["id"] for m in json.loads(served.get("/v1/models")[2])["data"]], ["big", "small"])
    answers = [served.ask({**({"model": m} if m else {}), "prompt": [1, 2, 3], "max_tokens": 4, "temperature": 0})[2]
        for m in ("big", "small", None)]
    self.assertEqual([a["model"] for a in answers], ["big", "small", "big"])
    self.assertEqual(answers[0]["choices"][0]["text"], answers[2]["choices"][0]["text"])
    self.assertEqual(served.metrics()['vllm:request_success_total{model_name="small",engine="0",finished_reason="length"}'], 1)

  def test_one_model_may_have_several_names(self):
    served = serve(self, "--served-model-name", "a", "-a", "b")
    for name in ("a", "b"):
      self.assertEqual(served.ask({"model": name, "prompt": "x", "max_tokens": 1})[0], 200)
    self.assertEqual(served.ask({"model": "A", "prompt": "x", "max_tokens": 1})[0], 404)


if __name__ == "__main__":
  unittest.main()
