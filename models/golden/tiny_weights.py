"""Weights that any machine makes again bit for bit, from a recipe in place of them: models/tiny/folders/NAME/weights.json, which
models/tiny/README.md describes. make_golden.py and make_drafter_golden.py draw by it here, the build in make_tiny_models.cpp; sums
over the files bind them.
"""
import json
import math
import zlib

import numpy as np

COUNTED = ("I64", "BOOL")  # kinds of tensors for which nothing is drawn
SUM_STD = math.sqrt((2**32 - 1) / 3)  # standard deviation of a sum of four uniform 16-bit numbers


def make_recipe(tensors, dtype, shards, seed):
  """`tensors`: name -> (shape, mean, standard deviation) and perhaps "DIAG", d or "FROM", n; or (shape, a, b, "I64" or "BOOL");
  dealt to the files in turn, in each in the order in which the package safetensors writes them: whole numbers, then the
  weights, then bytes and truth values"""
  names = sorted(tensors, key=lambda n: ({"I64": 0, "U8": 2, "BOOL": 3}.get((*tensors[n], None)[3], 1), n))

  def row(name):
    shape, mean, deviation, *kind = tensors[name]
    if kind and kind[0] in (*COUNTED, "U8"):
      return [name, list(shape), mean, deviation, *kind]
    return [name, list(shape), round(2**8 * mean), round(2**32 * deviation / SUM_STD), *kind]

  file = lambda s: "model.safetensors" if shards == 1 else f"model-{s + 1:05}-of-{shards:05}.safetensors"
  files = [{"name": file(s), "tensors": [row(n) for n in names[s::shards]]} for s in range(shards)]
  return {"seed": seed, "dtype": dtype, "files": files}


def noise(seed, first, count):
  """Outputs [first, first + count) of SplitMix64 (Steele et al., OOPSLA 2014): sums of their four 16-bit parts, less the mean"""
  z = np.uint64(seed) + np.arange(first + 1, first + count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
  z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  z ^= z >> np.uint64(31)
  return sum(((z >> np.uint64(16 * i)) & np.uint64(0xFFFF)).astype(np.int64) for i in range(4)) - 2 * 0xFFFF


def recipe_weights(recipe):
  """name -> fp32 array, still to be rounded to the stored type; multiples of 2^-32, exact up to the rounding to fp32. Of whole
  numbers element n is floor(n a / b); of truth values, whether n is floor(m b / a) for some m. They draw nothing. "DIAG", d: d
  2^-8 more where column and row are one. "U8": a byte, the first number and what was drawn modulo the second. "FROM", n: drawn as elements n and further are, again."""
  weights, done = {}, 0
  for file in recipe["files"]:
    for name, shape, mean, step, *kind in file["tensors"]:
      if kind and kind[0] in COUNTED:
        n = np.arange(math.prod(shape) + 1, dtype=np.int64) * mean
        weights[name] = n[:-1] // step if kind == ["I64"] else np.diff(-(-n // step)) > 0
        continue
      again = kind and kind[0] == "FROM"
      if kind == ["U8"]:
        drawn = noise(recipe["seed"], done, math.prod(shape)) + 2 * 0xFFFF
        weights[name] = (mean + drawn % step).astype(np.uint8).reshape(shape)
        done += math.prod(shape)
        continue
      x = (mean << 24) + step * noise(recipe["seed"], kind[1] if again else done, math.prod(shape))
      if kind and kind[0] == "DIAG":
        x = (x.reshape(shape) + (kind[1] << 24) * np.eye(*shape, dtype=np.int64)).ravel()
      weights[name] = (x.astype(np.float64) * 2.0**-32).astype(np.float32).reshape(shape)
      done += 0 if again else x.size
  return weights


def write_recipe(path, recipe, folder):
  """one tensor a line; with the sums over the files that were written to `folder`"""
  files = []
  for file in recipe["files"]:
    with open(f"{folder}/{file['name']}", "rb") as f:
      crc = zlib.crc32(f.read())
    rows = ",\n".join("  " + json.dumps(row, separators=(",", ":")) for row in file["tensors"])
    files.append(f' {{"name": "{file["name"]}", "crc32": "{crc:08x}", "tensors": [\n{rows}]}}')
  rest = f', "rest": "{recipe["rest"]}"' if "rest" in recipe else ""
  with open(path, "w") as f:
    f.write(f'{{"seed": {recipe["seed"]}, "dtype": "{recipe["dtype"]}"{rest}, "files": [\n' + ",\n".join(files) + "]}\n")
