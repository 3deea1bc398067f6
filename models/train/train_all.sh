#!/usr/bin/env bash
# Trains a drafter of every kind for one target in the background: EAGLE-3 all the time, the others one after the other beside it
# (processes share a GPU in turns). Returns at once. Logs in OUT/METHOD.log.
#   tools/train/train_all.sh TARGET DATA OUT [MINUTES]      MINUTES: of it all (default 8)
# OUT/state says what runs; its last line is `done` or `failed METHOD...`. PYTHON names the interpreter (default python3). The same
# command again goes on from the checkpoints.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
if [ "${HUNCH_TRAIN_SESSION:-}" != 1 ]; then
  mkdir -p "$3"
  HUNCH_TRAIN_SESSION=1 setsid nohup "$0" "$@" >"$3/all.log" 2>&1 </dev/null &
  echo "training in process session $!; see $3/state"
  exit 0
fi
target=$1 data=$2 out=$3 minutes=${4:-8}
rm -f "$out"/*.failed
: >"$out/state"
train() {  # METHOD SHARE: SHARE of the minutes in per cent; once more with nothing compiled where that fails
  local method=$1 m
  m=$(awk "BEGIN { print $minutes * $2 / 100 }")
  set -- "$method" --target "$target" --data "$data" --out "$out/$method" --minutes "$m"
  echo "$method since $(date +%T)" >>"$out/state"
  "${PYTHON:-python3}" "$here/train.py" "$@" >"$out/$method.log" 2>&1 && return
  echo "$method uncompiled since $(date +%T)" >>"$out/state"
  "${PYTHON:-python3}" "$here/train.py" "$@" --attention plain --no-compile --row 4096 >>"$out/$method.log" 2>&1 ||
    touch "$out/$method.failed"
}
train eagle3 100 &
train draft_model 36
train eagle 26
train medusa 18
train mtp 20
wait
failed=$(cd "$out" && ls -- *.failed 2>/dev/null | sed 's/\.failed$//' | tr '\n' ' ' || true)
if [ -n "$failed" ]; then echo "failed $failed"; else echo done; fi >>"$out/state"
