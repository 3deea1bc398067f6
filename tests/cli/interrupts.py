"""Ctrl-C, termination, and readers that go away."""
import os
import signal
import subprocess
import time

from program import expect, stopped

ENDLESS = ["-p", "The captain looked at the", "--ignore-eos"]


def started(hunch, *flags, size=1):
  """A run that has printed its first bytes."""
  child = hunch.start("run", "-m", hunch.model, *ENDLESS, *flags)
  assert child.stdout.read(size), child.stderr.read()
  return child


def test_ctrl_c_stops_cleanly_with_statistics(hunch):
  for sig, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
    stopped(started(hunch), b"statistics", b"interrupted", sig=sig, code=code)


def test_ctrl_c_while_speculating(hunch):
  stopped(started(hunch, "--spec", "self", size=60), b"draft acceptance rate")


def test_ctrl_c_ends_a_measurement_between_passes(hunch):
  child = hunch.start("bench", "-m", hunch.model, "-p", "0", "-n", "30000", "-r", "1")  # minutes
  time.sleep(0.5)
  stopped(child)


def test_the_second_ctrl_c_ends_at_once(hunch):
  child = started(hunch)
  for _ in range(50):  # until it is gone: the first stops cleanly, any later one kills
    try:
      child.send_signal(signal.SIGINT)
    except ProcessLookupError:
      break
    if child.poll() is not None:
      break
    time.sleep(0.001)
  child.communicate(timeout=20)
  assert child.returncode == 130, child.returncode


def test_a_reader_that_goes_away_ends_the_run_quietly(hunch):
  child = started(hunch)
  child.stdout.close()
  err = child.stderr.read()
  assert child.wait(20) == 0 and err == b"", (child.returncode, err)


def test_a_full_disk_is_an_error(hunch):
  if not os.path.exists("/dev/full"):
    return
  text = hunch.file("some.txt", b"some words to measure " * 40)
  for command in [["info", hunch.model], ["bench", "-p", "8", "-n", "4", "-r", "1"], ["eval", "perplexity", text, "--contexts", "64"]]:
    with open("/dev/full", "wb") as full:
      done = subprocess.run([hunch.binary, *command], stdout=full, stderr=subprocess.PIPE, timeout=20, env=hunch.environment())
    assert done.returncode == 1 and b"cannot write to the standard output" in done.stderr, done
  expect(hunch.run("-p", "a", "-n", "2", "--trace", "/dev/full"), 1, "cannot write the trace")


def test_nobody_need_listen_to_notes(hunch):
  for redirected, code in [("2>&-", 0), ("2>/dev/full", 0), ("--foo 2>&-", 2), ("2>&1 >/dev/null | true; exit ${PIPESTATUS[0]}", 0)]:
    line = f"'{hunch.binary}' run -p a -n 2 --stats {redirected}"
    assert subprocess.run(["bash", "-c", line], stdout=subprocess.PIPE, timeout=20, env=hunch.environment()).returncode == code, line


def test_what_is_read_is_not_written_over(hunch):
  text, link = hunch.file("kept.txt", b"kept"), os.path.join(hunch.folder, "link")
  os.symlink(text, link)
  for command in [["run", "-f", text, "--trace", text], ["run", "-f", text, "--trace", link],
      ["tune", text, "--calibrate-verify", text], ["report", text, "-o", text],
      ["tune", "x", "-md", text, "--out", text], ["eval", "perplexity", text, "--trace=" + text]]:
    expect(hunch(*command), 2, "the output would overwrite the input")
  expect(hunch("batch", text, "-o", "new", "--trace", "./new"), 2, "named twice")
  expect(hunch("run", "-p", "x", "--file=", "--trace", "new"), 2, "exclude each other")
  with open(text, "rb") as file:
    assert file.read() == b"kept"


def test_an_interrupted_quantize_leaves_no_file(hunch):
  out = os.path.join(hunch.folder, "interrupted.gguf")
  child = hunch.start("quantize", hunch.model, out, "--type", "q4_k")
  time.sleep(0.05)
  child.send_signal(signal.SIGINT)
  child.communicate(timeout=60)
  if child.returncode == 130:
    assert not [n for n in os.listdir(hunch.folder) if n.startswith("interrupted")], os.listdir(hunch.folder)
  else:
    assert child.returncode == 0 and os.path.exists(out), child.returncode  # it was faster


def test_ctrl_c_in_chat_stops_the_answer_only(hunch):
  child = hunch.start("chat", "-m", hunch.model, "--ignore-eos", "--temp", "0", stdin=subprocess.PIPE)
  child.stdin.write(b"Hello.\n")
  child.stdin.flush()
  assert child.stdout.read(1)
  child.send_signal(signal.SIGINT)
  child.stdin.write(b"/stats\n/exit\n")
  child.stdin.close()
  child.stdin = None
  _, err = child.communicate(timeout=20)
  assert child.returncode == 0 and b"interrupted" in err, (child.returncode, err)
