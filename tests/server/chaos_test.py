#!/usr/bin/env python3
"""Random clients against one small server: answers whole and streamed, clients that leave or are killed, bodies and lines that
mean nothing. Whatever was answered to its end must be what the same request gets alone and without speculation, nothing may be
left behind, and the process must end well (under a sanitizer: without a report).

HUNCH_CHAOS_SECONDS=1800 HUNCH=build/dev/hunch python3 tests/server/chaos_test.py is the half hour; HUNCH_CHAOS_SEED another run.
"""
import collections
import json
import os
import random
import signal
import socket
import struct
import threading
import time
import unittest

from served import Served, body_of, events, mangled, post_bytes, read_all

SECONDS = float(os.environ.get("HUNCH_CHAOS_SECONDS", "6"))
SEED = int(os.environ.get("HUNCH_CHAOS_SEED", "1"))
CLIENTS = 12
WORDS = ("The captain looked at the sea and said nothing while name value list of items is 12 34 { } [ ] : , . \n "
    "éß日本 <think> <|im_start|> \0 \U0001f600").split(" ")
KINDS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["a", "b"]}


def random_body(r):
  """A request whose answer is a function of its body, and its route."""
  text = " ".join(r.choice(WORDS) for _ in range(r.choice((1, 5, 20, 120))))
  body = {"max_tokens": r.choice((1, 3, 16, 60)), "n": r.choice((1, 1, 1, 3)), "seed": r.randrange(1000),
      "temperature": r.choice((0, 0, 0.7, 1.3))}
  extras = {"stop": ["the", "\n"], "logprobs": True, "ignore_eos": True, "presence_penalty": 0.7, "repetition_penalty": 1.2,
      "top_k": 5, "min_p": 0.1, "logit_bias": {"5": 50, "9": -100}, "cache_salt": "s" * r.randrange(20), "priority": r.randrange(3),
      "response_format": {"type": "json_schema", "json_schema": {"schema": KINDS}}, "guided_regex": "[a-z ]{1,30}",
      "vendor": {"x": [1]}, "min_tokens": 2, "user": "u"}
  for key in r.sample(sorted(extras), r.choice((0, 0, 1, 2))):
    body[key] = extras[key]
  if "response_format" in body:  # one constraint at most
    body.pop("guided_regex", None)
  body["min_tokens"] = min(body.get("min_tokens", 0), body["max_tokens"])
  body["speculative_config"] = r.choice((None, {"method": "ngram"}, {"method": "suffix"}, {"method": "self", "num_speculative_tokens": 3}, "off"))
  chat = r.random() < 0.3
  body.update({"messages": [{"role": "user", "content": text}]} if chat else {"prompt": text})
  if not chat and body.get("logprobs"):
    body["logprobs"] = 2
  return "/v1/chat/completions" if chat else "/v1/completions", body


def texts_of(choices, n):
  out = [["", None] for _ in range(n)]
  for c in choices:
    one = out[c["index"]]
    part = c.get("delta") or c.get("message") or c
    one[0] += part.get("text") or part.get("content") or ""
    one[1] = c["finish_reason"] or one[1]
  return out


class Chaos(unittest.TestCase):
  def setUp(self):
    self.counts, self.done, self.wrong = collections.Counter(), [], []
    self.lock = threading.Lock()
    self.stop = time.monotonic() + SECONDS

  def client(self, number):
    r = random.Random(f"{SEED} {number}")
    while time.monotonic() < self.stop and not self.wrong:
      try:
        what = r.choice((self.whole, self.whole, self.streamed, self.streamed, self.leaves, self.mangles, self.asks))
        what(r)
      except Exception as error:  # a fault of the server's or of the test's: say so
        self.wrong.append(f"{what.__name__}: {error!r}")

  def say(self, what):
    with self.lock:
      self.counts[what] += 1
    if what.endswith("429"):
      time.sleep(0.1)

  def ended(self, route, body, texts):
    self.say("finished")
    with self.lock:
      self.done.append((route, body, texts))

  def whole(self, r):
    route, body = random_body(r)
    status, _, answer = self.served.post(route, body, timeout=300)
    self.say(f"whole {status}")
    if status == 200:
      self.ended(route, body, texts_of(answer["choices"], body["n"]))
    elif status not in (400, 429):
      self.wrong.append(f"{status} {answer} for {body}")

  def streamed(self, r):
    route, body = random_body(r)
    with self.served.socket(300) as s:
      s.sendall(post_bytes(route, {**body, "stream": True}))
      status, text = body_of(read_all(s))
    self.say(f"streamed {status}")
    if status != 200:
      if status not in (400, 429):
        self.wrong.append(f"{status} {text} for {body}")
      return
    parts = events(text)
    if parts[-1] != "[DONE]":
      return self.wrong.append(f"no end: {parts[-1]} for {body}")
    chunks = [json.loads(p) for p in parts[:-1]]
    self.ended(route, body, texts_of([c for chunk in chunks for c in chunk["choices"]], body["n"]))

  def leaves(self, r):
    route, body = random_body(r)
    with self.served.socket(300) as s:
      if r.random() < 0.5:  # killed: the connection is reset
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
      data = post_bytes(route, {**body, "max_tokens": 150, "stream": r.random() < 0.7})
      s.sendall(data[:r.choice((len(data), len(data), r.randrange(len(data))))])
      s.settimeout(r.choice((0.001, 0.05, 0.5)))
      try:
        s.recv(r.choice((1, 4096)))
      except (TimeoutError, socket.timeout):
        pass
    self.say("left")

  def mangles(self, r):
    route, body = random_body(r)
    data = mangled(post_bytes(route, body), r)
    with self.served.socket(300) as s:
      s.sendall(data)
      s.shutdown(socket.SHUT_WR)
      answer = read_all(s)
    if answer.startswith(b"HTTP/1.1 5") and not answer.startswith(b"HTTP/1.1 501"):
      self.wrong.append(f"{answer[:200]} for {data}")
    self.say("mangled")

  def asks(self, r):
    for path in r.sample(("/health", "/metrics", "/v1/models", "/slots", "/props", "/nothing", "/"), 3):
      if self.served.get(path)[0] not in (200, 404):
        self.wrong.append(path)
    self.served.post("/tokenize", {"content": " ".join(r.choice(WORDS) for _ in range(50))})
    self.say("asked")

  def test_whatever_clients_do_finished_answers_are_right_and_nothing_is_left(self):
    # Seats, pages and places in the queue for fewer than there are clients.
    self.served = Served("-np", "4", "-c", "512", "--kv-memory", "7M", "--max-num-queued-reqs", "6", "--stall-timeout", "5", "--log-level", "error")
    try:
      self.served.complete(max_tokens=4)
      threads = [threading.Thread(target=self.client, args=(i,)) for i in range(CLIENTS)]
      for t in threads:
        t.start()
      memory = []
      while any(t.is_alive() for t in threads):
        time.sleep(min(1, SECONDS / 8))
        memory.append(self.served.metric("process_resident_memory_bytes") / 2**20)
      self.assertEqual(self.wrong, [])
      self.served.until(self.served.idle, 30)
      before = self.served.metric("process_open_fds")
      self.assertGreater(len(self.done), 10)
      replayed = self.done if len(self.done) < 4000 else random.Random(SEED).sample(self.done, 4000)
      for route, body, texts in replayed:
        status, _, answer = self.served.post(route, {**body, "speculative_config": "off"}, timeout=300)
        self.assertEqual(status, 200, body)
        self.assertEqual(texts_of(answer["choices"], body["n"]), texts, body)
      self.assertLessEqual(self.served.metric("process_open_fds"), before)
      third = max(1, len(memory) // 3)
      print(f"{dict(self.counts)}; {len(replayed)} replayed; resident {sum(memory[third:2 * third]) / third:.0f} MiB in the second third, "
          f"{sum(memory[-third:]) / third:.0f} in the last; {self.served.metric('vllm:num_preemptions_total'):.0f} preemptions, "
          f"{self.served.metric('hunch:requests_cancelled_total'):.0f} cancelled", flush=True)
      self.assertEqual(self.served.stop(signal.SIGTERM, 60), 0)
      self.assertNotIn("Sanitizer", "".join(self.served.log))
    finally:
      self.served.kill()


if __name__ == "__main__":
  unittest.main()
