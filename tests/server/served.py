"""What the tests of the server share: a server as a child process, and plain sockets to talk to it.

HUNCH names the program (default: build/release/hunch), HUNCH_MODEL the model (default: models/wren-34m.gguf).
"""
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import threading
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get("HUNCH", str(ROOT / "build/release/hunch"))
MODEL = os.environ.get("HUNCH_MODEL", str(ROOT / "models/wren-34m.gguf"))
PROMPT = "The captain looked at the"
LONG = {"prompt": PROMPT, "max_tokens": 1900, "temperature": 0, "ignore_eos": True, "speculative_config": {"method": "none"}}


class Served:
  """`hunch serve` on a free port of 127.0.0.1, from the moment it is ready."""

  def __init__(self, *flags, model=MODEL, environment=None, wait=True):
    env = {**os.environ, "XDG_CACHE_HOME": str(ROOT / "build/cache"), **(environment or {})}
    command = [BINARY, "serve", *(["-m", model] if model else []), "--port", "0", "-c", "2048", "-t", "1", *flags]
    self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)
    self.log = []
    self.reader = threading.Thread(target=self._read_log, daemon=True)
    self.reader.start()
    if wait:
      line = self.process.stdout.readline().decode()
      if not line.startswith("listening on "):
        self.process.wait(10)
        self.reader.join(5)
        raise AssertionError(f"not ready: {line!r}, exit {self.process.returncode}: {''.join(self.log)}")
      self.url = line.split()[2]
      self.port = int(self.url.rsplit(":", 1)[1])

  def _read_log(self):
    for line in self.process.stderr:
      self.log.append(line.decode(errors="replace"))

  def stop(self, sig=signal.SIGTERM, timeout=20):
    if self.process.poll() is None:
      self.process.send_signal(sig)
    code = self.process.wait(timeout)
    self.reader.join(5)
    self.process.stdout.close()
    self.process.stderr.close()
    return code

  def kill(self):
    self.stop(signal.SIGKILL)

  # --- requests
  def request(self, method, path, body=None, headers=None, timeout=60):
    """(status, headers, body) of one request on a connection of its own; a dict as body goes as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
    try:
      if isinstance(body, (dict, list)):
        body = json.dumps(body)
      connection.request(method, path, body, {"Content-Type": "application/json", **(headers or {})} if body is not None else headers or {})
      response = connection.getresponse()
      return response.status, response.headers, response.read()
    finally:
      connection.close()

  def get(self, path, **more):
    return self.request("GET", path, **more)

  def post(self, path, body, **more):
    status, headers, text = self.request("POST", path, body, **more)
    return status, headers, json.loads(text)

  def ask(self, body, **more):
    return self.post("/v1/completions", body, **more)

  def complete(self, **body):
    status, _, answer = self.ask({"prompt": PROMPT, "temperature": 0, "max_tokens": 12, **body})
    assert status == 200, answer
    return answer

  def socket(self, timeout=20, receive_buffer=None):
    s = socket.socket()
    if receive_buffer:
      s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    s.settimeout(timeout)
    s.connect(("127.0.0.1", self.port))
    return s

  def asking(self, body, timeout=60, **more):
    """A socket on which a completion was asked for."""
    s = self.socket(timeout, **more)
    s.sendall(completion_bytes(body))
    return s

  def raw(self, data, timeout=20):
    """All bytes that come back for these until the server closes; the sending half stays open."""
    with self.socket(timeout) as s:
      s.sendall(data)
      return read_all(s)

  def metrics(self):
    """{name with labels: value}"""
    lines = self.get("/metrics")[2].decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))}

  def metric(self, name):
    return sum(v for k, v in self.metrics().items() if k.split("{")[0] == name)

  def refusals(self, reason):
    return self.metrics().get(f'hunch:refusals_total{{reason="{reason}"}}', 0)

  def until(self, condition, seconds=10):
    """Polls; returns the seconds it took, or fails."""
    start = time.monotonic()
    while not condition():
      if time.monotonic() - start > seconds:
        raise AssertionError("it did not happen in time")
      time.sleep(0.01)
    return time.monotonic() - start

  def running(self, count=1):
    self.until(lambda: self.metric("vllm:num_requests_running") == count)

  def idle(self):
    m = self.metrics()
    total = lambda name: sum(v for k, v in m.items() if k.split("{")[0] == name)
    return total("vllm:num_requests_running") == 0 and total("vllm:num_requests_waiting") == 0 and total("hunch:kv_pages_used") == 0


def read_all(s):
  data = b""
  while True:
    try:
      piece = s.recv(65536)
    except ConnectionResetError:
      return data
    if not piece:
      return data
    data += piece


def answers_of(sockets):
  """All that comes on each of them, in their order; closes them."""
  answers = [read_all(s) for s in sockets]
  for s in sockets:
    s.close()
  return answers


def mangled(data, r):
  """A request with bytes changed, left out and put in."""
  data = bytearray(data)
  for _ in range(r.randint(1, 6)):
    at = r.randrange(len(data))
    if r.random() < 0.5:
      data[at] = r.randrange(256)
    else:
      data[at:at + r.randrange(9)] = bytes(r.randrange(256) for _ in range(r.choice((0, r.randrange(9)))))
  return bytes(data)


def post_bytes(path, body, extra="", close=True):
  text = json.dumps(body).encode() if isinstance(body, dict) else body
  head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(text)}\r\n{extra}"
  return (head + ("Connection: close\r\n" if close else "") + "\r\n").encode() + text


def completion_bytes(body, close=True):
  return post_bytes("/v1/completions", body, close=close)


def get_bytes(path, close=False, extra=""):
  return (f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{extra}" + ("Connection: close\r\n" if close else "") + "\r\n").encode("latin-1")


def status_of(data):
  return int(data.split(b" ", 2)[1]) if data.startswith(b"HTTP/1.1 ") else None


def body_of(data):
  """(status, body) of one answer, chunked or not; the status None where it was cut."""
  head, _, rest = data.partition(b"\r\n\r\n")
  if b"Transfer-Encoding: chunked" not in head:
    return status_of(data), rest
  out = b""
  while rest:
    size, _, rest = rest.partition(b"\r\n")
    n = int(size or b"0", 16)
    if n == 0:
      return status_of(data), out
    out, rest = out + rest[:n], rest[n + 2:]
  return None, out


def events(body):
  """The data of a stream's events; comments are left out."""
  return [line[6:] for line in body.decode().splitlines() if line.startswith("data: ")]


def last_error(stream):
  """The code of the last error of a stream."""
  return json.loads([e for e in events(stream) if "error" in e][-1])["error"]["code"]


def serve(test, *flags, **more):
  """A server that ends with the test."""
  served = Served(*flags, **more)
  test.addCleanup(served.kill)
  return served


class ServerTest(unittest.TestCase):
  """One server for all tests of a class: self.get() is self.served.get(), and so on."""

  FLAGS = ()

  def __getattr__(self, name):
    return getattr(type(self).served, name)

  @classmethod
  def setUpClass(cls):
    cls.served = Served(*cls.FLAGS)

  @classmethod
  def tearDownClass(cls):
    cls.served.kill()

  def error(self, answer, code=None, param=None):
    """The error object of an answer's body, after the shape was checked."""
    if isinstance(answer, bytes):
      answer = json.loads(answer)
    self.assertEqual(list(answer), ["error"])
    self.assertEqual(set(answer["error"]), {"message", "type", "param", "code"})
    if code is not None:
      self.assertEqual(answer["error"]["code"], code)
    if param is not None:
      self.assertEqual(answer["error"]["param"], param)
    return answer["error"]

  def says(self, status, data, what=None):
    """These bytes get that status."""
    self.assertEqual(status_of(self.served.raw(data)), status, what)
