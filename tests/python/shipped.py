"""What the tests of the Python package share: the shipped model, the program to compare with, one LLM for a test class."""
import json
import os
import pathlib
import subprocess
import unittest

from hunch import LLM, SamplingParams

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = str(ROOT / "models" / "wren-34m.gguf")
PROGRAM = os.environ.get("HUNCH", str(ROOT / "build" / "release" / "hunch"))
PROMPT = "The captain looked at the"
PROMPTS = [PROMPT, "Once upon a time there was", "It was a dark night, and"]


def greedy(max_tokens=24, **more):
  return SamplingParams(temperature=0, max_tokens=max_tokens, **more)


GREEDY = greedy()


def run_json(*flags):
  """What `hunch run --json` says."""
  command = [PROGRAM, "run", "-m", MODEL, "--json", *map(str, flags)]
  done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=120)
  return json.loads(done.stdout)


class ShippedModel(unittest.TestCase):
  """One LLM for all tests of a class; short contexts load fast."""
  arguments = {"max_model_len": 1024}

  @classmethod
  def setUpClass(cls):
    cls.llm = LLM(model=MODEL, **cls.arguments)

  @classmethod
  def tearDownClass(cls):
    cls.llm.close()

  def one(self, prompt=PROMPT, params=GREEDY, **more):
    """The one answer to one prompt."""
    return self.llm.generate(prompt, params, **more)[0].outputs[0]
