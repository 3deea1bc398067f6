#!/usr/bin/env python3
"""The life of `hunch serve`: settings and where they come from, keys, start, signals, drain, logs, what the service manager hears."""
import ctypes
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from served import BINARY, LONG, MODEL, PROMPT, answers_of, body_of, get_bytes, last_error, post_bytes, read_all, serve, status_of

STREAM = {**LONG, "stream": True}


def run(*arguments, environment=None):
  done = subprocess.run([BINARY, "serve", *arguments], capture_output=True, text=True, timeout=30,
      env={**os.environ, **(environment or {})})
  return done.returncode, done.stdout, done.stderr


class Life(unittest.TestCase):
  start = serve

  def refused(self, said, *arguments, code=2):
    left, _, err = run(*arguments)
    self.assertEqual(left, code)
    self.assertIn(said, err)

  def greeted(self, served):
    """A connection on which a request was answered."""
    s = served.socket()
    s.sendall(get_bytes("/health"))
    s.recv(4096)
    return s

  def folder(self):
    folder = tempfile.TemporaryDirectory()
    self.addCleanup(folder.cleanup)
    return pathlib.Path(folder.name)

  # signals
  def test_sigterm_lets_requests_end_and_exits_0(self):
    served = self.start()
    streaming, whole = served.asking({**STREAM, "max_tokens": 300}), served.asking({**LONG, "max_tokens": 200})
    served.running(2)
    idle = self.greeted(served)
    served.process.send_signal(signal.SIGTERM)
    served.until(lambda: served.get("/health")[0] == 503)
    self.assertEqual(answers_of((idle,)), [b""])  # closed while others are still answered
    status, headers, body = served.ask({"prompt": PROMPT})
    self.assertEqual((status, body["error"]["code"], headers["Connection"]), (503, "server_shutdown", "close"))
    self.assertIn("Retry-After", headers)
    streamed, answered = answers_of((streaming, whole))
    self.assertTrue(streamed.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"))
    self.assertIn(b'"completion_tokens":200', answered)
    self.assertEqual(served.process.wait(10), 0)

  def test_what_runs_too_long_is_told_of_the_shutdown(self):
    served = self.start("--shutdown-timeout", "0.3")
    streaming, whole = served.asking(STREAM), served.asking(LONG)
    served.running(2)
    self.assertEqual(served.stop(signal.SIGTERM), 0)
    streamed, answered = answers_of((streaming, whole))
    self.assertEqual(last_error(streamed), "server_shutdown")
    status, answer = body_of(answered)
    self.assertEqual(status, 503)
    self.assertIn(b"server_shutdown", answer)

  def test_an_answer_is_written_to_its_end_before_the_server_leaves(self):
    large = {"prompt": [300] * 900, "n": 12, "echo": True, "logprobs": 20, "max_tokens": 0}
    for flags, close in (((), True), ((), False), (("--idle-timeout", "0.2"), False)):  # kept alive it is no idle connection
      served = self.start(*flags)
      with served.socket(60, receive_buffer=4096) as s:
        s.sendall(post_bytes("/v1/completions", large, close=close))
        s.recv(1)
        if not flags:
          served.process.send_signal(signal.SIGTERM)
        time.sleep(0.8)
        self.assertTrue((data := b"H" + read_all(s)).rstrip().endswith(b"}"), (flags, close))
        self.assertEqual(status_of(data), 200)

  def test_a_second_signal_ends_at_once(self):
    for sig in (signal.SIGTERM, signal.SIGINT):
      served = self.start()
      with served.asking(STREAM):
        served.running()
        served.process.send_signal(sig)
        served.until(lambda: served.get("/health")[0] == 503)
        self.assertEqual(served.stop(sig, 3), 128 + sig)

  def test_an_idle_server_ends_at_once_and_sigint_is_130(self):
    served = self.start()
    with self.greeted(served):  # an idle connection holds nothing up
      start = time.monotonic()
      self.assertEqual(served.stop(signal.SIGINT), 130)
      self.assertLess(time.monotonic() - start, 3)

  def test_sighup_reads_keys_and_log_again_and_sigusr1_tells_the_state(self):
    folder = self.folder()
    keys, log = folder / "keys", folder / "log"
    keys.write_text("# ours\nkey-first\n")
    served = self.start("--api-key-file", str(keys), "--log-file", str(log), "--log-jsonl")
    ask = lambda key: served.get("/version", headers={"Authorization": f"Bearer key-{key}"})[0]
    self.assertEqual([ask("first"), ask("second")], [200, 401])
    old = log.rename(folder / "old")
    keys.write_text("key-second\n")
    served.process.send_signal(signal.SIGHUP)
    served.until(lambda: ask("second") == 200)
    self.assertEqual(ask("first"), 401)
    keys.write_text("")  # no key at all would open the server: the keys stay
    served.process.send_signal(signal.SIGHUP)
    served.process.send_signal(signal.SIGUSR1)
    served.until(lambda: log.exists() and '"message":"state"' in log.read_text())
    self.assertEqual([ask("first"), ask("second")], [401, 200])
    served.until(lambda: '"message":"thread"' in log.read_text())
    self.assertIn('"doing":"nothing"', log.read_text())
    text = log.read_text() + old.read_text()
    self.assertIn("the keys stay as they were", text)
    for line in text.splitlines():
      self.assertLessEqual({"time", "level", "message"}, set(json.loads(line)))
    for secret in ("key-first", "key-second", PROMPT):
      self.assertNotIn(secret, text)

  def test_an_engine_that_stands_still_is_told_and_ends_the_process(self):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    served = self.start("--stuck-after", "1", "--watchdog", "4")
    with served.asking({**LONG, "n": 16}):
      served.until(lambda: served.metric("vllm:num_requests_running") > 0)
      tasks = pathlib.Path(f"/proc/{served.process.pid}/task").iterdir()
      thread = next(int(task.name) for task in tasks if (task / "comm").read_text() == "hunch engine\n")
      seize, interrupt, go_on, every_child = 0x4206, 0x4207, 7, 0x40000000
      if libc.ptrace(seize, thread, None, None) != 0:
        self.skipTest("no thread can be stopped here: " + os.strerror(ctypes.get_errno()))
      def gone():
        try:
          return os.waitpid(thread, every_child | os.WNOHANG)[0]
        except ChildProcessError:
          return True
      self.addCleanup(lambda: (served.process.kill(), served.until(gone)))
      def stopped():
        """Not where it holds a lock that /health waits for."""
        libc.ptrace(interrupt, thread, None, None)
        os.waitpid(thread, every_child)
        with served.socket() as s:
          s.settimeout(0.3)
          s.sendall(get_bytes("/health"))
          try:
            return s.recv(99)
          except TimeoutError:
            libc.ptrace(go_on, thread, None, None)
      served.until(stopped)
      served.until(lambda: served.get("/health")[0] == 503, 4)
      self.assertEqual(json.loads(served.get("/health")[2])["error"]["code"], "engine_stuck")
      served.until(gone, 15)
      self.assertEqual(served.process.wait(10), 70)
    served.reader.join(5)
    log = "".join(served.log)
    self.assertRegex(log, "heartbeat.*doing=.*(pass|drafting|stays|tokens)")
    self.assertIn("hunch engine", log)

  # start
  def test_a_port_in_use_is_an_error_that_names_its_owner(self):
    served = self.start()
    code, out, err = run("-m", MODEL, "--port", str(served.port))
    self.assertEqual((code, out), (1, ""))
    self.assertIn(f"address in use by pid {served.process.pid}", err)

  def test_health_tells_of_loading_before_a_model_that_cannot_be_loaded(self):
    self.refused("use suffix, ngram or a loaded drafter", "-m", MODEL.replace("34m", "nsa-8m"), "--spec", "self", "--port", "0")
    self.refused("--log-file: cannot write to /nowhere/log", "-m", MODEL, "--log-file", "/nowhere/log", "--port", "0")
    self.refused("/nowhere/model.gguf", "-m", "/nowhere/model.gguf", "--port", "0", code=1)

  def test_while_the_model_loads_requests_and_health_are_503(self):
    with socket.socket() as free:
      free.bind(("127.0.0.1", 0))
      port = free.getsockname()[1]
    served = self.start("--port", str(port), wait=False)
    served.port = port
    seen = []
    while not seen or seen[-1][0] != 200:
      try:
        seen.append(served.get("/health")[::2] if len(seen) % 2 == 0 else served.request("POST", "/v1/completions", '{"prompt":"x"}')[::2])
      except ConnectionRefusedError:
        time.sleep(0.001)
    for status, body in seen[:-1]:
      self.assertEqual((status, json.loads(body)["error"]["code"]), (503, "loading"))
    self.assertGreater(len(seen), 2)

  def test_a_unix_socket_serves_too(self):
    path = str(self.folder() / "hunch.sock")
    for _ in range(2):  # the second time the first one's socket lies there
      served = self.start("--host", path, "--max-connections", "2", "--max-connections-per-address", "1", wait=False)
      self.assertEqual(served.process.stdout.readline().decode(), f"listening on unix:{path}\n")
      idle, asking, third = sockets = [socket.socket(socket.AF_UNIX) for _ in range(3)]
      for s in sockets:
        s.connect(path)
      asking.sendall(get_bytes("/health", close=True))
      self.assertEqual([status_of(a) for a in answers_of((asking, third))], [200, 503])
      idle.close()
      self.assertEqual(run("-m", MODEL, "--host", path)[0], 1)
      served.kill()

  def test_the_service_manager_hears_ready_life_and_stopping(self):
    path = str(self.folder() / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
      manager.bind(path)
      manager.settimeout(5)
      served = self.start(environment={"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "2000000"})
      self.assertTrue(manager.recv(1000).startswith(b"READY=1"))
      self.assertEqual(manager.recv(1000), b"WATCHDOG=1")
      served.stop()
      said = [manager.recv(1000)]
      while said[-1] != b"STOPPING=1":
        said.append(manager.recv(1000))

  def test_descriptors_are_not_inherited(self):
    served = self.start()
    with self.greeted(served):
      for fd in pathlib.Path(f"/proc/{served.process.pid}/fd").iterdir():
        if int(fd.name) < 3:
          continue
        flags = pathlib.Path(f"/proc/{served.process.pid}/fdinfo/{fd.name}").read_text()
        octal = next(line.split()[1] for line in flags.splitlines() if line.startswith("flags:"))
        self.assertTrue(int(octal, 8) & os.O_CLOEXEC, os.readlink(fd))

  # settings
  def test_command_line_wins_over_environment_over_file(self):
    folder = self.folder()
    for name, text in (("c.yaml", "# limits\nmax-body-bytes: 5000\nmax_headers: 50   # few\nheader-timeout: '7'\nserved-model-name:\n  - a\n  - b\n"),
                       ("f.yaml", "max-body-bytes: 5000\nmax_headers: 50\nheader-timeout: 7\nserved-model-name: [a, 'b']\n"),
        ("c.json", '{"max_body_bytes": 5000, "max-headers": 50, "header_timeout": 7, "served-model-name": ["a", "b"]}')):
      (folder / name).write_text(text)
      code, out, err = run("--config", str(folder / name), "--max-headers", "70", "--print-limits",
          environment={"HUNCH_MAX_HEADERS": "many", "HUNCH_HEADER_TIMEOUT": "8", "LLAMA_ARG_TIMEOUT": "99",
          "LLAMA_ARG_HEADER_TIMEOUT": "9", "HUNCH_MAX_BODY_BYTES": "", "HUNCH_NO_SUCH_FLAG": "1"})
      self.assertEqual(code, 0, err)
      values = {line.split()[0]: line.split()[1] for line in out.splitlines()}
      self.assertEqual([values[f"--{n}"] for n in ("max-body-bytes", "max-headers", "header-timeout", "timeout")],
          ["5000", "70", "8", "99"])
    for text, said in (("max-hedaers: 5", "did you mean --max-headers"), ("metrics: maybe", "is a switch"), ("port: 1\nport: 2", "twice"),
        ("a:\n  b: 1", "neither"), ("max-headers: 7", "must be in 8"), ("port: '5 #6'  # x", 'not "5 #6"')):
      (folder / "bad.yaml").write_text(text)
      self.refused(said, "--config", str(folder / "bad.yaml"), "--print-limits")

  def test_flags_of_other_servers_are_taken(self):
    code, _, err = run("--gpu-memory-utilization", "0.9", "--tensor-parallel-size", "1", "--enforce-eager", "-ngl", "99", "-fa", "on",
        "--max-model-len", "1k", "--max-num-seqs", "4", "-np", "-1", "--disable-log-requests", "--cont-batching", "--print-limits")
    self.assertEqual(code, 0, err)
    for flags in ("--tensor-parallel-size 2 --print-limits", "--ssl-keyfile x --print-limits", "-m x -m y -a one --port 0",
        "--api-key , --print-limits"):  # an empty key would let everybody in
      self.assertEqual(run(*flags.split())[0], 2, flags)

  def test_keys_guard_every_route_but_health(self):
    served = self.start("--api-key", "key-one", "--api-key", "key-two", environment={"HUNCH_API_KEY": "key-three"})
    for path in ("/v1/models", "/metrics", "/version", "/props", "/slots", "/tokenize", "/v1/completions", "/nothing", "/openapi.json"):
      bodies = set()
      for headers in ({}, *({"Authorization": "Bearer " + key} for key in ("wrong", "key-three", ""))):
        status, _, body = served.get(path, headers=headers)
        self.assertEqual(status, 401, path)
        bodies.add(body)
      self.assertEqual(len(bodies), 1)
    self.assertEqual(json.loads(bodies.pop())["error"]["type"], "authentication_error")
    self.assertEqual(served.get("/health")[0], 200)
    self.assertEqual(served.request("OPTIONS", "/v1/completions")[0], 204)  # browsers ask without one
    for headers in ({"Authorization": "Bearer key-one"}, {"Authorization": "Bearer key-two"}, {"X-Api-Key": "key-two"}):
      self.assertEqual(served.get("/metrics", headers=headers)[0], 200)
    self.assertNotIn(b"key-", served.get("/props", headers={"X-Api-Key": "key-two"})[2])

  def test_origins_can_be_allowed(self):
    served = self.start(MODEL, "--cors-origins", "https://a.example,https://b.example", "--no-metrics", "--no-slots", model=None,
        environment={"HUNCH_PROPS": "false", "HUNCH_MODEL": "/nowhere"})  # the model that is named is the only one
    for path in ("/metrics", "/slots", "/props"):
      self.assertEqual(served.get(path)[0], 501)
    for name, status in (("a", 200), ("b", 200), ("c", 403)):
      self.assertEqual(served.get("/health", headers={"Origin": f"https://{name}.example"})[0], status)
    self.refused("--cors-origins: 1 is no string", "--cors-origins", '["*",1]')
    everybody = self.start("--cors-origins", '["*"]')
    self.assertEqual(everybody.get("/health", headers={"Origin": "https://c.example"})[1]["Access-Control-Allow-Origin"], "https://c.example")

  def test_a_log_that_nobody_reads_stops_nothing(self):
    read, write = os.pipe()
    process = subprocess.Popen([BINARY, "serve", "-m", MODEL, "--port", "0", "-c", "512", "--log-level", "debug"],
        stdout=subprocess.PIPE, stderr=write)
    os.close(write)
    try:
      port = int(process.stdout.readline().decode().rsplit(":", 1)[1])
      with socket.create_connection(("127.0.0.1", port), 20) as s:
        for _ in range(10):  # the pipe holds 64 KiB, the queue 1 MiB
          s.sendall(get_bytes("/health") * 1500)
          data = b""
          while data.count(b'{"status":"ok"}') < 1500:
            piece = s.recv(1 << 20)
            self.assertTrue(piece)
            data += piece
        s.sendall(get_bytes("/metrics", close=True))
        text = read_all(s).decode()
      dropped = next(float(line.split()[1]) for line in text.splitlines() if line.startswith("hunch:log_lines_dropped_total "))
      self.assertGreater(dropped, 0)
      process.send_signal(signal.SIGTERM)
      self.assertEqual(process.wait(15), 0)
    finally:
      process.kill()
      process.wait()
      process.stdout.close()
      os.close(read)


if __name__ == "__main__":
  unittest.main()
