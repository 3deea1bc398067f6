"""LLM: one loaded model, in the words of vLLM's class of this name. What vLLM's has and this one has not is refused by name."""
from __future__ import annotations

import asyncio
import difflib
import inspect
import itertools
import json
import numbers
import os
import secrets
import warnings
import weakref
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Union

from hunch import _hunch
from hunch.outputs import CompletionOutput, RequestOutput, add_prompt_logprobs, completion, metrics_of
from hunch.running import Running
from hunch.sampling_params import SamplingParams, request_of
from hunch.tokenizer import Tokenizer, messages_json

# A prompt: text, token ids, or vLLM's dictionaries of either.
Prompt = Union[str, Sequence[int], Mapping[str, object]]
Messages = Sequence[Mapping[str, object]]

_KV_DTYPES = {"auto": "", "bfloat16": "bf16", "float16": "f16", "float32": "f32", "fp8_e4m3": "fp8"}
_MOST_IN_FLIGHT = 1024  # requests of one generate() that the engine knows of; the rest follow

# Arguments of vLLM that may stand where they change nothing, with the values that mean "as it is".
_HARMLESS = {"enforce_eager": (True, False, None), "trust_remote_code": (True, False), "disable_log_stats": (True, False),
    "block_size": (None, 8, 16, 32, 64, 128),
    "tokenizer": (None,), "tokenizer_mode": ("auto",), "skip_tokenizer_init": (False,), "quantization": (None, "gguf"),
    "pipeline_parallel_size": (1,), "data_parallel_size": (1,), "swap_space": (0, 4, 4.0), "cpu_offload_gb": (0, 0.0),
    "enable_chunked_prefill": (True, None), "disable_custom_all_reduce": (True, False), "revision": (None,),
    "tokenizer_revision": (None,), "enable_lora": (False,), "hf_overrides": (None,), "load_format": ("auto", "gguf")}
_ANSWERS = {"quantization": "the file says how its weights are stored; hunch quantize writes other files",
    "tokenizer": "the model's own tokenizer is used",
    "revision": "nothing is downloaded: model names a folder or file",
    "skip_tokenizer_init": "give prompt_token_ids where the tokenizer is not wanted",
    "enable_chunked_prefill": "prompts are always read in chunks"}


def _check_others(others: Mapping[str, object]) -> None:
  known = [*_HARMLESS, *(name for name in inspect.signature(LLM).parameters if name != "others")]
  for name, value in others.items():
    if name not in _HARMLESS:
      near = difflib.get_close_matches(name, known, 1)
      raise TypeError(f"LLM() has no argument {name!r}" + (f" (did you mean {near[0]}?)" if near else ""))
    if value not in _HARMLESS[name]:
      answer = _ANSWERS.get(name, "not available: leave it out")
      raise ValueError(f"LLM(): {name}={value!r}: {answer}")


class LLM:
  """A model that runs requests on threads of its own. `with LLM(...) as llm:` or close() frees it.

  model: a Hugging Face folder or a GGUF file. speculative_config: the dictionary of --speculative-config (docs/flags.md);
  None: whatever pays, exact in any case. seed: requests without a seed of their own get seed, seed + 1, ...
  Methods may be called from any thread. Raises ValueError for what cannot be, RuntimeError for what went wrong.
  """

  def __init__(self, model: str | os.PathLike, *, speculative_config: Mapping[str, object] | None = None,
      tensor_parallel_size: int = 1, gpu_memory_utilization: float | None = None, max_model_len: int | None = None,
      seed: int | None = None, dtype: str = "auto", device: str = "cpu", threads: int | None = None,
      isa: str | None = None, kv_cache_dtype: str = "auto", kv_cache_memory_bytes: int | None = None,
      max_num_seqs: int | None = None, max_num_batched_tokens: int | None = None, enable_prefix_caching: bool = True,
      verify_calibration: str | os.PathLike | None = None, **others):
    _check_others(others)
    if tensor_parallel_size != 1:
      raise ValueError(f"tensor_parallel_size is {tensor_parallel_size}; it must be 1: a model runs on one device")
    if gpu_memory_utilization is not None and not 0 < gpu_memory_utilization <= 1:
      raise ValueError(f"gpu_memory_utilization is {gpu_memory_utilization}; it must be above 0 and at most 1")
    sizes = (("threads", threads), ("max_num_seqs", max_num_seqs), ("kv_cache_memory_bytes", kv_cache_memory_bytes),
        ("max_num_batched_tokens", max_num_batched_tokens))
    for name, value in (*sizes, ("max_model_len", max_model_len), ("seed", seed)):
      if value is not None and (isinstance(value, bool) or not isinstance(value, numbers.Integral)):
        raise TypeError(f"{name} must be a whole number, not {value!r}")
    if max_model_len is not None and max_model_len < 1:
      raise ValueError(f"max_model_len is {max_model_len}; it must be at least 1, or None for the model's own")
    if seed is not None and not 0 <= seed < 1 << 64:
      raise ValueError(f"seed is {seed}; it must be in 0..{(1 << 64) - 1}, or None")
    if dtype != "auto":
      warnings.warn(f"dtype={dtype!r} has no effect: weights keep the type of their file", stacklevel=2)
    for name, value in sizes:
      most = (1 << (63 if name.endswith("bytes") else 31)) - 1
      if value is not None and not 1 <= value <= most:
        raise ValueError(f"{name} is {value!r}; it must be in 1..{most}")
    options = _hunch.EngineOptions()
    options.model = os.fspath(model)
    options.device = device
    options.isa = isa or ""
    options.threads = int(threads or 0)
    options.kv_dtype = _KV_DTYPES.get(kv_cache_dtype, kv_cache_dtype)
    options.kv_memory_bytes = int(kv_cache_memory_bytes or 0)
    options.memory_share = gpu_memory_utilization or options.memory_share
    options.fill_memory = gpu_memory_utilization is not None
    options.context_len = int(max_model_len or 0)
    options.max_num_seqs = int(max_num_seqs or 0)
    options.max_num_batched_tokens = int(max_num_batched_tokens or 0)
    options.prefix_caching = enable_prefix_caching
    options.verify_calibration = os.fspath(verify_calibration or "")
    config = _config_text(speculative_config)
    options.load_drafters(config)
    self._engine = _hunch.Engine(options)
    # Also at the interpreter's end, while threads that wait in the engine can still come back from it.
    self._closing = weakref.finalize(self, self._engine.close)
    self._speculation = self._engine.speculation(config)
    self._request_ids = itertools.count()
    self._seeds = None if seed is None else (i % (1 << 64) for i in itertools.count(int(seed)))
    self._tokenizer = Tokenizer(self._engine)

  def generate(self, prompts: Prompt | Iterable[Prompt],
      sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, *,
      speculative_config: Mapping[str, object] | None = None, use_tqdm: bool = False,
      priority: Sequence[int] | None = None) -> list[RequestOutput]:
    """Continues one prompt or a list of them, all at once; answers stand in the order of the prompts.

    A prompt is a text, a list of token ids, or a dictionary with `prompt` or `prompt_token_ids`. sampling_params: one for
    all, or one for each. speculative_config: how these requests guess, if not as the LLM does. use_tqdm: there is no
    progress bar. Ctrl-C cancels all of them.
    """
    pairs = _pairs(_prompt_list(prompts), sampling_params)
    return self._run([_Job(self, prompt, params, speculative_config) for prompt, params in pairs], priority)

  def chat(self, messages: Messages | Iterable[Messages],
      sampling_params: SamplingParams | Sequence[SamplingParams] | None = None, *,
      speculative_config: Mapping[str, object] | None = None, use_tqdm: bool = False,
      priority: Sequence[int] | None = None, tools: Sequence[Mapping[str, object]] | None = None,
      chat_template_kwargs: Mapping[str, object] | None = None) -> list[RequestOutput]:
    """Answers a conversation, a list of {"role", "content"}, or each of a list of conversations, written by the model's
    template. tools: functions for the template, as OpenAI describes them."""
    conversations: list = list(messages)
    if conversations and isinstance(conversations[0], Mapping):
      conversations = [conversations]
    jobs = []
    for conversation, params in _pairs(conversations, sampling_params):
      ids, stop_ids = self._engine.encode_chat(messages_json(conversation), json.dumps(tools, allow_nan=False),
          json.dumps(chat_template_kwargs, allow_nan=False))
      prompt = {"prompt": self._tokenizer.decode(ids, skip_special_tokens=False), "prompt_token_ids": ids}
      jobs.append(_Job(self, prompt, params, speculative_config, stop_ids))
    return self._run(jobs, priority)

  def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None, *,
      speculative_config: Mapping[str, object] | None = None) -> Iterator[RequestOutput]:
    """Continues one prompt and yields after each token or round of tokens; output_kind says what. Closing the generator
    cancels the request."""
    return self._stream(self._start(prompt, sampling_params, speculative_config))

  def generate_stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None, *,
      speculative_config: Mapping[str, object] | None = None) -> AsyncIterator[RequestOutput]:
    """stream() for asyncio: `async for output in llm.generate_stream(...)`. Many may run at once in one loop."""
    return self._async_stream(self._start(prompt, sampling_params, speculative_config))

  @property
  def tokenizer(self) -> Tokenizer:
    return self._tokenizer

  def get_tokenizer(self) -> Tokenizer:
    return self._tokenizer

  def get_metrics(self) -> _hunch.EngineStats:
    """What the engine did since it was loaded."""
    return self._engine.stats()

  @property
  def max_model_len(self) -> int:
    return self._engine.context_len

  @property
  def description(self) -> str:
    return self._engine.description

  def close(self) -> None:
    """Cancels what runs and frees the model. Twice is fine."""
    self._closing()

  def __enter__(self) -> LLM:
    return self

  def __exit__(self, *_) -> None:
    self.close()

  def __repr__(self) -> str:
    return "<hunch.LLM, closed>" if self._engine.closed else f"<hunch.LLM {self._engine.description}>"

  def _prompt_ids(self, prompt) -> tuple[str | None, list[int]]:
    if isinstance(prompt, Mapping):
      for key, value in prompt.items():
        if key not in ("prompt", "prompt_token_ids", "cache_salt") and value is not None:
          raise ValueError(f"a prompt has no {key!r} here: leave it out")
      if "prompt_token_ids" in prompt:
        return prompt.get("prompt"), list(prompt["prompt_token_ids"])
      if "prompt" not in prompt:
        raise ValueError('a prompt that is a dictionary needs "prompt" or "prompt_token_ids", '
            f"not {', '.join(map(repr, prompt)) or 'nothing'}")
      prompt = prompt["prompt"]
    if isinstance(prompt, str):
      if not prompt:
        raise ValueError("the prompt is empty: give at least one character")
      return prompt, self._tokenizer.encode(prompt)
    if isinstance(prompt, (bytes, bytearray)) or not isinstance(prompt, Iterable):
      raise ValueError(f"a prompt is a text, token ids or a dictionary, not {prompt!r}")
    return None, list(prompt)

  def _start(self, prompt, params: SamplingParams | None, speculative_config) -> Running:
    ((prompt, params),) = _pairs([prompt], params)
    if params.n != 1:
      raise ValueError(f"n is {params.n}: a stream has one sample; use generate(), or a stream for each")
    job = _Job(self, prompt, params, speculative_config)
    return Running(self._engine.submit(job.request), job.blank(), params, self._tokenizer)

  def _stream(self, running: Running) -> Iterator[RequestOutput]:
    try:
      while not running.over:
        yield from running.news(running.stream.take(1000))
    finally:
      running.stream.close()

  async def _async_stream(self, running: Running) -> AsyncIterator[RequestOutput]:
    # Looked at rather than waited for: no thread is spent on a request that waits, however many there are.
    pause = least = 0.001
    try:
      while not running.over:
        events = running.stream.take(0)
        for output in running.news(events):
          yield output
        pause = least if events else min(2 * pause, 0.02)
        if not running.over:
          await asyncio.sleep(pause)
    finally:
      # It waits for the pass that runs, which others of this loop need not.
      running.stream.cancel()
      await asyncio.shield(asyncio.to_thread(running.stream.close))

  def _run(self, jobs: list[_Job], priority: Sequence[int] | None) -> list[RequestOutput]:
    if priority is not None and len(priority) != len(jobs):
      raise ValueError(f"priority has {len(priority)} numbers for {len(jobs)} prompts")
    for job, number in zip(jobs, priority or []):
      job.request.priority = number
    waiting = iter([(job, index) for job in jobs for index in range(job.params.n)])
    running: list[tuple[_hunch.Stream, _Job, int]] = []
    try:
      while True:
        for job, index in itertools.islice(waiting, _MOST_IN_FLIGHT - len(running)):
          job.request.sample_index = index
          running.append((self._engine.submit(job.request), job, index))
        if not running:
          return [job.output() for job in jobs]
        over = set(self._engine.wait_any([stream for stream, _, _ in running]))
        for i in over:
          stream, job, index = running[i]
          job.generations[index] = stream.result()
          stream.close()
        running = [one for i, one in enumerate(running) if i not in over]
    except BaseException:  # Ctrl-C too: nothing is left running behind an answer that nobody gets
      for stream, _, _ in running:
        if not self._engine.closed:
          stream.cancel()
      for stream, _, _ in running:
        stream.close()
      raise


class _Job:
  """One prompt of a generate(), with all its samples."""

  def __init__(self, llm: LLM, prompt, params: SamplingParams, speculative_config, chat_stop_ids=()):
    self.tokenizer, self.params = llm.tokenizer, params
    self.prompt, ids = llm._prompt_ids(prompt)
    engine = llm._engine
    speculation = llm._speculation if speculative_config is None else engine.speculation(_config_text(speculative_config))
    seed = next(llm._seeds) if llm._seeds is not None and params.seed is None else None
    if seed is None and params.n > 1:  # one for all samples, so that they come again
      seed = secrets.randbits(64)
    self.request = request_of(params, ids, speculation, engine, seed)
    if isinstance(prompt, Mapping):
      self.request.cache_salt = str(prompt.get("cache_salt") or "")
    if not params.ignore_eos:
      self.request.stop_ids = [*self.request.stop_ids, *chat_stop_ids]
    self.request_id = str(next(llm._request_ids))
    self.generations: dict[int, _hunch.Generation] = {}  # by the sample's index

  def blank(self) -> RequestOutput:
    return RequestOutput(self.request_id, self.prompt, list(self.request.prompt), [CompletionOutput(0, "", [])])

  def output(self) -> RequestOutput:
    out, piece = self.blank(), self.tokenizer.piece
    generations = [self.generations[i] for i in range(self.params.n)]
    out.outputs = [completion(i, g, self.params, piece) for i, g in enumerate(generations)]
    if self.params.prompt_logprobs is not None:
      add_prompt_logprobs(out, generations[0], piece)
    out.finished, out.metrics = True, metrics_of(generations)
    return out


def _config_text(config: Mapping[str, object] | None) -> str:
  if config is None:
    return '{"method": "auto"}'
  if not isinstance(config, Mapping):
    raise ValueError(f"speculative_config must be a dictionary such as {{'method': 'self'}}, not {config!r}")
  try:
    return json.dumps(dict(config))
  except (TypeError, ValueError) as wrong:
    raise ValueError(f"speculative_config: {wrong}") from None


def _prompt_list(prompts) -> list:
  if isinstance(prompts, (str, bytes, bytearray, Mapping)):
    return [prompts]
  prompts = list(prompts)
  return [prompts] if prompts and isinstance(prompts[0], numbers.Integral) else prompts


def _pairs(prompts: list, params) -> list[tuple[Any, SamplingParams]]:
  if params is None or isinstance(params, SamplingParams):
    return [(prompt, params or SamplingParams()) for prompt in prompts]
  params = [] if isinstance(params, Mapping) else list(params)
  if not all(isinstance(one, SamplingParams) for one in params) or (prompts and not params):
    raise ValueError("sampling_params must be a SamplingParams, or a list with one for each prompt")
  if len(params) != len(prompts):
    raise ValueError(f"{len(params)} sampling_params for {len(prompts)} prompts: give one for all, or one for each")
  return list(zip(prompts, params))
