"""hunch bench, eval and report: llama-bench's flags and shapes, and that a report is made of what they print."""
import csv
import io
import json

from program import expect

FIELDS = ["build_commit", "model_filename", "model_type", "model_size", "model_n_params", "n_batch", "n_ubatch", "n_threads", "type_k", "type_v",
          "n_prompt", "n_gen", "n_depth", "test_time", "avg_ns", "stddev_ns", "avg_ts", "stddev_ts", "samples_ns", "samples_ts"]
SMALL = ["-p", "8", "-n", "4", "-d", "0,32", "-r", "2", "-t", "1"]


def bench(hunch, *flags):
    return hunch("bench", "-m", hunch.model, *flags)


def book(hunch):
    text = "".join(f"Record {i}: item {i * 7919 % 1000}, shelf {i % 17}. " for i in range(60))
    return hunch.file("book.txt", text.encode())


def test_bench_json_has_llama_benchs_fields(hunch):
    result = bench(hunch, *SMALL, "-pg", "8,4", "-o", "json")
    assert result.code == 0, result
    rows = json.loads(result.out)
    assert [row["test"] for row in rows] == ["pp8", "tg4", "pp8+tg4", "pp8 @ d32", "tg4 @ d32", "pp8+tg4 @ d32"], result
    for row in rows:
        assert all(name in row for name in FIELDS), row
        assert len(row["samples_ns"]) == len(row["samples_ts"]) == 2 and row["avg_ts"] > 0 and row["lossless"] is True, row
        tokens = row["n_prompt"] + row["n_gen"]
        assert all(abs(tokens * 1e9 / ns - ts) <= 1e-6 * ts for ns, ts in zip(row["samples_ns"], row["samples_ts"])), row


def test_bench_formats_agree(hunch):
    lines = [json.loads(line) for line in bench(hunch, *SMALL, "-o", "jsonl").out.splitlines()]
    table = list(csv.DictReader(io.StringIO(bench(hunch, *SMALL, "-o", "csv").out)))
    markdown = bench(hunch, *SMALL).out
    assert [row["test"] for row in lines] == [row["test"] for row in table] == ["pp8", "tg4", "pp8 @ d32", "tg4 @ d32"]
    assert all(f" {row['test']} |" in markdown and " ± " in markdown for row in lines), markdown


def test_bench_takes_llama_benchs_idle_flags_with_one_note(hunch):
    result = bench(hunch, "-p", "0", "-n", "2", "-r", "1", "-fa", "1", "-ngl", "99", "-mmp", "0", "-o", "json")
    assert result.code == 0 and len(json.loads(result.out)) == 1 and "without effect here: -fa -ngl -mmp" in result.err, result


def test_bench_refuses_what_it_cannot_do(hunch):
    expect(bench(hunch, "-o", "sql"), 2, "sql is not written here")
    expect(bench(hunch, "-pg", "8"), 2, "-pg needs two numbers")
    expect(bench(hunch, "-d", "9-1"), 2, "empty or endless range")
    expect(bench(hunch, "-ctk", "f16"), 2, "must agree")
    expect(hunch("eval", "nosuch"), 2, "hunch eval perplexity FILE")
    expect(hunch("report"), 2, "name result files")
    expect(hunch("report", "/no/such/file"), 1, "/no/such/file")


def test_bench_rows_with_speculation_need_a_text(hunch):
    flags = ["-p", "0", "-n", "8", "-d", "512", "-r", "1", "--spec", "self", "-o", "json"]
    without = bench(hunch, *flags)
    assert without.code == 0 and len(json.loads(without.out)) == 1 and "random tokens say nothing" in without.err, without
    rows = json.loads(bench(hunch, *flags, "-f", book(hunch)).out)
    assert [row["drafter"] for row in rows] == ["none", "self"] and rows[1]["same_tokens_as_plain"] is True, rows
    assert rows[1]["mean_acceptance_length"] >= 1 and rows[1]["speedup"] > 0, rows[1]


def test_bench_only_still_means_passes(hunch):
    result = hunch("bench", "-m", hunch.model, "--only", "plain", "-d", "0", "-r", "1", "--json")
    assert result.code == 0 and json.loads(result.out)["plain"][0]["context"] == 0, result


def test_bench_batch_counts_every_requests_tokens(hunch):
    result = hunch("bench", "batch", "-m", hunch.model, "--parallel", "1,2", "-p", "32", "-n", "4", "-o", "jsonl")
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert result.code == 0 and [row["n_parallel"] for row in rows] == [1, 2], result
    for row in rows:  # tokens = requests x n
        assert abs(row["samples_ts"][0] * row["samples_ns"][0] / 1e9 - 4 * row["n_parallel"]) < 0.01, row


def test_perplexity_of_repetition_falls_with_context(hunch):
    flags = ["-m", hunch.model, "--contexts", "64,512", "--windows", "2", "--json"]
    rows = [json.loads(line) for line in hunch("eval", "perplexity", book(hunch), *flags).out.splitlines()]
    assert [row["context"] for row in rows] == [64, 512] and rows[0]["perplexity"] > rows[1]["perplexity"] > 1, rows
    assert all(row["lossless"] is True and row["tokens"] == row["windows"] * (row["context"] // 2 - 1) for row in rows), rows


def test_lookup_is_the_same_with_speculation(hunch):
    flags = ["eval", "lookup", "-m", hunch.model, "--contexts", "1024", "--books", "1", "--json"]
    plain, guessed = json.loads(hunch(*flags).out), json.loads(hunch(*flags, "--spec", "self").out)
    assert plain["found"] == guessed["found"] and plain["questions"] == 3 and guessed["drafter"] == "self", (plain, guessed)


def test_report_is_one_page_of_what_bench_printed(hunch):
    rows = bench(hunch, *SMALL, "-o", "jsonl").out
    result = hunch("report", hunch.file("rows.jsonl", rows.encode()))
    assert result.code == 0 and result.out.startswith("<!doctype html>") and "<svg" in result.out, result
    assert "tg4 @ d32" in result.out and "<script" not in result.out and "http" not in result.out, result.out[:400]


def test_bench_without_wishes_decodes_plainly(hunch):
    # The engine's own default may guess; a baseline must not.
    text = book(hunch)
    for command in (["bench", "-p", "0", "-n", "4", "-d", "64", "-r", "1"], ["bench", "batch", "--parallel", "1", "-p", "64", "-n", "4"]):
        result = hunch(*command, "-m", hunch.model, "-f", text, "-o", "jsonl")
        assert result.code == 0 and [json.loads(line)["drafter"] for line in result.out.splitlines()] == ["none"], result
