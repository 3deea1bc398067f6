"""hunch bench, eval and report: llama-bench's flags and shapes, and that a report is made of what they print."""
import csv
import io
import json

from program import expect, record_book

FIELDS = ["build_commit", "model_filename", "model_type", "model_size", "model_n_params", "n_batch", "n_ubatch", "n_threads", "type_k", "type_v",
    "n_prompt", "n_gen", "n_depth", "test_time", "avg_ns", "stddev_ns", "avg_ts", "stddev_ts", "samples_ns", "samples_ts"]
SMALL = ["-p", "8", "-n", "4", "-d", "0,32", "-r", "2", "-t", "1"]


def book(hunch):
  return hunch.file("book.txt", record_book().encode())


def test_bench_json_has_llama_benchs_fields(hunch):
  rows = hunch.json("bench", *SMALL, "-pg", "8,4", "-o", "json")
  assert [row["test"] for row in rows] == ["pp8", "tg4", "pp8+tg4", "pp8 @ d32", "tg4 @ d32", "pp8+tg4 @ d32"], rows
  for row in rows:
    assert all(name in row for name in FIELDS), row
    assert len(row["samples_ns"]) == len(row["samples_ts"]) == 2 and row["avg_ts"] > 0 and row["lossless"] is True, row
    tokens = row["n_prompt"] + row["n_gen"]
    assert all(abs(tokens * 1e9 / ns - ts) <= 1e-6 * ts for ns, ts in zip(row["samples_ns"], row["samples_ts"])), row


def test_bench_formats_agree(hunch):
  lines = hunch.lines("bench", *SMALL, "-o", "jsonl")
  table = list(csv.DictReader(io.StringIO(hunch.bench(*SMALL, "-o", "csv").out)))
  markdown = hunch.bench(*SMALL).out
  assert [row["test"] for row in lines] == [row["test"] for row in table] == ["pp8", "tg4", "pp8 @ d32", "tg4 @ d32"]
  assert all(f" {row['test']} |" in markdown and " ± " in markdown for row in lines), markdown


def test_bench_takes_llama_benchs_idle_flags_with_one_note(hunch):
  result = hunch.bench("-p", "0", "-n", "2", "-r", "1", "-fa", "1", "-ngl", "99", "-mmp", "0", "-o", "json")
  assert result.code == 0 and len(json.loads(result.out)) == 1 and "without effect here: -fa -ngl -mmp" in result.err, result


def test_bench_refuses_what_it_cannot_do(hunch):
  for flag, value, message in (("-o", "sql", "sql is not written here"), ("-pg", "8", "-pg needs two numbers"),
      ("-d", "9-1", "empty or endless range"), ("-ctk", "f16", "must agree")):
    expect(hunch.bench(flag, value), 2, message)
  expect(hunch("eval", "nosuch"), 2, "hunch eval perplexity FILE")
  expect(hunch("report"), 2, "name result files")
  expect(hunch("report", "/no/such/file"), 1, "/no/such/file")


def test_bench_rows_with_speculation_need_a_text(hunch):
  flags = ["-p", "0", "-n", "8", "-d", "512", "-r", "1", "--spec", "self", "-o", "json"]
  without = hunch.bench(*flags)
  assert without.code == 0 and len(json.loads(without.out)) == 1 and "random tokens say nothing" in without.err, without
  rows = json.loads(hunch.bench(*flags, "-f", book(hunch)).out)
  assert [row["drafter"] for row in rows] == ["none", "self"] and rows[1]["same_tokens_as_plain"] is True, rows
  assert rows[1]["mean_acceptance_length"] >= 1 and rows[1]["speedup"] > 0, rows[1]


def test_bench_only_still_means_passes(hunch):
  assert hunch.json("bench", "--only", "plain", "-d", "0", "-r", "1", "--json")["plain"][0]["context"] == 0


def test_bench_batch_counts_every_requests_tokens(hunch):
  rows = hunch.lines("bench", "batch", "--parallel", "1,2", "-p", "32", "-n", "4", "-o", "jsonl")
  assert [row["n_parallel"] for row in rows] == [1, 2], rows
  for row in rows:  # tokens = requests x n
    assert abs(row["samples_ts"][0] * row["samples_ns"][0] / 1e9 - 4 * row["n_parallel"]) < 0.01, row


def prompts_of(hunch):
  lines = [json.dumps({"text": f"{kind} {i}: " + "one two three. " * 12, "kind": kind, "context": 64}) for i in range(2) for kind in ("a", "b")]
  return hunch.file("prompts.jsonl", "\n".join(lines).encode())


def test_bench_batch_continues_a_files_prompts(hunch):
  flags = ["bench", "batch", "--prompts", prompts_of(hunch)]
  rows = hunch.lines(*flags, "--parallel", "2", "-n", "8", "-r", "2", "--spec", "self", "-o", "jsonl")
  assert [row["drafter"] for row in rows] == ["none", "self"], rows
  assert rows[0]["decode_ts"] > 0 and len(rows[1]["samples_decode_speedup"]) == 2 and rows[1]["decode_speedup"] > 0, rows
  expect(hunch(*flags, "-p", "64"), 2, "--prompts says what is continued")
  expect(hunch(*flags, "--contexts", "7"), 1, "no prompts of the contexts asked for")


def test_bench_accept_measures_every_policy_at_every_ratio(hunch):
  rows = hunch.json("bench", "accept", prompts_of(hunch), "--policies", "streamingllm,default-q4_0",
      "--ratios", "0.1,0.5", "--draft", "3", "--n", "2", "-n", "8", "--json")["rows"]
  assert [(row["policy"], row["ratio"]) for row in rows] == [(p, r) for p in ("streamingllm", "default-q4_0") for r in (0.1, 0.5)], rows
  for row in rows:  # whoever is reached was kept before
    assert len(row["reached"]) == 3 and row["reached"][1] == row["kept"][0] and row["kept"][2] <= row["reached"][2], row


def test_bench_accept_looks_up_no_earlier_run_of_a_prompt(hunch):
  flags = ["bench", "accept", prompts_of(hunch), "--policies", "suffix", "--temp", "0", "--rule", "match", "--n", "2", "-n", "32", "--json"]
  once, again = (hunch.json(*flags, "--seeds", seeds)["rows"][0]["per_prompt"] for seeds in ("1", "1,2"))
  assert once == again, (once, again)


def test_bench_rounds_times_policies_by_name(hunch):
  flags = ["bench", "rounds", "-d", "128", "--rounds", "2", "--gammas", "2"]
  rows = hunch.json(*flags, "--policies", "streamingllm,vegas-logit", "--ratios", "0.1,0.5", "-o", "json")["rows"]
  assert [(row["what"], row["policy"], row["ratio"]) for row in rows] == [("plain", None, None)] + [
      ("round", p, r) for p in ("streamingllm", "vegas-logit") for r in (0.1, 0.5)], rows
  assert "| vegas-logit |" in hunch(*flags, "--policies", "vegas-logit").out
  rows = hunch.json(*flags, "--rule", "ratio", "--repeat-penalty", "1.1", "-o", "json")["rows"]
  assert [row["rule"] for row in rows] == ["ratio"] * 2, rows
  expect(hunch(*flags, "--policies", "ngram"), 2, "no policy of method self")
  expect(hunch(*flags, "--ratios", "0.1"), 2, "--ratios goes with --policies")


def test_bench_prefill_counts_multiplications(hunch):
  rows = hunch.json("bench", "prefill", "-p", "100", "-ub", "32,64", "-r", "1", "-o", "json")["rows"]
  assert [row["chunk"] for row in rows] == [32, 64] and rows[0]["of_ceiling"] is None, rows
  for row in rows:
    total = row["product_TFLOP"] + row["attention_TFLOP"]
    assert abs(row["TFLOP_per_s"] * row["ms"] * 1e-3 - total) <= 1e-6 * total and row["product_TFLOP"] > 0, row


def test_perplexity_of_repetition_falls_with_context(hunch):
  rows = hunch.lines("eval", "perplexity", book(hunch), "--contexts", "64,512", "--windows", "2", "--json")
  assert [row["context"] for row in rows] == [64, 512] and rows[0]["perplexity"] > rows[1]["perplexity"] > 1, rows
  assert all(row["lossless"] is True and row["tokens"] == row["windows"] * (row["context"] // 2 - 1) for row in rows), rows


def test_lookup_is_the_same_with_speculation(hunch):
  flags = ["eval", "lookup", "--contexts", "1024", "--books", "1", "--json"]
  plain, guessed = hunch.json(*flags), hunch.json(*flags, "--spec", "self")
  assert plain["found"] == guessed["found"] and plain["questions"] == 3 and guessed["drafter"] == "self", (plain, guessed)


def test_ssv_prints_a_table(hunch):
  nsa = hunch.model.replace("34m", "nsa-8m")
  assert "lossless" in hunch("bench", "ssv", "-m", nsa, "-c", "1200", "--contexts", "1024", "--books", "1", "-n", "2").out


def test_report_is_one_page_of_what_bench_printed(hunch):
  rows = hunch.bench(*SMALL, "-o", "jsonl").out
  result = hunch("report", hunch.file("rows.jsonl", rows.encode()))
  assert result.code == 0 and result.out.startswith("<!doctype html>") and "<svg" in result.out, result
  assert "tg4 @ d32" in result.out and "<script" not in result.out and "http" not in result.out, result.out[:400]


def test_bench_without_wishes_decodes_plainly(hunch):
  # The engine's own default may guess; a baseline must not.
  text = book(hunch)
  for command in (["bench", "-p", "0", "-n", "4", "-d", "64", "-r", "1"], ["bench", "batch", "--parallel", "1", "-p", "64", "-n", "4"]):
    rows = hunch.lines(*command, "-f", text, "-o", "jsonl")
    assert [row["drafter"] for row in rows] == ["none"], rows
