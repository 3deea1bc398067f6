"""The binary under test, and the few assertions that the tests share."""
import json
import os
import signal
import subprocess
import tempfile


class Result:
  def __init__(self, code, out, err):
    self.code, self.out, self.err = code, out, err

  def __repr__(self):
    return f"exit {self.code}\nstdout: {self.out[-600:]!r}\nstderr: {self.err[-600:]!r}"


class Hunch:
  def __init__(self, binary, model):
    self.binary, self.model = binary, model
    self.folder = tempfile.mkdtemp(prefix="hunch-cli-")

  def environment(self, **changes):
    # Nothing of the caller's wishes about colour may decide a test; None removes a variable. Commands without -m find the model.
    env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "CLICOLOR_FORCE")} | {"HUNCH_MODEL": self.model}
    env.update({k: v for k, v in changes.items() if v is not None})
    return env

  def __call__(self, *arguments, stdin=b"", timeout=120, env=None):
    done = subprocess.run([self.binary, *map(str, arguments)], input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        timeout=timeout, env=self.environment(**(env or {})))
    return Result(done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))

  def json(self, *arguments, **options):
    """The one object or list that a command that ends well prints."""
    result = self(*arguments, **options)
    assert result.code == 0, result
    return json.loads(result.out)

  def lines(self, *arguments, **options):
    """The objects of JSON lines."""
    result = self(*arguments, **options)
    assert result.code == 0 and result.out.endswith("\n"), result
    return [json.loads(line) for line in result.out[:-1].split("\n")]

  def run(self, *arguments, **options):
    return self("run", "-m", self.model, *arguments, **options)

  def run_json(self, *arguments, **options):
    [answer] = self.lines("run", "-m", self.model, "--json", *arguments, **options)
    return answer

  def greedy(self, *arguments, **options):
    return self.run_json("--ignore-eos", "--temp", "0", *arguments, **options)

  def bench(self, *flags):
    return self("bench", "-m", self.model, *flags)

  def start(self, *arguments, **options):
    return subprocess.Popen([self.binary, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=self.environment(), **options)

  def file(self, name, data):
    path = os.path.join(self.folder, name)
    with open(path, "wb") as f:
      f.write(data)
    return path


def record_book():
  return "".join(f"Record {i}: item {i * 7919 % 1000}, shelf {i % 17}. " for i in range(60))


def stopped(child, *said, sig=signal.SIGINT, code=130):
  """The child ends at a signal, and says so."""
  child.send_signal(sig)
  _, err = child.communicate(timeout=20)
  assert child.returncode == code and all(part in err for part in said), (child.returncode, err)


def expect(result, code, message):
  assert result.code == code and message in result.err, f"wanted exit {code} and {message!r}, got {result!r}"
  assert result.err.startswith("hunch: "), result
  assert result.out == "", result
