#!/usr/bin/env bash
# Trains a drafter of every kind for one target, one after the other, in the background; returns at once. Logs in OUT/METHOD.log.
#   tools/train/train_all.sh TARGET DATA OUT [MINUTES]      MINUTES: of all methods together (default 10)
# OUT/state says what runs; its last line is `done` or `failed METHOD...`. PYTHON names the interpreter (default python3). The same
# command again goes on from the checkpoints.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '2,5s/^# \{0,1\}//p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
if [ "${HUNCH_TRAIN_SESSION:-}" != 1 ]; then
  mkdir -p "$3"
  HUNCH_TRAIN_SESSION=1 setsid nohup "$0" "$@" >"$3/all.log" 2>&1 </dev/null &
  echo "training in process session $!; see $3/state"
  exit 0
fi
target=$1 data=$2 out=$3 minutes=${4:-10}
failed=
: >"$out/state"
train() {  # NAME SHARE METHOD [flag...]: SHARE of the minutes in per cent; once more with nothing compiled where that fails
  local name=$1 share=$2
  shift 2
  set -- "$@" --target "$target" --data "$data" --out "$out/$name" --minutes "$(awk "BEGIN { print $minutes * $share / 100 }")"
  echo "$name since $(date +%T)" >>"$out/state"
  "${PYTHON:-python3}" "$here/train.py" "$@" >"$out/$name.log" 2>&1 && return
  echo "$name uncompiled since $(date +%T)" >>"$out/state"
  "${PYTHON:-python3}" "$here/train.py" "$@" --attention plain --no-compile --row 4096 >>"$out/$name.log" 2>&1 || failed="$failed $name"
}
train eagle3 36 eagle3
train draft_model 22 draft_model
train mtp 14 mtp
train eagle 14 eagle
train medusa 14 medusa
if [ -n "$failed" ]; then echo "failed$failed"; else echo done; fi >>"$out/state"
