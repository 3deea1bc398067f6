"""A request whose tokens are taken as they come; LLM.stream and LLM.generate_stream share it."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hunch import _hunch
from hunch.outputs import CompletionOutput, Logprob, RequestOutput, add_prompt_logprobs, completion, metrics_of
from hunch.sampling_params import RequestOutputKind, SamplingParams
from hunch.tokenizer import Tokenizer


class Running:
  def __init__(self, stream: _hunch.Stream, blank: RequestOutput, params: SamplingParams, tokenizer: Tokenizer):
    self.stream, self.over = stream, False
    self._blank, self._params, self._tokenizer = blank, params, tokenizer
    self._text = ""
    self._ids: list[int] = []
    self._logprobs: list[dict[int, Logprob]] = []
    self._cumulative = 0.0

  def news(self, events: list[_hunch.TokenEvent]) -> Iterator[RequestOutput]:
    """What is to be yielded now that these tokens came; the last one is finished."""
    kind, params = self._params.output_kind, self._params
    if events:
      text = "".join(event.text for event in events) if params.detokenize else ""
      ids = [event.id for event in events]
      logprobs = [self._row(event) for event in events] if params.logprobs is not None else []
      self._cumulative += sum(event.logprob for event in events)
      self._text, self._ids, self._logprobs = self._text + text, self._ids + ids, self._logprobs + logprobs
      if kind is RequestOutputKind.CUMULATIVE:
        yield self._output(self._text, list(self._ids), list(self._logprobs))
      elif kind is RequestOutputKind.DELTA:
        yield self._output(text, ids, logprobs)
    if self.stream.finished():
      self.over = True
      yield self._end(kind)

  def _row(self, event: _hunch.TokenEvent) -> dict[int, Logprob]:
    piece = self._tokenizer.piece
    row = {token: Logprob(value, rank, piece(token)) for rank, (token, value) in enumerate(event.top, 1)}
    return row if event.id in row else {event.id: Logprob(event.logprob, None, piece(event.id)), **row}

  def _output(self, text: str, ids: list[int], logprobs: list) -> RequestOutput:
    wanted = self._params.logprobs is not None
    sample = CompletionOutput(0, text, ids, self._cumulative if wanted else None, logprobs if wanted else None)
    return replace(self._blank, outputs=[sample])

  def _end(self, kind: RequestOutputKind) -> RequestOutput:
    generation = self.stream.result()
    params, piece = self._params, self._tokenizer.piece
    out = replace(self._blank, finished=True, metrics=metrics_of([generation]))
    out.outputs = [completion(0, generation, params, piece)]
    if params.prompt_logprobs is not None:
      add_prompt_logprobs(out, generation, piece)
    if kind is RequestOutputKind.DELTA:  # text that was held back: it might have become a stop text
      sample = out.outputs[0]
      sample.text, sample.token_ids = sample.text[len(self._text):], []
      if sample.logprobs is not None:
        sample.logprobs = []
    return out
