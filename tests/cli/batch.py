"""hunch batch: answers, bad lines, going on after an interruption at any byte."""
import json
import os
import signal
import subprocess
import time

from program import expect, stopped

GOOD = [dict(id=str(i), prompt=f"Chapter {i}. The captain", max_tokens=6 + i, seed=i, temperature=0.8, ignore_eos=True) for i in range(6)]


def jsonl(lines):
  return "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines).encode()


def batch(hunch, name, lines, *flags, out=None, **options):
  source = hunch.file(name + ".in", jsonl(lines))
  out = out or os.path.join(hunch.folder, name + ".out")
  return hunch("batch", source, "-o", out, *flags, **options), out


def feeding(hunch, out):
  """A batch that reads its lines from a pipe, and what puts some into it."""
  child = hunch.start("batch", "-", "-o", out, stdin=subprocess.PIPE)

  def feed(*lines):
    child.stdin.write(jsonl(lines))
    child.stdin.flush()
  return child, feed


def answers(path):
  with open(path, "rb") as f:
    data = f.read()
  assert not data or data.endswith(b"\n"), data[-200:]
  return [json.loads(line) for line in data.splitlines()]


def tokens(path):
  return {a["id"]: a["choices"][0]["tokens"] for a in answers(path) if "choices" in a}


def test_answers_every_line_as_run_would(hunch):
  result, out = batch(hunch, "every", GOOD, "--kv-memory", "8MiB", "--max-num-seqs", "3")
  assert result.code == 0 and result.out == "" and result.err == "", result
  got = tokens(out)
  for line in GOOD:
    alone = hunch.run_json("-p", line["prompt"], "-n", line["max_tokens"], "-s", line["seed"], "--temp", "0.8", "--ignore-eos", "--spec", "none")
    assert got[line["id"]] == alone["tokens"], line
  one = answers(out)[0]
  assert one["usage"]["total_tokens"] == one["usage"]["prompt_tokens"] + one["usage"]["completion_tokens"], one
  assert one["metrics"]["lossless"] is True and one["metrics"]["ttft_ms"] > 0, one


def test_a_constraint_that_cannot_be_had_is_refused_before_the_first_line(hunch):
  result, out = batch(hunch, "constraint", GOOD[:1], "--regex", "(")
  assert result.code == 2 and "parenthesis" in result.err and not answers(out), result
  result = hunch("serve", "--port", "0", "--json-schema", '{"type":"x"}', timeout=60)
  assert result.code == 2 and "'type' must name" in result.err, result


def test_bad_lines_get_errors_and_the_others_go_on(hunch):
  lines = [GOOD[0], "not json", dict(id="c", prompt="x", temprature=1), dict(GOOD[0], prompt="again"), dict(id="e", prompt=[1, 10**6]),
      dict(id="f", prompt=[5] * 5000), dict(id="g", prompt="x", max_tokens=2, speculative_config={"metod": "self"}), "",
      dict(id="i", prompt="x", n=2, allowed_token_ids=[5], structured_outputs=dict(choice=["yes"])), GOOD[1]]
  result, out = batch(hunch, "bad", lines, "-c", "4096")
  assert result.code == 1 and "7 of 9 lines have an error" in result.err, result
  assert set(tokens(out)) == {"0", "1"}
  errors = {a["error"]["line"]: (a["id"], a["error"]["message"]) for a in answers(out) if "error" in a}
  assert {n: i for n, (i, _) in errors.items()} == {2: None, 3: "c", 4: None, 5: "e", 6: "f", 7: "g", 9: "i"}, errors
  for number, words in ((2, "not JSON"), (3, "did you mean temperature?"), (4, "earlier line"), (5, "ids must lie in"), (6, "context holds"),
      (7, "did you mean method?"), (9, "grammar_dead_end")):
    assert words in errors[number][1], errors[number]
  again, _ = batch(hunch, "bad", lines, "-c", "4096")
  assert again.code == 1 and len(answers(out)) == 9, again


def test_lines_come_as_other_systems_write_them_and_one_too_long_spoils_no_other(hunch):
  good = [json.dumps(line).encode() for line in GOOD[:2]]
  source = hunch.file("other.in", b"\xef\xbb\xbf" + b"\r\n".join((good[0], b"x" * (65 << 20), good[1])))
  out = os.path.join(hunch.folder, "other.out")
  result = hunch("batch", source, "-o", out)
  assert result.code == 1 and set(tokens(out)) == {"0", "1"}, result
  assert ["longer than" in a["error"]["message"] for a in answers(out) if "error" in a] == [True], answers(out)


def test_two_at_once_do_not_write_to_one_file(hunch):
  out = os.path.join(hunch.folder, "shared.out")
  child, feed = feeding(hunch, out)
  feed(GOOD[0])
  while not os.path.exists(out) or not os.path.getsize(out):
    time.sleep(0.01)
  result, _ = batch(hunch, "second", GOOD[1:2], out=out)
  child.stdin.close()
  assert child.wait(20) == 0
  expect(result, 1, "another hunch batch writes to it")


def test_goes_on_wherever_the_output_was_cut(hunch):
  _, whole = batch(hunch, "whole", GOOD)
  want = tokens(whole)
  data = open(whole, "rb").read()
  for cut in (0, 1, 6, data.index(b"\n"), data.index(b"\n") + 1, len(data) // 2, len(data) - 1, len(data)):
    out = hunch.file("cut.out", data[:cut])
    result, _ = batch(hunch, "whole", GOOD, "--stats", out=out)
    assert result.code == 0 and tokens(out) == want and len(answers(out)) == len(GOOD), (cut, result)
  assert "0 answered, 0 with an error, 6 were there" in result.err, result


def test_leaves_files_of_others_alone(hunch):
  for name, data in (("a.txt", b"Dear diary"), ("b.jsonl", b'{"id":"a","prompt":"x"}\n'), ("c.bin", b"\n\x00\n")):
    out = hunch.file(name, data)
    result, _ = batch(hunch, "others", GOOD, out=out)
    expect(result, 1, "is no answer of hunch batch")
    assert open(out, "rb").read() == data
  source = hunch.file("same.jsonl", jsonl(GOOD))
  expect(hunch("batch", source, "-o", source), 2, "overwrite the input")
  expect(hunch("batch", source), 2, "-o")
  expect(hunch("batch", "/no/such", "-o", "-"), 1, "/no/such")


def test_an_echoed_prompt_has_its_log_probabilities_also_alone(hunch):
  prompt = "The captain looked at the sea"
  lines = [dict(id="echo", prompt=prompt, echo=True, logprobs=1, max_tokens=0), dict(id="ids", prompt=[7, 8, 9], echo=True, logprobs=0, max_tokens=2),
      dict(id="scores", prompt=prompt, prompt_logprobs=1, max_tokens=1)]
  result, out = batch(hunch, "echo", lines)
  assert result.code == 0, result
  got = {a["id"]: a for a in answers(out)}
  [choice], [scored] = got["echo"]["choices"], got["scores"]["choices"]
  assert (choice["text"], choice["tokens"], choice["finish_reason"], got["echo"]["usage"]["completion_tokens"]) == (prompt, [], "length", 0), choice
  want = scored["prompt_logprobs"][1:]
  columns = choice["logprobs"]
  assert columns["token_logprobs"][0] is None and columns["top_logprobs"][0] is None and len(columns["tokens"]) == len(want) + 1, choice
  for value, top, one in zip(columns["token_logprobs"][1:], columns["top_logprobs"][1:], want):  # OpenAI's form, vLLM's form
    assert sorted({value, *top.values()}) == sorted({given["logprob"] for given in one.values()}), (top, one)
  assert columns["text_offset"] == [len("".join(columns["tokens"][:i])) for i in range(len(want) + 1)], columns
  assert "".join(columns["tokens"]) == prompt, choice
  assert len(got["ids"]["choices"][0]["logprobs"]["tokens"]) == 5, got["ids"]


def test_streams_from_stdin_to_stdout_before_the_input_ends(hunch):
  child, feed = feeding(hunch, "-")
  for line in GOOD[:3]:
    feed(line)
    assert json.loads(child.stdout.readline())["id"] == line["id"]
  child.stdout.close()  # a reader that leaves is no error
  feed(GOOD[3])
  child.stdin.close()
  assert child.wait(20) == 0, child.stderr.read()


def test_ctrl_c_keeps_whole_answers_and_says_how_to_go_on(hunch):
  lines = GOOD + [dict(id=f"long {i}", prompt="Once", max_tokens=8000, ignore_eos=True, seed=i) for i in range(3)]
  source, out = hunch.file("stop.in", jsonl(lines)), os.path.join(hunch.folder, "stop.out")
  child = hunch.start("batch", source, "-o", out)
  deadline = time.monotonic() + 60
  while time.monotonic() < deadline and (not os.path.exists(out) or open(out, "rb").read().count(b"\n") < len(GOOD)):
    time.sleep(0.02)
  stopped(child, b"the same command goes on")
  assert {a["id"] for a in answers(out)} == {line["id"] for line in GOOD}
  # The reader of an input that never ends stops too.
  child, feed = feeding(hunch, "-")
  feed(GOOD[0])
  child.stdout.readline()
  child.send_signal(signal.SIGINT)
  assert child.wait(20) == 130, child.stderr.read()


def test_samples_share_a_prompt_and_chat_and_envelopes_are_answered_in_kind(hunch):
  body = dict(model="m", messages=[dict(role="user", content="Hello")], max_tokens=5, n=3, seed=4, temperature=1.0, ignore_eos=True)
  lines = [dict(custom_id="w", method="POST", url="/v1/chat/completions", body=body), dict(body, id="bare"), dict(body, id="one", n=1)]
  result, out = batch(hunch, "samples", lines)
  assert result.code == 0, result
  got = {a["id"]: a for a in answers(out)}
  wrapped = got["w"]["response"]["body"]
  assert got["w"]["custom_id"] == "w" and got["w"]["response"]["status_code"] == 200 and got["w"]["error"] is None, got["w"]
  assert wrapped["id"] == "chatcmpl-w" and wrapped["object"] == "chat.completion" and wrapped["created"] > 1.7e9, wrapped
  assert [c["index"] for c in wrapped["choices"]] == [0, 1, 2]
  assert [c["tokens"] for c in wrapped["choices"]] == [c["tokens"] for c in got["bare"]["choices"]]
  assert len({tuple(c["tokens"]) for c in wrapped["choices"]}) > 1, "samples of one seed differ"
  assert wrapped["choices"][0]["tokens"] == got["one"]["choices"][0]["tokens"]
  assert wrapped["choices"][0]["message"] == dict(role="assistant", content=wrapped["choices"][0]["text"])
