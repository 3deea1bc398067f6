"""Tokens as they come: stream() and generate_stream(); threads, closing, Ctrl-C, fork."""
import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

from hunch import LLM, RequestOutputKind, SamplingParams
from shipped import GREEDY, MODEL, PROMPT, PROMPTS, ShippedModel, greedy

ENDLESS = greedy(None, ignore_eos=True)

# Run by a Python of its own: KeyboardInterrupt must arrive in the middle of a wait.
INTERRUPTED = """
import sys, threading, time
from hunch import LLM, SamplingParams
llm = LLM(sys.argv[1], max_model_len=65536)
endless = SamplingParams(max_tokens=None, ignore_eos=True)
def watch():
    while llm.get_metrics().running < (4 if sys.argv[2] == "generate" else 1):
        time.sleep(0.005)
    print("running", flush=True)
try:
    threading.Thread(target=watch).start()
    if sys.argv[2] == "generate":
        llm.generate(["Once upon a time"] * 4, endless)
    else:
        for _ in llm.stream("Once upon a time", endless):
            pass
except KeyboardInterrupt:
    print("interrupted", flush=True)
    stats = llm.get_metrics()
    print("aborted", stats.requests_aborted, flush=True)
    [after] = llm.generate("The captain", SamplingParams(max_tokens=4))
    print("after", len(after.outputs[0].token_ids), flush=True)
"""


class Streams(ShippedModel):
  def test_a_stream_ends_with_what_generate_says(self):
    whole = self.one()
    steps = list(self.llm.stream(PROMPT, GREEDY))
    self.assertGreaterEqual(len(steps), 2)  # tokens that nobody took yet come in one step
    self.assertEqual([s.finished for s in steps], [False] * (len(steps) - 1) + [True])
    self.assertEqual(steps[-1].outputs, [whole])
    for before, after in zip(steps, steps[1:]):
      self.assertTrue(after.outputs[0].text.startswith(before.outputs[0].text))

  def test_deltas_add_up_to_the_whole(self):
    params = greedy(stop="never written", output_kind=RequestOutputKind.DELTA)
    whole = self.one()
    steps = list(self.llm.stream(PROMPT, params))
    self.assertEqual("".join(s.outputs[0].text for s in steps), whole.text)
    self.assertEqual([i for s in steps for i in s.outputs[0].token_ids], whole.token_ids)

  def test_streamed_logprobs_are_those_of_generate(self):
    params = greedy(8, logprobs=2, output_kind=RequestOutputKind.DELTA)
    whole = self.one(params=params)
    rows = [row for s in self.llm.stream(PROMPT, params) for row in s.outputs[0].logprobs]
    self.assertEqual(rows, whole.logprobs)
    *_, before, last = self.llm.stream(PROMPT, greedy(8, logprobs=2))
    self.assertAlmostEqual(before.outputs[0].cumulative_logprob, last.outputs[0].cumulative_logprob, 6)

  def test_a_stream_that_is_left_is_cancelled(self):
    aborted = self.llm.get_metrics().requests_aborted
    for step in self.llm.stream(PROMPT, ENDLESS):
      if len(step.outputs[0].token_ids) >= 3:
        break
    del step
    stats = self.llm.get_metrics()
    self.assertEqual((stats.requests_aborted, stats.running), (aborted + 1, 0))

  def test_async_streams_run_at_once(self):
    expected = [o.outputs for o in self.llm.generate(PROMPTS, GREEDY)]

    async def last(prompt):
      async for output in self.llm.generate_stream(prompt, GREEDY):
        pass
      return output.outputs

    async def all_of_them():
      return await asyncio.gather(*map(last, PROMPTS))

    self.assertEqual(asyncio.run(all_of_them()), expected)

  def test_an_async_stream_leaves_the_loop_free_and_ends_when_its_task_is_cancelled(self):
    aborted = self.llm.get_metrics().requests_aborted

    async def run():
      seen = 0

      async def take():
        nonlocal seen
        async for _ in self.llm.generate_stream(PROMPT, ENDLESS):
          seen += 1
      task, turns = asyncio.ensure_future(take()), 0
      while seen < 3:
        turns += 1
        await asyncio.sleep(0)
      task.cancel()
      with self.assertRaises(asyncio.CancelledError):
        await task
      return turns

    self.assertGreaterEqual(asyncio.run(run()), 3)
    self.assertEqual(self.llm.get_metrics().requests_aborted, aborted + 1)

  def test_other_threads_run_while_one_waits(self):
    expected = [o.outputs[0] for o in self.llm.generate(PROMPTS, GREEDY)]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
      self.assertEqual(list(pool.map(self.one, PROMPTS)), expected)

  def test_a_stream_of_several_samples_is_refused(self):
    self.assertRaisesRegex(ValueError, "n is 2", self.llm.stream, PROMPT, SamplingParams(n=2))


class Ends(unittest.TestCase):
  def test_closing_ends_what_other_threads_wait_for(self):
    llm, seen, errors = LLM(MODEL, max_model_len=16384), threading.Event(), []

    def work(run):
      try:
        run()
      except RuntimeError as error:
        errors.append(str(error))

    def stream():
      for _ in llm.stream(PROMPT, ENDLESS):
        seen.set()
    threads = [threading.Thread(target=work, args=(run,)) for run in (stream, lambda: llm.generate(PROMPTS, ENDLESS))]
    for thread in threads:
      thread.start()
    self.assertTrue(seen.wait(60))
    llm.close()
    for thread in threads:
      thread.join(60)
      self.assertFalse(thread.is_alive())
    self.assertEqual(errors, ["this LLM is closed"] * 2)
    self.assertEqual(repr(llm), "<hunch.LLM, closed>")

  def test_ctrl_c_is_a_keyboard_interrupt_and_the_llm_goes_on(self):
    for what in ("generate", "stream"):
      child = subprocess.Popen([sys.executable, "-c", INTERRUPTED, MODEL, what], stdout=subprocess.PIPE, text=True)
      self.addCleanup(child.stdout.close)
      self.assertEqual(child.stdout.readline(), "running\n")
      child.send_signal(signal.SIGINT)
      start = time.monotonic()
      self.assertEqual(child.stdout.readline(), "interrupted\n")
      took = time.monotonic() - start
      self.assertEqual(child.stdout.readline(), f"aborted {4 if what == 'generate' else 1}\n")
      self.assertEqual(child.stdout.read(), "after 4\n")
      self.assertEqual(child.wait(60), 0)
      self.assertLess(took, 10)  # a hang, not a slow machine

  def test_an_interpreter_that_ends_with_requests_running_ends_cleanly(self):
    for left in ("next(streams[0])", "threading.Thread(target=lambda: list(streams[0]), daemon=True).start(); next(streams[1])",
        "del llm; next(streams[1])"):
      code = f"""if 1:
                import sys, threading
                from hunch import LLM, SamplingParams
                llm = LLM(sys.argv[1], max_model_len=65536)
                endless = SamplingParams(max_tokens=None, ignore_eos=True)
                streams = [llm.stream("Once upon a time", endless) for _ in range(2)]
                {left}
                print("end", flush=True)"""
      done = subprocess.run([sys.executable, "-c", code, MODEL], capture_output=True, text=True, timeout=120)
      self.assertEqual((done.stdout, done.returncode), ("end\n", 0), done.stderr)
      if "daemon" not in left:  # whose thread may still say that the LLM was closed
        self.assertEqual(done.stderr, "")

  def test_the_library_leaves_signal_handlers_alone(self):
    def handlers():
      return [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD)]

    before = handlers()
    with LLM(MODEL, max_model_len=256) as llm:
      llm.generate(PROMPT, GREEDY)
    self.assertEqual(handlers(), before)
    with open("/proc/self/status") as status:
      caught = int(next(line for line in status if line.startswith("SigCgt:")).split()[1], 16)
    self.assertFalse(caught >> (signal.SIGTERM - 1) & 1)

  def test_a_fork_cannot_use_the_llm_and_its_parent_does_not_notice(self):
    with LLM(MODEL, max_model_len=256) as llm:
      [before] = llm.generate(PROMPT, GREEDY)
      running = llm.stream(PROMPT, GREEDY)
      next(running)
      read, write = os.pipe()
      child = os.fork()
      if child == 0:
        said = []
        uses = (lambda: llm.generate(PROMPT), llm.get_metrics, lambda: next(running), lambda: llm.tokenizer.encode("a"))
        for use in uses:
          try:
            use()
            said.append("no error")
          except RuntimeError as error:
            said.append(str(error)[:38])
        llm.close()
        del llm, running
        os.write(write, "\n".join(said).encode())
        os._exit(7)
      os.close(write)
      with os.fdopen(read) as pipe:
        said = pipe.read().splitlines()
      self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 7)
      self.assertEqual(said, [f"this LLM was loaded by process {os.getpid()} and"[:38]] * 4)
      self.assertEqual(list(running)[-1].outputs, before.outputs)
      self.assertEqual(llm.generate(PROMPT, GREEDY)[0].outputs, before.outputs)


if __name__ == "__main__":
  unittest.main()
