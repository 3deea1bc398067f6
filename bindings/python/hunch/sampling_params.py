"""SamplingParams: what a request asks for, in vLLM's words, and how it becomes a request of the engine. Used by hunch/llm.py."""
from __future__ import annotations

import enum
import json
import numbers
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hunch import _hunch

MAX_SAMPLES = 128


class RequestOutputKind(enum.Enum):
  """What each RequestOutput of a stream holds."""
  CUMULATIVE = 0  # everything so far
  DELTA = 1       # what is new
  FINAL_ONLY = 2  # everything, once, at the end


@dataclass
class StructuredOutputsParams:
  """What the output must look like: exactly one of these."""
  json: str | Mapping | None = None  # a JSON schema
  regex: str | None = None
  choice: Sequence[str] | None = None
  grammar: str | None = None         # EBNF in llama.cpp's notation
  json_object: bool | None = None

  def __post_init__(self):
    kinds = ("json", "regex", "choice", "grammar", "json_object")
    given = [name for name in kinds if getattr(self, name) not in (None, False)]
    if len(given) != 1:
      raise ValueError(f"structured_outputs needs exactly one of {', '.join(kinds)}"
          + (f", not {' and '.join(given)}" if given else ""))


# Fields of numbers: whole ones, and any. None is allowed where the default is None.
_WHOLE = ("n", "top_k", "seed", "min_tokens", "max_tokens", "logprobs", "prompt_logprobs")
_NUMBERS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
_OPTIONAL = ("seed", "max_tokens", "logprobs", "prompt_logprobs")


@dataclass
class SamplingParams:
  """How one request is sampled. Ranges are checked by the engine when the request is made; its messages name the field."""
  n: int = 1
  temperature: float = 1.0  # 0: always the likeliest token
  top_p: float = 1.0
  top_k: int = 0            # 0 or -1: all
  min_p: float = 0.0
  seed: int | None = None   # None: drawn, and reported in the metrics
  stop: str | Sequence[str] | None = None
  stop_token_ids: Sequence[int] | None = None
  max_tokens: int | None = 16  # None: until the context is full
  min_tokens: int = 0
  logprobs: int | None = None         # of each token and of this many of the likeliest
  prompt_logprobs: int | None = None  # the same for the prompt
  presence_penalty: float = 0.0
  frequency_penalty: float = 0.0
  repetition_penalty: float = 1.0
  logit_bias: Mapping[int, float] | None = None  # -100 bans
  allowed_token_ids: Sequence[int] | None = None
  bad_words: Sequence[str] | None = None
  ignore_eos: bool = False
  skip_special_tokens: bool = True
  detokenize: bool = True
  include_stop_str_in_output: bool = False
  structured_outputs: StructuredOutputsParams | Mapping | None = None
  output_kind: RequestOutputKind = field(default=RequestOutputKind.CUMULATIVE)

  def __post_init__(self):
    for name in _WHOLE + _NUMBERS:
      value, whole = getattr(self, name), name in _WHOLE
      if value is None and name in _OPTIONAL:
        continue
      if isinstance(value, bool) or not isinstance(value, numbers.Integral if whole else numbers.Real):
        raise ValueError(f"{name} must be {'a whole number' if whole else 'a number'}, not {value!r}")
      if whole and name != "seed" and value >= (most := 1 << (63 if name.endswith("_tokens") else 31)):
        raise ValueError(f"{name} is {value}; it must be below {most}")
    if not 1 <= self.n <= MAX_SAMPLES:
      raise ValueError(f"n is {self.n}; it must be in 1..{MAX_SAMPLES}")
    if self.top_k < -1:
      raise ValueError(f"top_k is {self.top_k}; it must be -1 or 0 (all) or at least 1")
    if self.seed is not None and not 0 <= self.seed < 1 << 64:
      raise ValueError(f"seed is {self.seed}; it must be in 0..{(1 << 64) - 1}, or None")
    if self.max_tokens is not None and self.max_tokens < 1:
      raise ValueError(f"max_tokens is {self.max_tokens}; it must be at least 1, or None for no limit")
    if self.max_tokens is not None and self.min_tokens > self.max_tokens:
      raise ValueError(f"min_tokens is {self.min_tokens} and max_tokens {self.max_tokens}: the least exceeds the most")
    for name in ("logprobs", "prompt_logprobs"):
      value = getattr(self, name)
      if value is not None and value < 0:
        raise ValueError(f"{name} is {value}; it must be 0 or more, or None")
    if self.include_stop_str_in_output:
      raise ValueError("include_stop_str_in_output is not available: the text ends before the stop text, "
          "which stop_reason names")
    self.stop = [self.stop] if isinstance(self.stop, str) else list(self.stop or [])
    self.bad_words = [self.bad_words] if isinstance(self.bad_words, str) else list(self.bad_words or [])
    if isinstance(self.structured_outputs, Mapping):
      try:
        self.structured_outputs = StructuredOutputsParams(**self.structured_outputs)
      except TypeError as wrong:
        raise ValueError(f"structured_outputs: {str(wrong).split('__init__() ')[-1]}") from None
    if self.structured_outputs is not None and not isinstance(self.structured_outputs, StructuredOutputsParams):
      raise ValueError("structured_outputs must be a StructuredOutputsParams or a dict of its fields")
    if not isinstance(self.output_kind, RequestOutputKind):
      raise ValueError("output_kind must be a RequestOutputKind")


def _ids(name: str, values: Iterable[object] | None) -> list[int]:
  out = []
  for value in () if values is None else values:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not -(1 << 31) <= int(value) < 1 << 31:
      raise ValueError(f"{name} must hold token ids, not {value!r}")
    out.append(int(value))
  return out


def _texts(name: str, values) -> list[str]:
  if isinstance(values, (str, bytes)):
    raise ValueError(f"{name} must be a list of strings, not {values!r}")
  for value in values:
    if not isinstance(value, str):
      raise ValueError(f"{name} must hold strings, not {value!r}")
    value.encode()  # a ValueError where half a surrogate pair stands in it
  return list(values)


def sampling_options(params: SamplingParams, engine: _hunch.Engine, seed: int | None) -> _hunch.SamplingOptions:
  out = _hunch.SamplingOptions()
  for name in _NUMBERS:
    setattr(out, name, float(getattr(params, name)))
  out.top_k = max(0, int(params.top_k))
  out.seed = int(params.seed) if params.seed is not None else seed
  biases = dict(params.logit_bias or {})
  out.logit_bias = list(zip(_ids("logit_bias", (int(i) for i in biases)), map(float, biases.values())))
  out.allowed_token_ids = _ids("allowed_token_ids", params.allowed_token_ids)
  if params.allowed_token_ids is not None and not out.allowed_token_ids:
    raise ValueError("allowed_token_ids is empty: nothing could be chosen; leave it out")
  out.bad_words = bad_word_ids(_texts("bad_words", params.bad_words), engine)
  out.min_tokens = int(params.min_tokens)
  out.logprobs = -1 if params.logprobs is None else int(params.logprobs)
  out.prompt_logprobs = -1 if params.prompt_logprobs is None else int(params.prompt_logprobs)
  return out


def request_of(params: SamplingParams, prompt: Sequence[int], speculation: _hunch.SpeculationOptions, engine: _hunch.Engine,
    seed: int | None) -> _hunch.Request:
  """The request for the first sample of a prompt."""
  out = _hunch.Request()
  out.prompt = _ids("prompt_token_ids", prompt)
  out.max_tokens = -1 if params.max_tokens is None else int(params.max_tokens)
  out.ignore_eos = bool(params.ignore_eos)
  out.stop_ids = _ids("stop_token_ids", params.stop_token_ids)
  out.stop = _texts("stop", params.stop)
  out.sampling = sampling_options(params, engine, seed)
  out.speculation = speculation
  out.skip_special_tokens = bool(params.skip_special_tokens)
  if params.structured_outputs is not None:
    constrain(out, params.structured_outputs)
  return out


def constrain(request: _hunch.Request, wanted: StructuredOutputsParams) -> None:
  if wanted.json is not None:
    request.constrain("json", wanted.json if isinstance(wanted.json, str) else json.dumps(wanted.json))
  elif wanted.regex is not None:
    request.constrain("regex", *_texts("regex", [wanted.regex]))
  elif wanted.grammar is not None:
    request.constrain("grammar", *_texts("grammar", [wanted.grammar]))
  elif wanted.choice is not None:
    request.constrain("choice", choices=_texts("choice", wanted.choice))
  else:
    request.constrain("json_object")


def bad_word_ids(words: Sequence[str], engine: _hunch.Engine) -> list[list[int]]:
  """As vLLM does it: the words as they begin a text, and behind a blank where that is another token of the same number."""
  out = []
  for word in words:
    bare = word.lstrip()
    first, inside = (engine.encode(text.encode(), add_bos=False) for text in (bare, " " + bare))
    if not first:
      raise ValueError("bad_words holds a word that is only white space")
    if inside and inside[0] != first[0] and len(inside) == len(first):
      out.append(inside)
    out.append(first)
  return out
