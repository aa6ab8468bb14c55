#!/usr/bin/env bash
# A bundle against llama.cpp's server on the same model file: one client, the same prompts, interleaved by rounds, and
# the divergence of both from the f32 weights on the same text.
#
# BUNDLE            a finished bundle of MODEL_GGUF
# MODEL_GGUF        the model file
# LLAMA_SERVER      llama.cpp's llama-server, built for this machine (GGML_NATIVE=ON)
# LLAMA_PERPLEXITY  llama.cpp's llama-perplexity
# THREADS (all cores), ROUNDS (6), FLASH (off on: its settings of -fa, each a run of its own), CELLS (A1 A16): workload (A: 128 prompt
# and 128 output tokens, B: 512 and 64) and concurrency. Writes docs/measurements/rivals-DATE-ISA.txt.
#
# RIVAL_URL, RIVAL_NAME: another server instead, already running (vLLM, say); FLASH and llama.cpp's divergence are left out then.
#
# Both servers stay up; the one that is not being measured has no requests. Our compute threads then sleep on a futex
# and llama.cpp's wait on a condition variable, so neither takes processor time from the other; the script reads both
# processes' times before and after an idle second and says so, rather than trusting it.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
need BUNDLE
THREADS=${THREADS:-$(nproc)} ROUNDS=${ROUNDS:-6} CELLS=${CELLS:-A1 A16} FLASH=${FLASH:-off on} RIVAL_URL=${RIVAL_URL:-}
if [ -n "$RIVAL_URL" ]; then
  need RIVAL_NAME
  out=$(measurement "rivals-$RIVAL_NAME")
else
  need MODEL_GGUF LLAMA_SERVER LLAMA_PERPLEXITY
  out=$(measurement rivals)
fi

# cells URL NAME: measures all cells against the server at URL; appends to raw-NAME.jsonl and cells-NAME.
cells() {
  local cell concurrency prompt output requests
  for cell in $CELLS; do
    concurrency=${cell#?} prompt=128 output=128
    case $cell in
      A[0-9]*) ;;
      B[0-9]*) prompt=512 output=64 ;;
      *) fail "CELLS: $cell is not A or B and a concurrency" ;;
    esac
    requests=$((concurrency < 8 ? 2 * concurrency + 2 : concurrency))
    "$WRIGHT" bench "$served_url" --against "$1" --tokenizer "$BUNDLE" --concurrency "$concurrency" --requests "$requests" \
      --prompt-tokens "$prompt" --output-tokens "$output" --rounds "$ROUNDS" \
      --extra '{"ignore_eos":true,"cache_prompt":false}' --json --raw "$scratch/raw.jsonl" >"$scratch/cell.json"
    sed "s/^/{\"cell\":\"$cell\",\"compared\":/; s/$/}/" "$scratch/raw.jsonl" >>"$scratch/raw-$2.jsonl"
    python3 - "$cell" "$prompt" "$output" "$requests" "$scratch/cell.json" <<'PY' | tee -a "$scratch/cells-$2"
import json, statistics, sys
cell, prompt, output, requests, path = sys.argv[1:]
for concurrency, comparison in json.load(open(path))["comparisons"]:
    speed = lambda side: statistics.median(r[side]["output_tokens_per_s"] for r in comparison["rounds"])
    failed = sum(r[side]["failed"] for r in comparison["rounds"] for side in ("ours", "theirs"))
    client = max(r[side]["host"]["client_cpu_share"] or 0 for r in comparison["rounds"] for side in ("ours", "theirs"))
    print(f"{cell}, concurrency {concurrency}, {prompt} + {output} tokens, {requests} requests a round: ours {speed('ours'):.1f}, theirs"
          f" {speed('theirs'):.1f} output tokens/s (medians), {failed} failed, the client took at most {100 * client:.1f} % of a core")
    for r in comparison["ratios"]:
        rounds = " ".join(f"{x:.3f}" for x in r["per_round"])
        print(f"  {r['metric']:<22} {r['median']:.3f} ({r['low']:.3f} to {r['high']:.3f}) {r['verdict']}: {rounds}")
PY
  done
}

# ticks PID: processor time, user and system, in clock ticks.
ticks() { awk '{ print $14 + $15 }' "/proc/$1/stat"; }

# compare FLASH: the bundle against llama-server with -fa FLASH.
compare() {
  local port llama_pid before_ours before_llama
  port=$(free_port)
  "$LLAMA_SERVER" -m "$MODEL_GGUF" -t "$THREADS" -tb "$THREADS" -np 32 -c 24576 -fa "$1" --cache-ram 0 \
    --host 127.0.0.1 --port "$port" >"$scratch/llama.out" 2>"$scratch/llama.err" &
  llama_pid=$!
  started+=("$llama_pid")
  await_health "http://127.0.0.1:$port" 120 || { tail -5 "$scratch/llama.err" >&2; exit 1; }
  serve "$BUNDLE" "ours-$1"
  sleep 3
  before_ours=$(ticks "$served_pid") before_llama=$(ticks "$llama_pid")
  sleep 2
  echo "ours $(($(ticks "$served_pid") - before_ours)), llama.cpp $(($(ticks "$llama_pid") - before_llama))" >"$scratch/idle-$1"
  cells "http://127.0.0.1:$port" "$1"
  kill "$llama_pid" "$served_pid"
  wait "$llama_pid" "$served_pid" 2>/dev/null || true
}
if [ -n "$RIVAL_URL" ]; then
  await_health "$RIVAL_URL" 10
  serve "$BUNDLE" ours
  cells "$RIVAL_URL" other
  {
    echo "A bundle of ours / $RIVAL_NAME at equal concurrency. $(date -u +%F). $(machine_words)."
    echo "$ROUNDS interleaved rounds, fresh prompts in each; ratios are ours / theirs, and the word says whether ours is higher or lower."
    cat "$scratch/cells-other"
  } >"$out"
  gzip -c "$scratch/raw-other.jsonl" >"${out%.txt}.raw.jsonl.gz"
  echo "written to $out and ${out%.txt}.raw.jsonl.gz"
  exit 0
fi

for flash in $FLASH; do
  echo "llama-server with -fa $flash"
  compare "$flash"
done

echo "divergence of llama.cpp from the f32 weights"
f32=$scratch/f32.gguf text=crates/wright/text/confirm.txt
cargo run -q --release --locked -p model --example f32_gguf -- "$MODEL_GGUF" "$f32"
"$LLAMA_PERPLEXITY" -m "$f32" -f "$text" -t "$THREADS" -c 256 --chunks 32 --kl-divergence-base "$scratch/base.kld" \
  >"$scratch/base.txt" 2>&1 || { tail -5 "$scratch/base.txt" >&2; fail "the f32 logits could not be written"; }
"$LLAMA_PERPLEXITY" -m "$MODEL_GGUF" -f "$text" -t "$THREADS" -c 256 --chunks 32 --kl-divergence-base "$scratch/base.kld" \
  --kl-divergence >"$scratch/kl.txt" 2>&1 || { tail -5 "$scratch/kl.txt" >&2; fail "no divergence of llama.cpp"; }

{
  echo "$(basename "$MODEL_GGUF"): a bundle of ours / llama.cpp's server. $(date -u +%F). $(machine_words)."
  echo "$("$LLAMA_SERVER" --version 2>&1 | grep -m1 version || echo 'llama.cpp, version unknown')"
  echo "llama-server -t $THREADS -tb $THREADS -np 32 -c 24576 --cache-ram 0, -fa as said;"
  echo "$ROUNDS interleaved rounds, fresh prompts in each; ratios are ours / llama.cpp's, and the word says whether ours is higher or lower."
  for flash in $FLASH; do
    echo
    echo "-fa $flash (processor time of the idle servers in two seconds, 100 ticks a second: $(cat "$scratch/idle-$flash")):"
    cat "$scratch/cells-$flash"
  done
  echo
  python3 - "$BUNDLE/build.json" <<'PY'
import json, sys
quality = json.load(open(sys.argv[1]))["quality"]
print(f"ours: KL {quality['kl']:.6f} nats/token, top-1 {quality['top1']:.4f}, perplexity {quality['perplexity']:.3f}"
      f" (f32 {quality['reference_perplexity']:.3f}) over {quality['tokens']} positions: the second halves of 32 windows of 256")
PY
  echo "llama.cpp, llama-perplexity --kl-divergence -c 256 --chunks 32 on the same positions of the same text:"
  grep -E 'Mean +KLD|Mean PPL\(Q\)  |Mean PPL\(base\)  |^Same top p' "$scratch/kl.txt" | sed 's/^/  /'
} | tee "$out"
cat "$scratch"/raw-*.jsonl | gzip -c >"${out%.txt}.raw.jsonl.gz"
echo "written to $out and ${out%.txt}.raw.jsonl.gz"
