#!/usr/bin/env python3
"""Records what the PyPI package `tokenizers` makes of varied text, for src/text's tests.

Writes into models/golden/text/: lines.json (the text, one JSON string a line), small tokenizers trained here on generated text
(llama3.json, gpt2.json, qwen2.json: vocabulary about 600) and golden.json (per tokenizer: 6 hex digits a line of
sum (j+1)*id mod 2^24; the sums that change when special tokens are plain text; all ids of every 100th line, and what every second
of them decodes to). wren.json is the shipped model's tokenizer.json without vocabulary and merges: the tests take those from
models/wren-34m.gguf. With --wren DIR it and its record are written anew from that folder; otherwise they stay.

    python3 models/golden/make_text_golden.py [--wren models/wren-34m]
"""
import argparse
import json
import pathlib
import platform
import random
import unicodedata

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = pathlib.Path(__file__).resolve().parent / "text"
CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + TAIL
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + TAIL

WORDS = """the of and to in that is was he for it with as his on be at by had not are but from or have an they which one you were all
her she there would their we him been has when who will no more if out so said what up its about into than them can only other time
new some could these two may first then do any like my now over such our man me even most made after also did many before must
through years where much your way well down should because each just those people how too little state good very make world still
see work long here get both between life being under never day same another know year while last might great old against go few
house use during without again place around however home small found thought went say part once high general upon school every
quickly running walked attention sparse draft verify token kernel matrix window""".split()
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", "\n\n\n", " \n", "\n ", "\t\t", "\x0b", "\x0c", "\x85", "\u00a0", "\u1680", "\u2003",
    "\u2028", "\u2029", "\u202f", "\u205f", "\u3000", "\u180e", "\u200b", "\ufeff", "\x1c", "\x1f"]
MARKS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>",
    "<mask>", "<word>", "hunch", "caf\u00e9", "cafe\u0301", "<|im_start", "|im_end|>", "<|im_<|im_end|>end|>"]


def ranges(*pairs):
  """Assigned characters (of this Python's Unicode) in the given ranges."""
  return [chr(c) for a, b in pairs for c in range(a, b + 1) if unicodedata.category(chr(c)) not in ("Cn", "Cs", "Co")]


SCRIPTS = {
    "latin": ranges((0xC0, 0x24F), (0x1E00, 0x1EFF)),
    "greek_cyrillic": ranges((0x370, 0x52F)),
    "rtl": ranges((0x591, 0x6FF), (0xFB1D, 0xFB4F), (0xFE70, 0xFEFC)),
    "indic": ranges((0x900, 0xDFF)),
    "thai_tibetan": ranges((0xE00, 0xFFF)),
    "jamo": ranges((0x1100, 0x11FF), (0xA960, 0xA97C), (0xD7B0, 0xD7FB)),
    "hangul": ranges((0xAC00, 0xD7A3)),
    "cjk": ranges((0x3001, 0x30FF), (0x4E00, 0x9FA5), (0xF900, 0xFAD9), (0xFF01, 0xFFEE)),
    "symbols": ranges((0x2010, 0x2BFF)),
    "emoji": ranges((0x1F300, 0x1F64F), (0x1F680, 0x1F6C5), (0x1F900, 0x1F9FF), (0x1F1E6, 0x1F1FF)) + ["\u200d", "\ufe0f", "\U0001f3fd"],
    "astral": ranges((0x10330, 0x1034A), (0x1D15E, 0x1D164), (0x1D400, 0x1D7FF), (0x20000, 0x200FF), (0x2F800, 0x2F8FF), (0x110A0, 0x110BA)),
    "numbers": ranges((0x660, 0x669), (0x966, 0x96F), (0xB2, 0xB3), (0xBC, 0xBE), (0x2070, 0x2089), (0x2150, 0x2189), (0x2460, 0x249B), (0x3021, 0x3029)),
    "control": [chr(c) for c in range(32)] + [chr(c) for c in range(127, 160)] + ranges((0x200B, 0x200F), (0x202A, 0x202E), (0x2060, 0x2064)),
    "marks": ranges((0x300, 0x36F), (0x483, 0x487), (0x591, 0x5BD), (0x64B, 0x655), (0x1AB0, 0x1ABD), (0x20D0, 0x20DC), (0x3099, 0x309A)),
}


def prose(r, n):
  out = []
  for _ in range(n):
    w = r.choice(WORDS)
    w = r.choice([w, w, w, w.capitalize(), w.upper()])
    out.append(w + r.choice(["", "", "", "", ",", ".", ";", "?", "!", "'s", "'t", "'RE", "'ll", "'d", "\u2019s", "'\u017f", "--", "..."]))
  return " ".join(out)


def code(r):
  a, b, c = (r.choice(WORDS) for _ in range(3))
  n = r.randrange(10**r.randrange(1, 12))
  return r.choice([
      f"for (int {a} = 0; {a} < {n}; ++{a}) {{\n    {b}[{a}] += {c}_{a}->x * 0x{n:X};\n}}\n",
      f"def {a}_{b}(self, *{c}, **kw):\n\treturn {{'{a}': {n}, \"{b}\": [{c} for {c} in kw]}}\r\n",
      f"#include <{a}/{b}.h>\n\n\n// {prose(r, 4)}\n#define {a.upper()}_{b.upper()} ({n}ULL << {r.randrange(64)})",
      f"<div class=\"{a}-{b}\">&nbsp;{c}</div>   <!-- {n} -->", f"{a}@{b}.org https://{c}.net/{a}?{b}={n}&x=%20#{c}",
      f"{{\"{a}\":{{\"{b}\":[{n},-{n}.{n}e-{r.randrange(99)},null]}}}}", f"SELECT {a}.* FROM {b} WHERE {c}='{n}''s' --;\n        \n      {a}",
      f"$ {a} -{b[0]} --{c}={n} | grep -E '^[^#]+$' && echo \"$?\"  \\\n  >> /tmp/{a}.{b}"])


def line(r, i):
  kinds = [
      lambda: prose(r, r.randrange(1, 30)), lambda: code(r), lambda: code(r) + code(r),
      lambda: "".join(r.choice(SPACES) for _ in range(r.randrange(1, 20))),
      lambda: "".join(r.choice(SPACES) + r.choice(WORDS + ["7", "42", "!", "=="]) for _ in range(r.randrange(1, 12))),
      lambda: " " * r.randrange(1, 90) + r.choice(["", "x", "\n", "1"]) + "\n" * r.randrange(0, 9) + " " * r.randrange(0, 9),
      lambda: "".join(str(r.randrange(10**r.randrange(1, 20))) + r.choice(["", ".", ",", " ", "-", "e", "_"]) for _ in range(r.randrange(1, 8))),
      lambda: r.choice(WORDS) + "'" + r.choice(["s", "S", "t", "T", "re", "rE", "ve", "VE", "m", "M", "ll", "LL", "lL", "d", "D", "x", "\u017f"]) + r.choice(["", " ", "s", "1", "'"]),
      lambda: "".join(r.choice(WORDS + MARKS + SPACES) for _ in range(r.randrange(1, 14))),
      lambda: r.choice(["a", "=", "-", "0", "\n", "aA", "ab ", "\u3042", "\u0301"]) * r.randrange(1, 120),
      lambda: unicodedata.normalize(r.choice(["NFD", "NFC", "NFKD"]), "".join(r.choice(SCRIPTS[r.choice(["latin", "indic", "hangul", "greek_cyrillic", "cjk"])]) for _ in range(r.randrange(1, 25)))),
      lambda: "".join(r.choice("aeoAqx \u3042\u304b\u1100\u0915") + "".join(r.choice(SCRIPTS["marks"]) for _ in range(r.randrange(0, 6))) for _ in range(r.randrange(1, 9))),
      lambda: "".join(r.choice(SCRIPTS[r.choice(list(SCRIPTS))]) for _ in range(r.randrange(1, 25))),
  ]
  names = list(SCRIPTS)
  kinds += [lambda name=name: "".join(r.choice(SCRIPTS[name]) + r.choice(["", "", "", "", " ", "a"]) for _ in range(r.randrange(1, 20))) for name in names]
  return kinds[i % len(kinds)]()


def make_lines():
  r = random.Random(20240607)
  fixed = ["", " ", "\n", "a", "Hello, world!", "It's we'LL they'Re I'D 'S ''t", "\u1100\u1161\u11a8 \uac00\u11a8", "e\u0301\u0323 \u0344 \u212b \u2126 \uf900",
      "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f3f3\ufe0f\u200d\U0001f308", "\x00\x01\x7f\x80\x9f", "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627", "a\u180eb \u180e c", "a\u0085b \u0085 c",
      "<mask>  x", "x  <mask>  ", " \u3000<mask>\u2003 y", "xhunch hunch, hunchx _hunch hunch_ \u00e9hunch hunch\u0301 hunch", "cafe\u0301 caf\u00e9 xcaf\u00e9x",
      "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "x" * 900, "ab" * 400, " " * 900 + "x", "\n" * 300 + " " * 300]
  seen, lines = set(fixed), list(fixed)
  i = 0
  while len(lines) < 1320:
    text = line(r, i)
    i += 1
    if text not in seen:
      seen.add(text)
      lines.append(text)
  return lines


def training_text():
  r = random.Random(7)
  return [prose(r, 40) for _ in range(300)] + [code(r) for _ in range(400)] + [line(r, i) for i in range(600)]


def train(pattern, normalizer, specials, added, whole_words=False, bos=None):
  tok = Tokenizer(models.BPE())
  byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
  split = [pre_tokenizers.Split(Regex(pattern), behavior="isolated")] if pattern else []
  tok.pre_tokenizer = pre_tokenizers.Sequence(split + [byte_level]) if pattern else byte_level
  if normalizer:
    tok.normalizer = normalizer
  tok.decoder = decoders.ByteLevel()
  alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
  tok.train_from_iterator(training_text(), trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False))
  if whole_words:  # without the merges that lead to them, some tokens are reached as whole words only
    state = json.loads(tok.to_str())
    state["model"]["ignore_merges"] = True
    state["model"]["merges"] = [m for i, m in enumerate(state["model"]["merges"]) if i < 200 or i % 7]
    tok = Tokenizer.from_str(json.dumps(state))
  tok.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in specials])
  tok.add_tokens(added)
  if bos:
    bos_id = tok.token_to_id(bos)
    tok.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, bos_id)])])
  return tok


def crc(ids):
  return sum((j + 1) * i for j, i in enumerate(ids)) % 2**24


def record(tok, lines):
  parsed = [tok.encode(t, add_special_tokens=False).ids for t in lines]
  bos = [i for i in tok.encode("a").ids if i not in tok.encode("a", add_special_tokens=False).ids]
  tok.encode_special_tokens = True
  plain = [tok.encode(t, add_special_tokens=False).ids for t in lines]
  tok.encode_special_tokens = False
  differ = {str(i): crc(b) for i, (a, b) in enumerate(zip(parsed, plain)) if a != b}
  return {"bos": bos, "vocab": tok.get_vocab_size(), "crcs": "".join(f"{crc(p):06x}" for p in parsed), "plain": differ,
      "ids": {str(i): parsed[i] for i in range(0, len(lines), 100)},
      "decoded": {str(i): tok.decode(parsed[i][1::2]) for i in range(0, len(lines), 100)}}


def main():
  args = argparse.ArgumentParser(description=__doc__)
  args.add_argument("--wren", type=pathlib.Path)
  args = args.parse_args()
  OUT.mkdir(parents=True, exist_ok=True)
  flagged = [AddedToken("<mask>", lstrip=True, normalized=False), AddedToken("<word>", rstrip=True, normalized=False),
      AddedToken("hunch", single_word=True, normalized=True), AddedToken("caf\u00e9", normalized=True)]
  made = {
      "llama3": train(LLAMA3, None, ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], [],
      whole_words=True, bos="<|begin_of_text|>"),
      "gpt2": train(None, None, ["<|endoftext|>"], flagged),
      "qwen2": train(QWEN2, normalizers.NFC(), ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], flagged),
  }
  for name, tok in made.items():
    (OUT / f"{name}.json").write_text(json.dumps(json.loads(tok.to_str()), ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
  if args.wren:
    state = json.loads((args.wren / "tokenizer.json").read_text(encoding="utf-8"))
    state["model"]["vocab"], state["model"]["merges"] = {}, []
    (OUT / "wren.json").write_text(json.dumps(state, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
  lines = make_lines()
  (OUT / "lines.json").write_text("[\n" + ",\n".join(json.dumps(t, ensure_ascii=False) for t in lines) + "\n]\n", encoding="utf-8")
  records = {n: record(Tokenizer.from_file(str(OUT / f"{n}.json")), lines) for n in made}
  if args.wren:
    records["wren"] = record(Tokenizer.from_file(str(args.wren / "tokenizer.json")), lines)
  elif (OUT / "golden.json").exists():
    records["wren"] = json.loads((OUT / "golden.json").read_text(encoding="utf-8"))["tokenizers"]["wren"]
  golden = {"made_with": {"tokenizers": tokenizers.__version__, "python": platform.python_version(), "unicode": unicodedata.unidata_version},
      "tokenizers": records}
  (OUT / "golden.json").write_text(json.dumps(golden, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
  main()
