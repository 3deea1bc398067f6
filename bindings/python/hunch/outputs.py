"""What comes of a request, in vLLM's shapes, with log-probabilities as numpy arrays besides. Made by hunch/llm.py."""
from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from hunch import _hunch
from hunch.sampling_params import SamplingParams


@dataclass
class Logprob:
  logprob: float
  rank: int | None  # 1: the likeliest; None: behind those that were asked for
  decoded_token: str | None


@dataclass
class CompletionOutput:
  """One sample. `token_ids` ends before the id that stopped it, `text` before the stop text."""
  index: int
  text: str
  token_ids: list[int]
  cumulative_logprob: float | None = None        # if log-probabilities were asked for, like the following
  logprobs: list[dict[int, Logprob]] | None = None
  logprobs_array: np.ndarray | None = field(default=None, compare=False)  # float32 [token]
  top_token_ids: np.ndarray | None = field(default=None, compare=False)   # int32 [token][rank], likeliest first
  top_logprobs: np.ndarray | None = field(default=None, compare=False)    # float32 [token][rank]
  finish_reason: str | None = None               # "stop", "length", "abort"; None: it runs
  stop_reason: str | int | None = None           # the stop text or the one of stop_token_ids that ended it

  def finished(self) -> bool:
    return self.finish_reason is not None


@dataclass
class RequestMetrics:
  """Figures of one request; of several samples the sums, and the rates over all of them."""
  drafter: str                 # who guessed
  policy: str                  # what its guesses read
  rule: str                    # match: the stream of plain decoding, bit for bit; ratio: its distribution
  lossless: bool
  mean_acceptance_length: float  # tokens a round, the checking pass's own included; 1 without speculation
  acceptance_by_position: list[float]
  rounds: int
  drafted: int
  accepted: int
  num_speculative_tokens: int
  prompt_tokens: int
  num_cached_tokens: int       # of the prompt, found in the prefix cache
  generated_tokens: int
  tokens_per_second: float     # of the first sample, between its first and its last token
  plain_tokens_per_second: float  # the same without speculation, by the costs that the engine measured; 0: not known
  prefill_ms: float
  decode_ms: float
  kv_bytes_read_per_token: float
  seed: int                    # that the samples were drawn with
  warning: str = ""            # what its user should look into
  approx: dict | None = None   # lossy checks: what the first such sample's left out


@dataclass
class RequestOutput:
  request_id: str
  prompt: str | None
  prompt_token_ids: list[int]
  outputs: list[CompletionOutput]
  finished: bool = False
  metrics: RequestMetrics | None = None  # at the end
  prompt_logprobs: list[dict[int, Logprob] | None] | None = None
  prompt_logprobs_array: np.ndarray | None = field(default=None, compare=False)  # float32 [token]; the first is NaN


def _table(tokens, values, top_ids, top_values, piece: Callable[[int], str | None]) -> list[dict[int, Logprob]]:
  out = []
  for i, (token, value) in enumerate(zip(tokens, values)):
    row = {}
    for rank in range(top_ids.shape[1] if len(top_ids) else 0):
      if top_ids[i, rank] >= 0:
        row[int(top_ids[i, rank])] = Logprob(float(top_values[i, rank]), rank + 1, piece(int(top_ids[i, rank])))
    if token not in row:  # vLLM puts the chosen one first
      row = {token: Logprob(float(value), None, piece(token)), **row}
    out.append(row)
  return out


def completion(index: int, generation: _hunch.Generation, params: SamplingParams,
    piece: Callable[[int], str | None]) -> CompletionOutput:
  out = CompletionOutput(index, generation.text if params.detokenize else "", generation.tokens)
  out.finish_reason = "abort" if generation.finish_reason == "interrupted" else generation.finish_reason
  out.stop_reason = generation.stopped_by or None
  if generation.stopped_by_id in (params.stop_token_ids or ()):  # the model's own ends have no reason, as in vLLM
    out.stop_reason = generation.stopped_by_id
  if params.logprobs is not None:
    out.logprobs_array = generation.logprobs
    out.top_token_ids, out.top_logprobs = generation.top
    out.cumulative_logprob = float(out.logprobs_array.sum(dtype=np.float64))
    out.logprobs = _table(out.token_ids, out.logprobs_array, out.top_token_ids, out.top_logprobs, piece)
  return out


def add_prompt_logprobs(out: RequestOutput, generation: _hunch.Generation, piece: Callable[[int], str | None]) -> None:
  values = generation.prompt_logprobs
  out.prompt_logprobs_array = np.concatenate([np.full(1, np.nan, np.float32), values])
  out.prompt_logprobs = [None, *_table(out.prompt_token_ids[1:], values, *generation.prompt_top, piece)]


def metrics_of(samples: list[_hunch.Generation]) -> RequestMetrics:
  first = samples[0]
  rounds, drafted, accepted = (sum(getattr(g, name) for g in samples) for name in ("rounds", "drafted", "accepted"))
  return RequestMetrics(
      drafter=first.proposer, policy=first.policy, rule=first.rule, lossless=all(g.lossless for g in samples),
      mean_acceptance_length=1 + accepted / rounds if rounds else 1.0, acceptance_by_position=first.acceptance_by_position,
      rounds=rounds, drafted=drafted, accepted=accepted, num_speculative_tokens=first.gamma,
      prompt_tokens=first.prompt_tokens, num_cached_tokens=min(g.reused_tokens for g in samples),
      generated_tokens=sum(len(g.tokens) for g in samples), tokens_per_second=first.tokens_per_second,
      plain_tokens_per_second=first.plain_tokens_per_second, prefill_ms=first.prefill_ms, decode_ms=first.decode_ms,
      kv_bytes_read_per_token=first.kv_bytes_read_per_token, seed=first.seed,
      warning=next((g.warning for g in samples if g.warning), ""),
      approx=next((json.loads(g.approx) for g in samples if g.approx), None))
