#!/usr/bin/env python3
"""The server below its API: what of HTTP is taken and refused, limits, slow and vanishing clients, many at once."""
import json
import random
import resource
import socket
import time
import unittest

from served import (LONG, PROMPT, Served, ServerTest, answers_of, body_of, completion_bytes, events, get_bytes, last_error, mangled,
    post_bytes, read_all, status_of)

POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
SHORT = {"prompt": PROMPT, "max_tokens": 4, "temperature": 0}
STREAM = {**LONG, "stream": True}


class Requests(ServerTest):
  def test_unknown_routes_are_404_and_wrong_methods_405_with_allow(self):
    status, _, body = self.get("/nothing")
    self.assertEqual(status, 404)
    self.assertEqual(self.error(body)["type"], "not_found_error")
    status, headers, body = self.get("/v1/completions")
    self.assertEqual((status, headers["Allow"]), (405, "POST, OPTIONS"))
    self.error(body)
    status, headers, _ = self.request("POST", "/health", "{}")
    self.assertEqual((status, headers["Allow"]), (405, "GET, HEAD, OPTIONS"))
    self.assertEqual(self.request("DELETE", "/v1/models")[0], 405)

  def test_paths_that_two_readers_could_read_differently_are_400(self):
    for path in ("/v1/../metrics", "//health", "/v1//models", "/./health", "/health%00", "/%2e%2e/metrics", "/v1%2fmodels",
        "/health\\x", "/health%", "/health%zz", "http://localhost/health"):
      self.says(400, get_bytes(path, close=True), path)
    self.assertEqual(self.get("/health?x=1")[0], 200)

  def test_head_has_no_body_and_the_length_of_get(self):
    data = self.raw(b"HEAD /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
    self.assertTrue(data.startswith(b"HTTP/1.1 404") and data.endswith(b"\r\n\r\n"))
    data = self.raw(b"HEAD /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    self.assertEqual(status_of(data), 200)
    self.assertTrue(data.endswith(b"\r\n\r\n"))
    self.assertIn(b"Content-Length: 15\r\n", data)

  def test_ambiguous_lengths_are_400_and_end_the_connection(self):
    body = json.dumps(SHORT)
    n = len(body)
    for lines in (f"Content-Length: {n}\r\nTransfer-Encoding: chunked", f"Content-Length: {n}\r\nContent-Length: {n + 1}",
        f"Content-Length: {n}\r\nContent-Length: {n}", f"Content-Length: {n}, {n}", "Content-Length: -1", "Content-Length: 9223372036854775808",
        f"Content-Length: +{n}", "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"):
      data = self.raw(POST + f"{lines}\r\n\r\n{body}GET /health HTTP/1.1\r\n".encode())
      self.assertIn(status_of(data), (400, 413), lines)
      self.assertEqual(len(data.split(b"HTTP/1.1 4")), 2, lines)

  def test_chunk_sizes_that_overflow_and_crumbs_are_400(self):
    head = POST + b"Transfer-Encoding: chunked\r\n\r\n"
    for size in (b"ffffffffffffffffff", b"-1", b"zz"):
      self.says(400, head + size + b"\r\nx\r\n0\r\n\r\n", size)
    crumbs = b"".join(b"1\r\n%c\r\n" % c for c in b" " * 20000)
    self.says(400, head + crumbs + b"0\r\n\r\n")
    self.assertEqual(self.refusals("tiny_chunks"), 1)

  def test_chunked_bodies_are_read(self):
    body = json.dumps(SHORT).encode()
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(body[i:i + 16]), body[i:i + 16]) for i in range(0, len(body), 16))
    request = POST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + chunks + b"0\r\n\r\n"
    self.says(200, request)
    self.says(400, request.replace(b"HTTP/1.1", b"HTTP/1.0"))

  def test_headers_have_limits(self):
    for more, status in ((98, 200), (99, 431)):  # and two
      self.says(status, get_bytes("/health", close=True, extra="".join(f"X-{i}: 1\r\n" for i in range(more))))
    self.says(431, get_bytes("/health", extra="X: " + "a" * 40000 + "\r\n"))
    self.says(431, b"GET /" + b"a" * 40000)
    self.assertGreaterEqual(self.refusals("headers_too_large"), 1)

  def test_a_request_needs_one_host_and_http_1(self):
    for data in (b"GET /health HTTP/1.1\r\n\r\n", get_bytes("/health", extra="Host: other\r\n"),
        b"GET /health HTTP/9.1\r\nHost: localhost\r\n\r\n", b"not http at all\r\n\r\n"):
      self.says(400, data, data)
    self.assertTrue(self.raw(b"GET /health HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200"))

  def test_a_body_too_large_is_413_before_it_is_sent(self):
    data = self.raw(POST + b"Content-Length: 33554433\r\nExpect: 100-continue\r\n\r\n")
    self.assertEqual(status_of(data), 413)
    self.assertNotIn(b"100 Continue", data)
    self.error(body_of(data)[1])

  def test_expect_continue_is_answered_and_refusals_need_no_body(self):
    body = json.dumps(SHORT).encode()
    head = f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n".encode()
    with self.socket() as s:
      s.sendall(POST + head)
      self.assertEqual(s.recv(100), b"HTTP/1.1 100 Continue\r\n\r\n")
      s.sendall(body)
      self.assertEqual(status_of(read_all(s)), 200)
    refused = lambda: self.metrics().get('hunch:http_responses_total{status="404"}', 0)
    before = refused()
    data = self.raw(b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: mine\r\n" + head)
    self.assertEqual((status_of(data), refused() - before), (404, 1))
    self.assertIn(b"X-Request-Id: mine\r\n", data)

  def test_compressed_and_multipart_bodies_are_415(self):
    for status, header, value in ((415, "Encoding", "gzip"), (200, "Encoding", "identity"), (415, "Type", "multipart/form-data; boundary=x"),
        (200, "Type", "application/x-www-form-urlencoded")):
      self.assertEqual(self.ask(SHORT, headers={"Content-" + header: value})[0], status)

  def test_tls_and_http_2_are_closed_at_once(self):
    start = time.monotonic()
    self.assertEqual(self.raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"), b"")
    self.assertEqual(self.raw(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), b"")
    self.assertLess(time.monotonic() - start, 2)

  def test_pipelined_requests_are_answered_in_order(self):
    requests = b"".join(get_bytes("/health" if i % 3 else "/nothing") for i in range(999)) + get_bytes("/health", close=True)
    statuses = [int(part[:3]) for part in self.raw(requests).split(b"HTTP/1.1 ")[1:]]
    self.assertEqual(statuses, [200 if i % 3 else 404 for i in range(999)] + [200])

  def test_generations_can_be_pipelined_too(self):
    first, second = {**SHORT, "max_tokens": 3}, {**SHORT, "max_tokens": 2}
    data = self.raw(completion_bytes(first, close=False) + completion_bytes(second))
    bodies = [json.loads(part.split(b"\r\n\r\n", 1)[1]) for part in data.split(b"HTTP/1.1 ")[1:]]
    self.assertEqual([b["usage"]["completion_tokens"] for b in bodies], [3, 2])

  def test_what_came_before_the_end_of_input_is_answered(self):
    with self.socket(20) as s:
      s.sendall(completion_bytes({**LONG, "max_tokens": 100}, close=False) + b"\r")
      time.sleep(0.05)
      s.sendall(b"\n" + get_bytes("/health") * 2)
      s.shutdown(socket.SHUT_WR)
      self.assertEqual(read_all(s).count(b"HTTP/1.1 200"), 3)

  def test_request_ids_are_echoed_if_printable_and_short(self):
    status, headers, _ = self.get("/health", headers={"X-Request-Id": "abc-1:2"})
    self.assertEqual(headers["X-Request-Id"], "abc-1:2")
    for bad in ("x" * 129, "a b", "a\x01b", "caf\xe9"):
      answer = self.raw(get_bytes("/health", close=True, extra=f"X-Request-Id: {bad}\r\n"))
      self.assertNotIn(b"X-Request-Id: " + bad.encode("latin-1"), answer)
    first, second = (self.get("/health")[1]["X-Request-Id"] for _ in range(2))
    self.assertNotEqual(first, second)

  def test_a_page_of_another_origin_is_refused(self):
    status, headers, body = self.get("/health", headers={"Origin": "https://evil.example"})
    self.assertEqual(status, 403)
    self.assertIsNone(headers["Access-Control-Allow-Origin"])
    same = f"http://127.0.0.1:{self.port}"
    status, headers, _ = self.get("/health", headers={"Origin": same})
    self.assertEqual((status, headers["Access-Control-Allow-Origin"]), (200, same))
    status, headers, _ = self.request("OPTIONS", "/v1/completions", headers={"Origin": same, "Access-Control-Request-Method": "POST"})
    self.assertEqual((status, headers["Access-Control-Allow-Methods"], headers["Allow"]), (204, "GET, HEAD, POST, OPTIONS", "POST, OPTIONS"))

  def test_a_name_that_was_made_to_mean_loopback_is_refused(self):
    for host, status in (("evil.example", 403), ("evil.example:8000", 403), ("localhost:1", 200), ("127.0.0.1", 200), ("[::1]:8000", 200)):
      self.says(status, f"GET /health HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode(), host)

  def test_a_half_closed_client_is_still_answered(self):
    for extra in ({}, {"stream": True}):
      with self.asking({**SHORT, "max_tokens": 40, **extra}) as s:
        s.shutdown(socket.SHUT_WR)
        data = read_all(s)
      if data.startswith(b"HTTP/1.1 100"):
        data = body_of(data)[1]
      self.assertEqual(status_of(data), 200)
      self.assertIn(b'"finish_reason":"length"', data)

  def test_http_1_0_streams_end_with_the_connection(self):
    body = json.dumps({**SHORT, "stream": True}).encode()
    data = self.raw(b"POST /v1/completions HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    self.assertNotIn(b"Transfer-Encoding", data)
    self.assertEqual(events(body_of(data)[1])[-1], "[DONE]")

  def test_a_client_that_leaves_frees_its_request(self):
    drafts = {**LONG, "speculative_config": {"method": "self", "num_speculative_tokens": 7}}
    for body in (STREAM, LONG, {**drafts, "stream": True}, drafts):
      with self.asking(body):
        self.running()
      self.until(self.idle, 1)
    self.assertGreaterEqual(self.metric("hunch:requests_cancelled_total"), 2)
    self.assertGreaterEqual(self.metrics()['hunch:http_responses_total{status="499"}'], 2)
    aborted = 'vllm:request_success_total{model_name="wren-34m",engine="0",finished_reason="abort"}'
    self.until(lambda: self.metrics()[aborted] >= 4)

  def test_of_what_comes_behind_a_request_little_is_read(self):
    with self.asking(STREAM) as s:
      self.running()
      s.settimeout(0.5)
      with self.assertRaises(OSError):
        s.sendall(bytes(1 << 26))

  def test_mutated_requests_harm_nobody_and_leave_nothing_behind(self):
    random.seed(1)
    before = self.metric("process_open_fds")
    whole = completion_bytes(SHORT)
    for _ in range(300):
      data = mangled(whole, random)
      with self.socket() as s:
        s.sendall(data)
        s.shutdown(socket.SHUT_WR)
        answer = read_all(s)
        self.assertTrue(answer == b"" or answer.startswith(b"HTTP/1.1 "), data)
    self.until(self.idle, 5)
    self.until(lambda: self.metric("process_open_fds") <= before, 5)


class Queue(ServerTest):
  FLAGS = ("-np", "1", "--max-num-queued-reqs", "2")

  def test_a_queued_client_that_leaves_cancels_nobody_else_and_a_full_queue_is_429(self):
    served = self.served
    waits = lambda count: lambda: served.metric("vllm:num_requests_waiting") == count
    running = served.asking({**LONG, "max_tokens": 600})
    served.running()
    leaver = served.asking(SHORT)
    served.until(waits(1))
    waiter = served.asking(SHORT)
    served.until(waits(2))
    status, headers, body = served.ask(SHORT)
    self.assertEqual((status, self.error(body)["code"]), (429, "queue_full"))
    self.assertGreaterEqual(int(headers["Retry-After"]), 1)
    leaver.close()
    served.until(waits(1), 1)
    answers = answers_of((running, waiter))
    self.assertEqual([status_of(a) for a in answers], [200, 200])
    self.assertIn(b'"completion_tokens":600', answers[0])
    served.until(served.idle, 2)
    self.assertEqual(served.metric("vllm:admission_rejections_total"), 1)


class Limits(ServerTest):
  FLAGS = ("--header-timeout", "0.6", "--idle-timeout", "0.6", "--min-body-rate", "100000", "--max-connections-per-address", "20",
      "--stall-timeout", "1", "--max-unsent-bytes", "4096", "--max-body-bytes", "100000", "--timeout", "6", "--sse-ping-interval", "0.3",
      "--max-pending-bytes", "50000")

  def test_slow_headers_are_408_and_silence_is_closed(self):
    self.says(408, b"GET /health HT")
    start = time.monotonic()
    self.assertEqual(self.raw(b""), b"")
    self.assertLess(time.monotonic() - start, 3)
    self.assertTrue(self.raw(get_bytes("/health")).endswith(b'{"status":"ok"}'))  # used, then idle

  def test_a_body_that_comes_too_slowly_is_408(self):
    self.says(408, POST + b"Content-Length: 90000\r\n\r\n{" + b" " * 70000)  # what came first buys no silence later
    data = completion_bytes(b'{"prompt":"x","max_tokens":1}'.ljust(90000))
    with self.socket() as s:
      s.sendall(data[:70000])
      time.sleep(0.9)
      s.sendall(data[70000:])
      self.assertEqual(status_of(read_all(s)), 200)
    self.assertGreaterEqual(self.refusals("slow_body"), 1)

  def test_a_body_above_the_limit_is_413(self):
    self.says(413, completion_bytes(b"x" * 100001))

  def test_bodies_that_wait_to_be_read_are_429_beyond_a_limit_but_for_the_first(self):
    sockets = [self.asking({"prompt": "sea captain " * 7000}) for _ in range(12)]
    self.assertEqual({status_of(a) for a in answers_of(sockets)}, {400, 429})
    self.assertEqual(len(self.complete(max_tokens=3)["choices"]), 1)

  def test_an_address_may_have_so_many_connections(self):
    held = [self.socket() for _ in range(20)]
    try:
      status, body = body_of(self.raw(b""))
      self.assertEqual(status, 503)
      self.error(body, code="too_many_connections")
    finally:
      for s in held:
        s.close()
    self.until(lambda: status_of(self.raw(get_bytes("/health", close=True))) == 200)

  def test_a_client_that_reads_nothing_is_cancelled_and_others_run(self):
    with self.asking({**STREAM, "logprobs": 20}, receive_buffer=4096):
      self.running()
      self.assertEqual(len(self.complete(max_tokens=8)["choices"]), 1)
      self.until(lambda: self.refusals("client_stalled") == 1, 15)
    self.until(self.idle, 2)


class SlowReader(ServerTest):
  FLAGS = ("--max-unsent-bytes", "4096")

  def test_a_stream_goes_on_when_its_client_reads_again(self):
    stream = self.asking({**STREAM, "logprobs": 20}, receive_buffer=4096)
    self.running()
    time.sleep(2)
    self.assertIn(b"[DONE]", answers_of((stream,))[0][-60:])


class FewWorkers(ServerTest):
  FLAGS = ("--workers", "1", "--max-num-queued-reqs", "2")

  def test_floods_of_texts_to_tokenize_are_429_and_harm_nobody(self):
    body = {"content": " ".join(["sea captain"] * 2000)}
    sockets = [self.socket(60) for _ in range(60)]
    for s in sockets:
      s.sendall(post_bytes("/tokenize", body))
    answers = answers_of(sockets)
    self.assertEqual({status_of(a) for a in answers}, {200, 429})
    self.assertIn(b'"code":"queue_full"', next(a for a in answers if status_of(a) == 429))
    self.assertEqual(len(self.complete(max_tokens=3)["choices"]), 1)


class TimeLimit(ServerTest):
  FLAGS = ("--timeout", "1.5", "--sse-ping-interval", "0.1", "-np", "1")

  def test_requests_have_a_time_limit_and_streams_that_wait_are_pinged(self):
    streaming = self.asking(STREAM)
    self.running()
    waiting, whole = self.asking(STREAM), self.asking({**LONG, "timeout": 60})
    streamed, waited, answer = answers_of((streaming, waiting, whole))
    for data in (streamed, waited):
      self.assertEqual(last_error(data.replace(b"\r\n", b"\n")), "timeout")
    self.assertGreater(waited.count(b": ping"), 1)
    self.assertEqual(status_of(answer), 504)
    self.until(self.idle, 2)
    start = time.time()
    self.assertEqual(status_of(answers_of((self.asking(dict(LONG, timeout=0.3)),))[0]), 504)
    self.assertLess(time.time() - start, 1.4)


class Descriptors(unittest.TestCase):
  def test_a_server_out_of_descriptors_says_so_and_recovers(self):
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, limit[1]))
    try:
      served = Served()
    finally:
      resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    try:
      held = [served.socket() for _ in range(80)]
      refused = 0
      for s in held:
        s.settimeout(0.2)
        try:
          refused += status_of(s.recv(4096)) == 503
        except (TimeoutError, socket.timeout):
          pass
      self.assertGreater(refused, 5)
      for s in held:
        s.close()
      served.until(lambda: status_of(served.raw(get_bytes("/health", close=True))) == 200)
      self.assertGreater(served.refusals("no_descriptors"), 5)
    finally:
      served.kill()


if __name__ == "__main__":
  unittest.main()
