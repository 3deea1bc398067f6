#!/usr/bin/env python3
"""Writes an EAGLE-3 drafter of random weights for a target's shape, in the published layout: for times, which do not depend on
what weights say (`hunch bench rounds --random SHAPE --model-draft OUT --spec eagle3`). Needs numpy.

    models/train/random_drafter.py qwen3-8b OUT [--draft-vocab 32000] [--layers 2,18,33]
"""
import argparse
import json
import os

import numpy

SHAPES = {  # hidden, ffn, heads, KV heads, head_dim, vocabulary, layers
    'qwen3-8b': (4096, 12288, 32, 8, 128, 151936, 36),
    'qwen3-4b': (2560, 9728, 32, 8, 128, 151936, 36),
    'llama-3.1-8b': (4096, 14336, 32, 8, 128, 128256, 32),
    'llama-3.2-1b': (2048, 8192, 32, 8, 64, 128256, 16),
}


def weights(random, shape):
  """bf16 bits of values about 0.02 in size, of either sign."""
  bits = random.integers(0, 1 << 16, size=shape, dtype=numpy.uint16)
  return (bits & 0x80ff) | 0x3c00


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('shape', choices=SHAPES)
  parser.add_argument('out')
  parser.add_argument('--draft-vocab', type=int, default=32000)
  parser.add_argument('--layers', help='whose outputs it reads (default: the third, the middle one, the third from the end)')
  args = parser.parse_args()
  hidden, ffn, heads, kv_heads, head_dim, vocab, layers = SHAPES[args.shape]
  taps = [int(x) for x in args.layers.split(',')] if args.layers else [2, layers // 2, layers - 3]
  if not 0 < args.draft_vocab <= vocab:
    parser.error(f'--draft-vocab {args.draft_vocab}: {args.shape} has {vocab} tokens')
  config = {'architectures': ['LlamaForCausalLMEagle3'], 'model_type': 'llama', 'hidden_act': 'silu', 'hidden_size': hidden,
      'intermediate_size': ffn, 'num_attention_heads': heads, 'num_key_value_heads': kv_heads, 'head_dim': head_dim,
      'num_hidden_layers': 1, 'rms_norm_eps': 1e-6, 'rope_theta': 1000000.0, 'max_position_embeddings': 131072,
      'vocab_size': vocab, 'tie_word_embeddings': False, 'torch_dtype': 'bfloat16', 'draft_vocab_size': args.draft_vocab,
      'target_hidden_size': hidden,
      'eagle_config': {'eagle_aux_hidden_state_layer_ids': taps, 'use_aux_hidden_state': True}}
  random = numpy.random.default_rng(1)
  one = numpy.uint16(0x3f80)
  attention, mlp = 'midlayer.self_attn.', 'midlayer.mlp.'
  # Of the target's tokens every so-manieth; d2t holds the distance from a draft token to the target's.
  chosen = numpy.arange(args.draft_vocab, dtype=numpy.int64) * vocab // args.draft_vocab
  used = numpy.zeros(vocab, dtype=numpy.uint8)
  used[chosen] = 1
  tensors = {
      'fc.weight': weights(random, (hidden, 3 * hidden)),
      'lm_head.weight': weights(random, (args.draft_vocab, hidden)),
      attention + 'q_proj.weight': weights(random, (heads * head_dim, 2 * hidden)),
      attention + 'k_proj.weight': weights(random, (kv_heads * head_dim, 2 * hidden)),
      attention + 'v_proj.weight': weights(random, (kv_heads * head_dim, 2 * hidden)),
      attention + 'o_proj.weight': weights(random, (hidden, heads * head_dim)),
      mlp + 'gate_proj.weight': weights(random, (ffn, hidden)),
      mlp + 'up_proj.weight': weights(random, (ffn, hidden)),
      mlp + 'down_proj.weight': weights(random, (hidden, ffn)),
      **{name + '.weight': numpy.full(hidden, one) for name in
      ('norm', 'midlayer.hidden_norm', 'midlayer.input_layernorm', 'midlayer.post_attention_layernorm')},
      'd2t': chosen - numpy.arange(args.draft_vocab, dtype=numpy.int64),
      't2d': used,
  }
  types = {'uint16': 'BF16', 'int64': 'I64', 'uint8': 'BOOL'}
  header, at = {}, 0
  for name, values in tensors.items():
    header[name] = {'dtype': types[values.dtype.name], 'shape': list(values.shape), 'data_offsets': [at, at + values.nbytes]}
    at += values.nbytes
  text = json.dumps(header).encode()
  text += b' ' * (-len(text) % 8)
  os.makedirs(args.out, exist_ok=True)
  with open(os.path.join(args.out, 'config.json'), 'w') as file:
    json.dump(config, file, indent=1)
  with open(os.path.join(args.out, 'model.safetensors'), 'wb') as file:
    file.write(len(text).to_bytes(8, 'little') + text)
    for values in tensors.values():
      values.tofile(file)
  print(f'{args.out}: {at / 1e6:.0f} MB, reads the outputs of layers {taps}')


if __name__ == '__main__':
  main()
