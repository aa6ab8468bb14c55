#!/usr/bin/env bash
# Clients that hang up: 200 requests at concurrency 16, of mixed lengths, a third of which disconnect at random. Nothing
# may leak, and whoever stays gets the right answer.
#
# BUNDLE: a finished bundle. Every answer must be that of the same request alone, and fixed prompts must give the same text
# before and after.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
need BUNDLE
# Finished prompts stay in the KV pool for reuse until it is full: a small one fills in the first soak, and what grows
# in the second is a leak.
serve "$BUNDLE" soak --kv-tokens 8192

# probe FILE: greedy answers to fixed prompts, one JSON array.
probe() {
  python3 - "$served_url" >"$1" <<'PY'
import json, sys, urllib.request
prompts = ["The capital of France is", "Once upon a time", "1, 2, 3, 4,", "Water boils at"]
answers = []
for prompt in prompts:
    body = json.dumps({"model": "default", "prompt": prompt, "temperature": 0, "max_tokens": 48, "seed": 1})
    request = urllib.request.Request(sys.argv[1] + "/v1/completions", body.encode(), {"Content-Type": "application/json"})
    answers.append(json.load(urllib.request.urlopen(request, timeout=300))["choices"][0]["text"])
print(json.dumps(answers))
PY
}

# metric NAME: its value now.
metric() {
  python3 - "$served_url" "$1" <<'PY'
import sys, urllib.request
page = urllib.request.urlopen(sys.argv[1] + "/metrics", timeout=10).read().decode()
values = [float(l.split()[-1]) for l in page.splitlines() if l.startswith((sys.argv[2] + " ", sys.argv[2] + "{"))]
if not values:
    sys.exit(f"/metrics has no {sys.argv[2]}")
print(sum(values))
PY
}

zero() { python3 -c 'import sys; sys.exit(0 if float(sys.argv[1]) == 0 else 1)' "$1"; }

open_files() { ls "/proc/$served_pid/fd" | wc -l; }
resident() { sed -n 's/^VmRSS:[^0-9]*\([0-9]*\).*/\1/p' "/proc/$served_pid/status"; }

# soak SEED: 200 requests at concurrency 16, a third hanging up; what was answered is compared with the same alone.
soak() {
  python3 xtask/long/soak_client.py "$served_url" crates/wright/text/confirm.txt "$1" | tee -a "$scratch/log"
}

quiet() {
  local name value i
  for name in num_requests_running num_requests_waiting kv_cache_usage_ratio; do
    value=
    for ((i = 0; i < 100; i++)); do
      value=$(metric "wright_$name")
      zero "$value" && break
      sleep 0.1
    done
    zero "$value" || fail "wright_$name is $value ten seconds after the last request"
    echo "  wright_$name $value" | tee -a "$scratch/log"
  done
}

probe "$scratch/before.json"
soak 1
quiet
files=$(open_files) memory=$(resident)
soak 2
quiet
probe "$scratch/after.json"
cmp "$scratch/before.json" "$scratch/after.json" || fail "greedy answers differ before and after the soak"
sleep 1
echo "  open files $files, then $(open_files); resident $((memory / 1024)) MB, then $(($(resident) / 1024)) MB" | tee -a "$scratch/log"
[ "$(open_files)" -le "$((files + 2))" ] || fail "open files grew over the second soak"
[ "$(resident)" -le "$((memory + 65536))" ] || fail "memory grew by more than 64 MB over the second soak"
kill -TERM "$served_pid"
wait "$served_pid" || fail "the server did not end well after SIGTERM"
! grep -q 'panicked' "$scratch/soak.err" || fail "the server panicked: $(grep -m1 panicked "$scratch/soak.err")"
echo "soak passed: nothing leaked, every answer was right" | tee -a "$scratch/log"
out=$(measurement soak)
{
  echo "Two soaks of 200 requests at concurrency 16, mixed lengths, a third hanging up at random. $(date -u +%F). $(machine_words)."
  cat "$scratch/log"
} >"$out"
echo "written to $out"
