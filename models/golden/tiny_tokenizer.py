"""The tokenizer of the tiny models: a token a byte, one merge, three special tokens."""

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WORDS, REST = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|", r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERN = {  # pre-tokenizer by the name GGUF gives it
    name: WORDS + digits + REST
    for name, digits in (("qwen2", r"\p{N}"), ("llama-bpe", r"\p{N}{1,3}"))
}


def byte_spellings():
  """the 256 byte tokens in GPT-2's order and spelling: printable bytes first, the others as U+0100 and up"""
  printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
  return [chr(b) for b in printable] + [chr(0x100 + i) for i in range(256 - len(printable))]


MERGE = ("\u0120", "t")  # one merge, " t": an empty list cannot be written to GGUF
TOKENS = byte_spellings() + ["".join(MERGE)] + SPECIALS
VOCAB = len(TOKENS)
EOS, CHAT_END = VOCAB - 3, VOCAB - 1
FIRST_SPECIAL = VOCAB - len(SPECIALS)


def tokenizer_json(pre):
  level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
  split = {"type": "Split", "pattern": {"Regex": PATTERN[pre]}, "behavior": "Isolated", "invert": False}
  flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
  return {
      "version": "1.0", "truncation": None, "padding": None,
      "added_tokens": [{"id": FIRST_SPECIAL + i, "content": s, **flags} for i, s in enumerate(SPECIALS)],
      "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
      "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, level]},
      "post_processor": level, "decoder": level,
      "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
      "vocab": {t: i for i, t in enumerate(TOKENS[:FIRST_SPECIAL])}, "merges": [list(MERGE)]},
  }  # fmt: skip


TOKENIZER_CONFIG = {"add_bos_token": False, "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIALS[2]}
SAMPLING = {"bos_token_id": EOS, "eos_token_id": [EOS, CHAT_END], "do_sample": True, "temperature": 0.8, "top_p": 0.95}
