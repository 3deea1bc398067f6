#!/usr/bin/env bash
# Trains an NSA model from scratch and an EAGLE-3 drafter for it on one GPU, in the background; returns at once.
#   tools/train/nsa_all.sh DATA OUT MINUTES [CORPUS]...
# DATA: corpus.tokens.xz, and tools.tar.xz (unpack_corpus.py, tokenizer files, synth.py); CORPUS: folders with another corpus.tokens.xz.
# OUT/state says what runs; its last line is `done` or `failed`. OUT/back: what to keep, in files of 15 MB (`cat model.tar.* | tar x`).
# PYTHON names the interpreter; MAIN, FROM and HEAD hold more options of train_nsa.py, generate.py and `train.py eagle3`.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
if [ "${HUNCH_TRAIN_SESSION:-}" != 1 ]; then
  mkdir -p "$2"
  HUNCH_TRAIN_SESSION=1 setsid nohup "$0" "$@" >"$2/all.log" 2>&1 </dev/null &
  exit 0
fi
data=$1 out=$2 seconds=$(awk "BEGIN { print int(60 * $3) }") python=${PYTHON:-python3}
shift 3
export PYTHONUNBUFFERED=1
say() { echo "$1 after $SECONDS s" >>"$out/state"; }
keep() {  # whatever there is so far
  mkdir -p "$out/back"
  (cd "$out" && tar c $(ls -d main/hf main/*.json* eagle3/*.json* eagle3/model.safetensors *.log state 2>/dev/null)) |
    split -b 15000000 - "$out/back/model.tar."
}
trap 'keep; [ "$(tail -1 "$out/state")" = done ] || say failed' EXIT
: >"$out/state"
mkdir -p "$out/tools"
tar xf "$data/tools.tar.xz" -C "$out/tools"
corpora=
for folder in "$data" "$@"; do
  corpora+=${corpora:+,}$out/tokens${#corpora}
  "$python" "$out/tools/unpack_corpus.py" --corpus "$folder/corpus.tokens.xz" --out "${corpora##*,}" &
done
wait
common=(--corpus "$corpora" --tokenizer "$out/tools" --tasks "$out/tools/synth.py" --batch-tokens "${BATCH:-131072}")
contexts=${CONTEXTS:-2048,8192,16384}
longest=${contexts##*,}
eagle() { "$python" "$here/train.py" eagle3 --row "$longest" --draft-vocab 4096 --taps "${TAPS:-1,2,4}" "$@" ${HEAD:-}; }
warm() {  # compiles what comes later while the first stage trains
  "$python" "$here/train_nsa.py" "${common[@]}" --contexts "${contexts#*,}" --out "$out/warm" --warm ${MAIN:-}
  mkdir -p "$out/warm/data"
  head -c 1000000 "$out/tokens0/train.u16.bin" >"$out/warm/data/tokens.u16"
  "$python" -c "print([[i, 0, 10000, 'real'] for i in range(0, 480000, 10000)])" | tr "'" '"' >"$out/warm/data/index.json"
  eagle --target "$out/warm/hf" --data "$out/warm/data" --out "$out/warm/eagle3" --max-steps 2
}
if [ "${WARM:-1}" = 1 ]; then (warm >"$out/warm.log" 2>&1 || true) & fi
say train
"$python" "$here/train_nsa.py" "${common[@]}" --contexts "$contexts" --out "$out/main" --seconds $((seconds - 190 - SECONDS)) \
  ${MAIN:-} >"$out/main.log" 2>&1 &
main=$!
until [ -f "$out/main/held.jsonl" ]; do  # it evaluates after that
  kill -0 $main
  sleep 0.5
done
keep
say answers
"$python" "$here/generate.py" --torch --model "$out/main/hf" --corpus "$out/main/tokens" --held "$out/main/held.jsonl" \
  --out "$out/data" --seconds 25 --count 24000 --tokens 320 --prompt 64 512 --long-count 128 --long-prompt 1024 4096 \
  --long-tokens 128 --repetition 0.5 --real-tokens 9000000 --real 1024 "$longest" ${FROM:-} >"$out/answers.log" 2>&1
say eagle3
minutes=$(awk "BEGIN { print ($seconds - $SECONDS - 30) / 60 }")
eagle --target "$out/main/hf" --data "$out/data" --out "$out/eagle3" --minutes "$minutes" >"$out/eagle3.log" 2>&1
wait $main || say "evaluation failed"
say end
echo done >>"$out/state"
