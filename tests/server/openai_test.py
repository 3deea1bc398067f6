#!/usr/bin/env python3
"""The server as OpenAI's Python client sees it. Skips itself where the package is not installed (tests/server/requirements.txt)."""
import unittest
from concurrent.futures import ThreadPoolExecutor

from served import PROMPT, ServerTest, serve

try:
  import openai
except ImportError:
  openai = None


@unittest.skipUnless(openai, "the package openai is not installed")
class Client(ServerTest):
  FLAGS = ("--api-key", "secret")

  def client(self, **more):
    return openai.OpenAI(base_url=self.served.url + "/v1", **{"api_key": "secret", "max_retries": 0, **more})

  def test_models(self):
    self.assertEqual([m.id for m in self.client().models.list()], ["wren-34m"])
    self.assertIsNotNone(self.client().models.retrieve("wren-34m").owned_by)

  def test_completions_whole_and_streamed_agree(self):
    ask = dict(model="wren-34m", prompt=PROMPT, max_tokens=20, temperature=0)
    whole = self.client().completions.create(**ask)
    self.assertEqual(whole.usage.completion_tokens, 20)
    parts = list(self.client().completions.create(**ask, stream=True, stream_options={"include_usage": True}))
    self.assertEqual("".join(p.choices[0].text for p in parts if p.choices), whole.choices[0].text)
    self.assertEqual(parts[-1].usage.completion_tokens, 20)

  def test_chat_whole_and_streamed_agree(self):
    ask = dict(model="wren-34m", messages=[{"role": "user", "content": "Hello"}], max_tokens=12, temperature=0, logprobs=True, top_logprobs=2)
    try:
      whole = self.client().chat.completions.create(**ask)
    except openai.BadRequestError as error:
      self.assertIn("template", str(error))  # a model without a chat template says so
      return
    parts = list(self.client().chat.completions.create(**ask, stream=True))
    self.assertEqual(parts[0].choices[0].delta.role, "assistant")
    self.assertEqual("".join(p.choices[0].delta.content or "" for p in parts if p.choices), whole.choices[0].message.content)
    self.assertEqual(len(whole.choices[0].logprobs.content), 12)

  def test_errors_are_the_clients_classes(self):
    client = self.client()
    with self.assertRaises(openai.AuthenticationError):
      self.client(api_key="wrong").models.list()
    with self.assertRaises(openai.NotFoundError):
      client.completions.create(model="other", prompt="x")
    with self.assertRaises(openai.BadRequestError) as caught:
      client.completions.create(model="wren-34m", prompt="x", temperature=-1)
    self.assertEqual(caught.exception.param, "temperature")
    with self.assertRaises(openai.NotFoundError):
      client.embeddings.create(model="wren-34m", input="x")

  def test_a_stream_can_be_left(self):
    stream = self.client().completions.create(model="wren-34m", prompt=PROMPT, max_tokens=1500, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    running = lambda: "vllm:num_requests_running{model_name=\"wren-34m\",engine=\"0\"} 0" in \
        self.served.get("/metrics", headers={"X-Api-Key": "secret"})[2].decode()
    self.served.until(running, 2)


@unittest.skipUnless(openai, "the package openai is not installed")
class Retries(unittest.TestCase):
  def test_a_full_queue_is_tried_again(self):
    served = serve(self, "-np", "1", "--max-num-queued-reqs", "1")
    client = openai.OpenAI(base_url=served.url + "/v1", api_key="none", max_retries=8)
    ask = lambda _: client.completions.create(model="wren-34m", prompt=PROMPT, max_tokens=60, temperature=0).choices[0].text
    with ThreadPoolExecutor(6) as pool:
      results = list(pool.map(ask, range(6)))
    self.assertEqual((len(results), len(set(results))), (6, 1))


if __name__ == "__main__":
  unittest.main()
