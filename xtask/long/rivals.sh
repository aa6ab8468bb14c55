#!/usr/bin/env bash
# A bundle against llama.cpp's server on the same model file: one client, the same prompts, interleaved by rounds, and
# the divergence of both from the f32 weights on the same text.
#
# BUNDLE            a finished bundle of MODEL_GGUF
# MODEL_GGUF        the model file
# LLAMA_SERVER      llama.cpp's llama-server, built for this machine (GGML_NATIVE=ON)
# LLAMA_PERPLEXITY  llama.cpp's llama-perplexity
# THREADS (all cores), ROUNDS (6), PROMPT (128), OUTPUT (128), FLASH (off on: its settings of -fa, each a run of its own). Writes docs/measurements/rivals-DATE-ISA.txt.
#
# Both servers stay up; the one that is not being measured has no requests. Our compute threads then sleep on a futex
# and llama.cpp's wait on a condition variable, so neither takes processor time from the other; the script reads both
# processes' times before and after an idle second and says so, rather than trusting it.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
need BUNDLE MODEL_GGUF LLAMA_SERVER LLAMA_PERPLEXITY
THREADS=${THREADS:-$(nproc)} ROUNDS=${ROUNDS:-6} PROMPT=${PROMPT:-128} OUTPUT=${OUTPUT:-128} FLASH=${FLASH:-off on}
out=$(measurement rivals)

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
  "$WRIGHT" bench "$served_url" --against "http://127.0.0.1:$port" --tokenizer "$BUNDLE" --concurrency 1,16 \
    --prompt-tokens "$PROMPT" --output-tokens "$OUTPUT" --rounds "$ROUNDS" \
    --extra '{"ignore_eos":true,"cache_prompt":false}' --json --raw "$scratch/raw-$1.jsonl" >"$scratch/speed-$1.json"
  kill "$llama_pid" "$served_pid"
  wait "$llama_pid" "$served_pid" 2>/dev/null || true
}
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
  echo "llama-server -t $THREADS -tb $THREADS -np 32 -c 24576 --cache-ram 0, -fa as said; $PROMPT prompt and $OUTPUT output tokens;"
  echo "$ROUNDS interleaved rounds, fresh prompts in each; ratios are ours / llama.cpp's, and the word says whether ours is higher or lower."
  for flash in $FLASH; do
    echo
    echo "-fa $flash (processor time of the idle servers in two seconds, 100 ticks a second: $(cat "$scratch/idle-$flash")):"
    python3 - "$scratch/speed-$flash.json" <<'PY'
import json, statistics, sys
for concurrency, comparison in json.load(open(sys.argv[1]))["comparisons"]:
    speed = lambda side: statistics.median(r[side]["output_tokens_per_s"] for r in comparison["rounds"])
    failed = sum(r[side]["failed"] for r in comparison["rounds"] for side in ("ours", "theirs"))
    print(f"concurrency {concurrency}: ours {speed('ours'):.1f}, llama.cpp {speed('theirs'):.1f} output tokens/s"
          f" (medians over rounds), {failed} failed requests")
    for r in comparison["ratios"]:
        rounds = " ".join(f"{x:.3f}" for x in r["per_round"])
        print(f"  {r['metric']:<22} {r['median']:.3f} ({r['low']:.3f} to {r['high']:.3f}) {r['verdict']}: {rounds}")
PY
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
