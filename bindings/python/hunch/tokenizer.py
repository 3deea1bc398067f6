"""The loaded model's tokenizer, with the calls of it that programs use. LLM.tokenizer is one."""
from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hunch import _hunch


class Tokenizer:
  def __init__(self, engine: _hunch.Engine):
    self._engine = engine

  def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
    """Ids of a text. Special tokens spelled out in it become those tokens; add_special_tokens: the BOS token where the model
    wants one."""
    return self._engine.encode(text.encode(), add_bos=add_special_tokens)

  def decode(self, token_ids: int | Iterable[int], skip_special_tokens: bool = True) -> str:
    ids = [token_ids] if isinstance(token_ids, int) else [int(i) for i in token_ids]
    return self._engine.decode(ids, skip_special_tokens)

  def apply_chat_template(self, messages: Sequence[Mapping[str, object]], tools: Sequence[Mapping[str, object]] | None = None,
      **kwargs: object) -> list[int]:
    """Ids of a conversation by the model's template, opened for the answer; kwargs are variables of the template."""
    return self._engine.encode_chat(messages_json(messages), json.dumps(tools), json.dumps(kwargs))[0]

  def convert_tokens_to_ids(self, token: str) -> int | None:
    """The id of a token by its exact text."""
    return self._engine.token_id(token)

  @property
  def vocab_size(self) -> int:
    return self._engine.vocab_size

  @property
  def bos_token_id(self) -> int | None:
    return self._engine.bos_id

  @property
  def eos_token_id(self) -> int | None:
    return next(iter(self._engine.eos_ids), None)

  @property
  def chat_template(self) -> str | None:
    return self._engine.chat_template or None

  def piece(self, token: int) -> str | None:
    """What one token says; a part of a character is U+FFFD. None: the model has no tokenizer."""
    try:
      return self._engine.token_bytes(token).decode("utf-8", "replace")
    except ValueError:
      return None


def messages_json(messages: Sequence[Mapping[str, object]]) -> str:
  """vLLM's messages for a template: a content that is a list of text parts becomes one text."""
  out = []
  for message in messages:
    if not isinstance(message, Mapping) or "role" not in message or "content" not in message:
      raise ValueError(f'a message needs "role" and "content": {message!r}')
    content = message["content"]
    if content is not None and not isinstance(content, str):
      parts: list[Any] = list(content) if isinstance(content, Sequence) else [content]
      if not all(isinstance(part, Mapping) and part.get("type") == "text" for part in parts):
        raise ValueError('the content of a message must be a text or a list of {"type": "text", "text": ...}')
      content = "\n".join(str(part["text"]) for part in parts)
    for text in (message["role"], content):
      str(text).encode()
    out.append({**message, "role": str(message["role"]), "content": content})
  return json.dumps(out, allow_nan=False)
