#!/usr/bin/env bash
# A build that is killed again and again: the same command resumes, entries of the ledger stay as they were, its chain
# of digests holds, nothing keeps running, and the bundle is whole in the end.
#
# KILLS (6), BUDGET (90s), MODEL (smollm2-135m), RANDOM_SEED (1).
set -euo pipefail
source "$(dirname "$0")/lib.sh"
KILLS=${KILLS:-6} BUDGET=${BUDGET:-90s} MODEL=${MODEL:-smollm2-135m}
RANDOM=${RANDOM_SEED:-1}
ledger=$scratch/ledger.sqlite bundle=$scratch/engine
# In a session of its own, so that whatever it starts can be found after its death.
build() { exec setsid "$WRIGHT" build "$MODEL" --budget "$BUDGET" --out "$bundle" --ledger "$ledger"; }

# left_over SESSION: living processes of that session.
left_over() {
  cat /proc/[0-9]*/stat 2>/dev/null |
    awk -v session="$1" '{ id = $1; sub(/.*\) /, ""); if ($4 == session && $1 != "Z") print id }' || true
}

: >"$scratch/before.jsonl"
for ((kill = 1; kill <= KILLS; kill++)); do
  (build) >"$scratch/run.out" 2>"$scratch/run.err" &
  pid=$!
  started+=("$pid")
  # Kills hit short stages and long ones.
  pause=$(python3 -c "print(1 + $RANDOM % 600 / 10)")
  sleep "$pause"
  if ! kill -9 "$pid" 2>/dev/null; then
    wait "$pid" || { cat "$scratch/run.err" >&2; fail "the build ended by itself, and badly"; }
    echo "kill $kill: the build had finished"
    break
  fi
  wait "$pid" 2>/dev/null || true
  for ((i = 0; i < 50; i++)); do
    [ -z "$(left_over "$pid")" ] && break
    sleep 0.1
  done
  [ -z "$(left_over "$pid")" ] || fail "processes of the killed build go on: $(left_over "$pid")"
  if [ -e "$ledger" ]; then
    "$WRIGHT" ledger check --ledger "$ledger" >/dev/null || fail "the ledger's chain broke at kill $kill"
    "$WRIGHT" ledger export --ledger "$ledger" >"$scratch/after.jsonl"
    head -c "$(stat -c %s "$scratch/before.jsonl")" "$scratch/after.jsonl" | cmp -s - "$scratch/before.jsonl" ||
      fail "entries that were there before kill $kill changed"
    mv "$scratch/after.jsonl" "$scratch/before.jsonl"
  fi
  echo "kill $kill after $pause s: $(wc -l <"$scratch/before.jsonl") lines in the ledger"
done

(build) >"$scratch/run.out" 2>"$scratch/run.err" || { cat "$scratch/run.err" >&2; fail "the build did not resume"; }
grep -qE 'resuming build|this build is finished' "$scratch/run.err" || fail "the last run did not resume but began anew"
"$WRIGHT" ledger check --ledger "$ledger" >/dev/null || fail "the ledger's chain broke"
for file in manifest.json plan.json plan-portable.json weights.bin build.json evidence.jsonl; do
  [ -s "$bundle/$file" ] || fail "the bundle lacks $file"
done
rest=$(find "$scratch" -maxdepth 1 -name '.*' ! -name '.' | grep -v "^$scratch$" || true)
[ -z "$rest" ] || fail "left behind: $rest"
serve "$bundle" resumed
echo "resume passed: $(wc -l <"$scratch/before.jsonl") lines survived the kills, the bundle serves"
