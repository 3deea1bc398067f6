"""Wrong flags are usage errors (2), wrong files failures (1); the message says what and where. Nothing crashes, nothing hangs."""
import os
import struct

from program import expect

# A flag of each kind; src/cli/flags_test.cpp and src/cli/speculation_flags_test.cpp have them all.
USAGE = [
    (["--temp", "x"], "--temp needs a number in 0..10000, not \"x\""),
    (["--ratio", "1.5"], "--ratio must be above 0 and at most 1"),
    (["--policy", "nosuch"], "--policy must be one of full, "),
    (["--speculative-config", "{bad"], "invalid JSON at character 2"),
    (["--speculative-config", '{"method":"sparse_attn","num_speculative_token":3}'], "did you mean num_speculative_tokens?"),
    (["--speculative-config", '{"method":"mlp_speculator"}'], "mlp_speculator is not available yet"),
    (["--spec", "none", "--speculative-config", '{"method":"sparse_attn"}'], "contradicts"),
    (["--kv-memory", "lots"], "--kv-memory needs a size such as"),
    (["--nosuchflag"], "unknown flag \"--nosuchflag\""),
    (["--see", "1"], "did you mean --seed?"),
    (["--unverified"], "--unverified is lossy decoding and needs --spec self --policy streamingllm"),
    (["-ctk", "f16"], "do not agree"),
    (["-f", "x"], "-p and -f exclude each other"),
    (["--seed"], "--seed needs a value"),
]


def test_wrong_flags_are_usage_errors(hunch):
  for flags, message in USAGE:
    expect(hunch.run("-p", "hello", "-n", "2", *flags), 2, message)


def test_a_prompt_is_needed(hunch):
  expect(hunch.run("-n", "2"), 2, "no prompt")
  expect(hunch.run("-p", ""), 2, "the prompt is empty")


def test_unknown_commands_are_usage_errors(hunch):
  expect(hunch("rum"), 2, "did you mean run?")
  expect(hunch("-p", "hello"), 2, "name a command first")


def test_missing_models_are_named(hunch):
  result = hunch("run", "-m", "/no/such/model.gguf", "-p", "hello")
  expect(result, 1, "/no/such/model.gguf")


def test_text_that_is_not_utf8_is_refused_with_its_byte(hunch):
  expect(hunch.run("-f", hunch.file("bad.txt", b"abc\xff def"), "-n", "2"), 1, "not UTF-8 text: byte 3 (0xff)")
  expect(hunch.run("-f", "-", "-n", "2", stdin=b"\xc3"), 1, "standard input: not UTF-8 text: byte 0 (0xc3)")


def test_unreadable_prompts_are_named(hunch):
  expect(hunch.run("-f", "/no/such/file"), 1, "/no/such/file: cannot be opened")
  expect(hunch.run("-f", hunch.folder), 1, hunch.folder)
  expect(hunch.run("-f", hunch.file("empty.txt", b"")), 1, "the prompt is empty")


def test_endless_prompts_end(hunch):
  expect(hunch.run("-f", "/dev/zero"), 1, "longer than")


def test_a_prompt_longer_than_the_context_says_both_lengths(hunch):
  result = hunch.run("-p", "word " * 200, "-c", "64", "-n", "2")
  assert result.code in (1, 2) and "context" in result.err and "64" in result.err, result


def test_kv_memory_too_small_says_how_much_is_needed(hunch):
  result = hunch.run("-p", "hello", "-n", "2", "--kv-memory", "1")
  assert result.code in (1, 2) and "KV memory too small" in result.err and "needed" in result.err, result


def test_faults_name_the_file_and_names_are_plain(hunch):
  with open(hunch.model, "rb") as f:
    data = f.read()

  def with_value(key, old, new):
    at = data.index(old, data.index(key))
    return hunch.file("changed.gguf", data[:at] + new + data[at + len(old):])

  model = with_value(b"tokenizer.ggml.model", b"gpt2", b"gptX")
  expect(hunch("run", "-m", model, "-p", "hello"), 1, model + ": GGUF: tokenizer.ggml.model is not supported")
  result = hunch("info", with_value(b"general.name", b"wren", b"w\x1b[n"))
  assert result.code == 0 and "w?[n" in result.out and "\x1b" not in result.out, result


def test_damaged_models_are_refused(hunch):
  with open(hunch.model, "rb") as f:
    head = f.read(4 << 20)

  def refused(damaged, *case):
    result = hunch("run", "-m", hunch.file("damaged.gguf", damaged), "-p", "hello", "-n", "2", timeout=30)
    assert result.code == 1 and result.err.startswith("hunch: "), (case, result)

  size = os.path.getsize(hunch.model)
  for cut in (0, 3, 8, 24, 100, 5000, len(head) - 1):
    if cut < size: refused(head[:cut], cut)
  for offset, value in ((8, 2**63), (8, 2**32), (16, 2**63), (16, 2**31)):
    data = bytearray(head)
    data[offset:offset + 8] = struct.pack("<Q", value)
    refused(bytes(data), offset, value)


def test_quantize_names_types_and_refuses_other_outputs(hunch):
  out = os.path.join(hunch.folder, "out.gguf")
  expect(hunch("quantize", hunch.model, out, "--type", "q9"), 2, "--type must be one of q8_0, q4_0, q4_k")
  expect(hunch("quantize", hunch.model, out), 2, "--type is missing")
  expect(hunch("quantize", hunch.model, "out.bin", "--type", "q8_0"), 2, "ends in .gguf")
  expect(hunch("quantize", "/no/such", out, "--type", "q8_0"), 1, "/no/such")
  assert not os.path.exists(out)
