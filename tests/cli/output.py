"""What comes out where: JSON, text, colour, statistics, and the equality of streams."""
import json
import os
import pty
import subprocess

from program import record_book

PROMPT = "The captain looked at the"
FIELDS = ["text", "tokens", "prompt_tokens", "decode_tokens_per_second", "mean_acceptance_length", "acceptance_by_position",
    "kv_bytes_read_per_token", "lossless", "milliseconds"]
LONG = record_book() + "\nRecord 7:"
GUESSED = ["-p", LONG, "-n", "24", "--ignore-eos", "--temp", "0", "--spec", "self"]


def test_json_has_every_promised_field(hunch):
  j = hunch.greedy("-p", PROMPT, "-n", "8")  # guesses, if the planner thinks that they pay
  assert all(name in j for name in FIELDS), j
  assert j["mean_acceptance_length"] >= 1, j
  j = hunch.greedy("-p", PROMPT, "-n", "8", "--spec", "none")
  assert all(isinstance(j["milliseconds"][part], (int, float)) for part in ("load", "prefill", "draft", "verify", "select")), j
  assert len(j["tokens"]) == 8 and all(isinstance(t, int) for t in j["tokens"]), j
  assert j["lossless"] is True and j["mean_acceptance_length"] == 1 and j["prompt_tokens"] > 0, j


def test_streamed_text_equals_the_text_of_json(hunch):
  j = hunch.run_json("-p", PROMPT, "-n", "24", "--ignore-eos", "--seed", "3")
  streamed = hunch.run("-p", PROMPT, "-n", "24", "--ignore-eos", "--seed", "3")
  assert streamed.code == 0 and streamed.out == j["text"], (streamed, j["text"])
  assert streamed.err == "", streamed


def test_streams_with_speculation_equal_streams_without(hunch):
  prompt = hunch.file("long.txt", LONG.encode())
  for sampling in (["--temp", "0"], ["--temp", "0.8", "--seed", "11"]):
    base = ["-f", prompt, "-n", "48", "--ignore-eos", *sampling]
    plain = hunch.run_json(*base)
    for flags in (["--spec", "self"], ["--spec", "self", "--policy", "streamingllm", "--ratio", "0.05", "--draft", "4"],
        ["--speculative-config", '{"method":"sparse_attn","num_speculative_tokens":15,"sparse_attn_ratio":0.02}']):
      guessed = hunch.run_json(*base, *flags)
      assert guessed["tokens"] == plain["tokens"], (sampling, flags)
      assert guessed["lossless"] is True and guessed["drafted"] > 0 and guessed["accepted"] > 0, guessed


def test_settings_of_the_environment_and_a_stop_text(hunch):
  settings = {"LLAMA_ARG_N_PREDICT": "3", "HUNCH_TEMP": "0", "HUNCH_SPEC": "none"}
  base = ["run", "--json", "--ignore-eos", "-p", PROMPT]
  three = json.loads(hunch(*base, env=settings).out)
  assert len(three["tokens"]) == 3 and three["proposer"] == "none", three
  assert len(json.loads(hunch(*base, "--n-predict", "2", env=settings).out)["tokens"]) == 2
  wrong = hunch(*base, env={"HUNCH_TEMP": "x"})
  assert wrong.code == 2 and 'the environment adds "--temp x"' in wrong.err, wrong
  whole = hunch.greedy("-p", PROMPT, "-n", "24", "--ignore-eos")["text"]
  cut = hunch.run("-p", PROMPT, "-n", "24", "--ignore-eos", "--temp", "0", "--stop", whole[9:14]).out
  assert cut == whole[:whole.index(whole[9:14])], (cut, whole)


def test_unverified_is_labelled_lossy(hunch):
  flags = ["-p", LONG, "-n", "8", "--ignore-eos", "--spec", "self", "--policy", "streamingllm", "--unverified"]
  result = hunch.run("--json", *flags)
  assert result.code == 0 and json.loads(result.out)["lossless"] is False, result
  assert "LOSSY" in result.err, result


def test_statistics_go_to_stderr(hunch):
  result = hunch.run(*GUESSED, "--stats")
  assert result.code == 0 and "draft acceptance rate = " in result.err and "tokens/s" in result.err, result
  assert "tokens/s" not in result.out and "\033" not in result.out + result.err, result


def test_colour_only_where_wanted(hunch):
  assert "\033[32m" not in hunch.run(*GUESSED).out
  assert "\033[32m" in hunch.run(*GUESSED, "--color", "always").out
  assert "\033[32m" in hunch.run(*GUESSED, env={"CLICOLOR_FORCE": "1"}).out
  assert "\033[" not in hunch.run(*GUESSED, env={"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}).out
  assert "\033[" not in hunch.run("--json", *GUESSED, "--color", "always").out


def on_terminal(hunch, **env):
  """Output of a run whose stdout is a terminal."""
  master, slave = pty.openpty()
  child = subprocess.Popen([hunch.binary, "run", "-m", hunch.model, *GUESSED], stdin=subprocess.DEVNULL, stdout=slave,
      stderr=subprocess.PIPE, env=hunch.environment(TERM="xterm", **env))
  os.close(slave)
  out = b""
  while True:
    try:
      block = os.read(master, 4096)
    except OSError:
      break
    if not block:
      break
    out += block
  err = child.stderr.read()
  assert child.wait(60) == 0, err
  return out.decode("utf-8", "replace"), err.decode("utf-8", "replace")


def test_accepted_guesses_are_green_on_a_terminal(hunch):
  out, err = on_terminal(hunch)
  assert "\033[32m" in out and "guessed" in err, (out, err)
  out, _ = on_terminal(hunch, NO_COLOR="1")
  assert "\033[" not in out, out


def test_foreign_flags_leave_a_note(hunch):
  result = hunch.run("-p", PROMPT, "-n", "2", "-ngl", "99", "-fa", "on", "--temp", "0", "-c", "33000")
  assert result.code == 0 and "without effect here: -ngl -fa" in result.err and "trained for 32768 tokens" in result.err, result


def test_tokenize_prints_ids(hunch):
  ids = hunch.json("tokenize", "-p", PROMPT, "--json")["tokens"]
  assert ids and hunch.run_json("-p", PROMPT, "-n", "1")["prompt_tokens"] == len(ids)
  back = hunch.json("detokenize", "-p", " ".join(map(str, ids)), "--json")
  assert back["text"].endswith(PROMPT), back


def test_info_describes_the_model(hunch):
  j = hunch.json("info", hunch.model, "--json")
  assert j["architecture"] and j["layers"] > 0 and j["weight_bytes"] > 0 and j["kv_bytes_per_token"]["bf16"] > 0, j
  assert "KV of one token" in hunch("info", hunch.model).out


def test_audit_says_equal(hunch):
  prompt = hunch.file("audit.txt", LONG.encode())
  result = hunch("audit", "-f", prompt, "-n", "40", "--ignore-eos", "--temp", "0.8")
  assert result.code == 0 and result.out.startswith("equal, 40 tokens"), result
  j = hunch.json("audit", "-f", prompt, "-n", "40", "--ignore-eos", "--json")
  assert j["equal"] is True and j["tokens"] == 40 and j["first_difference"] is None and j["proposer"] == "self", j
  assert hunch("audit", "-f", prompt, "-n", "20", "--verify", "drafts", "--spec", "staged").out.startswith("equal")


def test_chat_answers_line_by_line(hunch):
  result = hunch("chat", "-m", hunch.model, "--temp", "0", "-n", "8", stdin=b"Hello.\n/stats\n/clear\n/nonsense\nHello.\n/exit\n")
  assert result.code == 0 and "tokens/s" in result.err and "forgotten" in result.err, result
  half = len(result.out) // 2
  assert result.out[:half] == result.out[half:], result


def test_chat_templates_by_name_text_and_file_write_the_same_prompt(hunch):
  text = ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{{ '' }}{% endif %}")
  path = hunch.file("chat.jinja", text.encode())
  common = ("--chat", "-p", "Hello", "-n", "6", "--temp", "0", "--ignore-eos")
  plain = hunch.run(*common)
  assert plain.code == 0, plain
  for flags in (("--chat-template", "chatml"), ("--chat-template", text), ("--chat-template-file", path), ("--jinja",)):
    assert hunch.run(*common, *flags).out == plain.out, flags
  other = hunch.run(*common, "--chat-template", "{{ greeting }} {{ messages[0].content }}", "--chat-template-kwargs", '{"greeting":"Once upon"}')
  assert other.code == 0 and other.out != plain.out, other


def test_chat_templates_that_cannot_be_used_are_refused_by_line_and_name(hunch):
  common = ("--chat", "-p", "Hello", "-n", "2")
  for flags, wanted in ((("--chat-template", "nope"), "neither a known name (chatml, llama3)"),
      (("--chat-template", "\n{{ x|xmlattr }}"), "chat template line 2: the filter 'xmlattr' is not supported"),
      (("--chat-template", "{{ raise_exception('no') }}"), "refuses the conversation: no"),
      (("--chat-template-kwargs", '{"messages":[]}'), "must not set"),
      (("--chat-template-kwargs", "{"), "is not JSON")):
    result = hunch.run(*common, *flags)
    assert result.code in (1, 2) and wanted in result.err, result
  result = hunch.run("-p", "Hello", "-n", "2", "--chat-template", "chatml")
  assert result.code == 2 and "needs --chat" in result.err, result


def test_help_and_version(hunch):
  overview = hunch()
  assert overview.code == 0 and "Examples" in overview.out, overview
  for command in ("run", "chat", "demo", "audit", "bench", "info", "quantize", "tokenize", "detokenize"):
    result = hunch(command, "--help")
    assert result.code == 0 and result.out.startswith(f"usage: hunch {command}"), result
    assert max(map(len, result.out.splitlines())) <= 100, command
  version = hunch("--version")
  assert version.code == 0 and version.out.startswith("hunch ") and version.out.count("\n") == 1, version


def test_doctor_says_what_there_is_and_what_to_set(hunch):
  j = hunch.json("doctor", "--json")
  assert j["cpu"]["threads"] >= 1 and "portable" in j["cpu"]["instruction_sets"], j
  assert j["memory"]["usable_bytes"] > 1 << 28 and isinstance(j["advice"], list), j
  closed = hunch("doctor", env={"XDG_CACHE_HOME": "/proc/nowhere"})
  assert closed.code == 0 and "set XDG_CACHE_HOME" in closed.out, closed
  assert max(map(len, closed.out.splitlines())) <= 140, closed


def test_completion_knows_the_commands_and_their_flags(hunch):
  names = hunch("--command-names").out.split()
  assert "run" in names and "doctor" in names, names
  for name in names:
    flags = hunch(name, "--flag-names")
    assert flags.code == 0 and "--help" in flags.out.split(), flags
  for words, expected in (("run --specu", "--speculative-config"), ("bench b", "batch"), ("bench batch --prompt", "--prompts"),
      ("quantize in.gguf --ty", "--type"), ("eval verify --sc", "--scored"), ("run -m --specu", "--speculative-config")):
    complete = ('eval "$(%s completion bash)"; hunch() { %s "$@"; }; COMP_WORDS=(hunch %s); COMP_CWORD=%d; _hunch; '
        'echo "${COMPREPLY[@]}"' % (hunch.binary, hunch.binary, words, len(words.split())))
    done = subprocess.run(["bash", "-c", complete], capture_output=True, text=True)
    assert expected in done.stdout.split(), done
  assert hunch("completion", "tcsh").code == 2


def test_the_manual_names_every_command_and_flag(hunch):
  page = hunch("man")
  assert page.code == 0 and page.out.startswith(".TH HUNCH 1"), page
  plain = page.out.replace("\\-", "-")
  for name in hunch("--command-names").out.split():
    assert f"\n.B {name}\n" in plain, name
  for part in ("--speculative-config", ".SH HUNCH RUN", ".SH HUNCH BENCH BATCH", ".SH HUNCH EVAL VERIFY", "--rows-per-check"):
    assert part in plain, part
  assert all(line.startswith((".TH", ".SH", ".TP", ".B ", ".nf", ".fi")) for line in page.out.splitlines() if line.startswith(".")), page


def test_a_trace_holds_every_round_of_a_request(hunch):
  path = os.path.join(hunch.folder, "trace.json")
  j = hunch.greedy("-p", PROMPT, "-n", "24", "--spec", "ngram", "--trace", path)
  with open(path) as file:
    events = [event for event in json.load(file) if event]
  rounds = [e for e in events if e.get("name") in ("round", "token")]
  assert sum(e["args"]["tokens"] for e in rounds) >= len(j["tokens"]) - 1, rounds
  assert sum(e["args"]["accepted"] for e in rounds) >= j["accepted"], rounds
  assert sum(e["args"]["rows"] for e in events if e.get("name") == "prompt") == j["prompt_tokens"], events
  assert {e["name"] for e in events} >= {"thread_name", "wait", "pass"}, events
  refused = hunch.run("-p", PROMPT, "-n", "1", "--trace", "/proc/none/trace.json")
  assert refused.code == 1 and "cannot write the trace" in refused.err, refused
