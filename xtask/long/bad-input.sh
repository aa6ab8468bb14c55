#!/usr/bin/env bash
# What is wrong with the input is said clearly: an exit status of 1 or 2 and words, never a panic, a signal or a hang.
#
# MODEL_GGUF: a sound model file; default: what `wright pull smollm2-135m` gives. FLIPS (24): random bit flips a format.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
MODEL_GGUF=${MODEL_GGUF:-$("$WRIGHT" pull smollm2-135m)}
FLIPS=${FLIPS:-24}
# A cache of its own: nothing that is made here stays.
export XDG_CACHE_HOME=$scratch/cache XDG_DATA_HOME=$scratch/data
count=0

# ended STATUS NAME: no panic, no signal, no hang.
ended() {
  if [ "$1" -eq 124 ] || [ "$1" -eq 137 ]; then cat "$scratch/err" >&2; fail "$2: it hung"; fi
  if grep -q 'panicked at' "$scratch/err" || [ "$1" -eq 101 ]; then cat "$scratch/err" >&2; fail "$2: a panic"; fi
  if [ "$1" -gt 128 ]; then cat "$scratch/err" >&2; fail "$2: signal $(($1 - 128))"; fi
}

# refused NAME WORDS COMMAND...: it must fail with status 1 or 2 and say WORDS (extended regular expression).
refused() {
  local name=$1 words=$2 status=0
  shift 2
  timeout -k 5 "${PATIENCE:-120}" "$@" >"$scratch/out" 2>"$scratch/err" || status=$?
  ended "$status" "$name"
  [ "$status" -ge 1 ] && [ "$status" -le 2 ] || { cat "$scratch/err" >&2; fail "$name: exit status $status"; }
  grep -qiE -- "$words" "$scratch/err" || { cat "$scratch/err" >&2; fail "$name: the error does not say '$words'"; }
  count=$((count + 1))
  printf '  %-34s %s\n' "$name" "$(grep -m1 -iE -- "$words" "$scratch/err" | sed "s#$scratch#...#g" | cut -c1-150)"
}

# survived NAME COMMAND...: it may succeed or fail, but not break. A server that starts is ended.
survived() {
  local name=$1 status=0 pid
  shift
  # Emptied first: what the one before printed must not count as this one's.
  : >"$scratch/out"
  "$@" >"$scratch/out" 2>"$scratch/err" &
  pid=$!
  started+=("$pid")
  local i
  for ((i = 0; i < 1200; i++)); do
    kill -0 "$pid" 2>/dev/null || break
    if [ -s "$scratch/out" ]; then kill -TERM "$pid"; break; fi
    sleep 0.1
  done
  if [ "$i" -eq 1200 ]; then kill -9 "$pid"; fi
  wait "$pid" || status=$?
  ended "$status" "$name"
  count=$((count + 1))
}

# edit FROM TO PYTHON: changes the bytes `b` (a bytearray).
edit() {
  python3 - "$1" "$2" "$3" <<'PY'
import sys
b = bytearray(open(sys.argv[1], "rb").read())
scope = {"b": b}
exec(sys.argv[3], scope)
open(sys.argv[2], "wb").write(scope["b"])
PY
}

# flip FROM TO SEED BYTES: one random bit within the first BYTES bytes.
flip() {
  edit "$1" "$2" "import random; r = random.Random($3); i = r.randrange(min($4, len(b))); b[i] ^= 1 << r.randrange(8)"
}

serve_it=("$WRIGHT" serve --port 0)
build_it=("$WRIGHT" build --budget 5s --out "$scratch/never" --ledger "$scratch/never.sqlite")
tiny=conformance/models/tiny/llama

echo "a sound model is served (the control)"
serve "$MODEL_GGUF" control
kill -TERM "$served_pid"
wait "$served_pid"
bundle=$scratch/bundle portable=$XDG_CACHE_HOME/enginewright/portable
cp -r "$(dirname "$(find "$portable" -name manifest.json -print -quit)")" "$bundle"

echo "GGUF"
size=$(stat -c %s "$MODEL_GGUF")
for part in 0 3 11 23 1000 $((size / 2)) $((size - 1)); do
  head -c "$part" "$MODEL_GGUF" >"$scratch/bad.gguf"
  refused "cut after $part bytes" 'bad.gguf' "${serve_it[@]}" "$scratch/bad.gguf"
done
edit "$MODEL_GGUF" "$scratch/bad.gguf" 'b[0] ^= 1'
refused "magic" 'GGUF' "${serve_it[@]}" "$scratch/bad.gguf"
edit "$MODEL_GGUF" "$scratch/bad.gguf" 'b[4] = 9'
refused "version" 'version' "${build_it[@]}" "$scratch/bad.gguf"
edit "$MODEL_GGUF" "$scratch/bad.gguf" 'b[15] = 0x7f'
refused "tensor count" 'count' "${serve_it[@]}" "$scratch/bad.gguf"
edit "$MODEL_GGUF" "$scratch/bad.gguf" 'i = b.index(b"general.architecture") + 20 + 12; assert b[i:i+5] == b"llama"; b[i:i+5] = b"mamba"'
refused "unknown architecture" 'mamba' "${build_it[@]}" "$scratch/bad.gguf"
edit "$MODEL_GGUF" "$scratch/bad.gguf" 'i = b.index(b"tokenizer.ggml.tokens"); b[i:i+21] = b"tokenizer.ggml.absent"'
refused "missing tokenizer" 'token' "${serve_it[@]}" "$scratch/bad.gguf"
for ((seed = 1; seed <= FLIPS; seed++)); do
  flip "$MODEL_GGUF" "$scratch/bad.gguf" "$seed" 20000
  survived "header bit flip $seed" "${serve_it[@]}" "$scratch/bad.gguf"
  # A flip in a token's text is another, sound model: its bundle is large.
  rm -rf "$portable"
done
rm -f "$scratch/bad.gguf"
echo "  $FLIPS random bit flips in the header: no panic, no signal, no hang"

echo "safetensors and Hugging Face folders"
folder() { rm -rf "$scratch/hf"; cp -r "$tiny" "$scratch/hf"; }
for part in 0 7 100 2000; do
  folder
  head -c "$part" "$tiny/model.safetensors" >"$scratch/hf/model.safetensors"
  refused "safetensors cut after $part bytes" 'safetensors' "${serve_it[@]}" "$scratch/hf"
done
folder
edit "$tiny/model.safetensors" "$scratch/hf/model.safetensors" 'b[6] = 0x7f'
refused "safetensors header length" 'safetensors' "${serve_it[@]}" "$scratch/hf"
for ((seed = 1; seed <= FLIPS; seed++)); do
  folder
  flip "$tiny/model.safetensors" "$scratch/hf/model.safetensors" "$seed" 2000
  survived "safetensors bit flip $seed" "${serve_it[@]}" "$scratch/hf"
done
echo "  $FLIPS random bit flips in the header: no panic, no signal, no hang"
folder
rm "$scratch/hf/tokenizer.json"
refused "missing tokenizer.json" 'tokenizer' "${build_it[@]}" "$scratch/hf"
folder
rm "$scratch/hf/config.json"
refused "missing config.json" 'config.json' "${serve_it[@]}" "$scratch/hf"
folder
echo '{"model_type": ' >"$scratch/hf/config.json"
refused "broken config.json" 'config.json' "${serve_it[@]}" "$scratch/hf"
folder
sed -i 's/"model_type": *"[a-z0-9]*"/"model_type": "mamba"/; s/"architectures": *\[[^]]*\]/"architectures": ["MambaForCausalLM"]/' "$scratch/hf/config.json"
refused "unknown architecture" 'mamba' "${build_it[@]}" "$scratch/hf"

echo "paths"
refused "build: no such model" 'no-such-model' "${build_it[@]}" "$scratch/no-such-model.gguf"
refused "serve: no such model" 'no-such-model' "${serve_it[@]}" "$scratch/no-such-model.gguf"
refused "pull: unknown name" 'known' "$WRIGHT" pull no-such-model
refused "verify: no bundle" 'no-such-bundle' "$WRIGHT" verify "$scratch/no-such-bundle"
refused "report: no source" 'no-such-bundle' "$WRIGHT" report "$scratch/no-such-bundle" --out "$scratch/report.html"
refused "bench: nobody listens" 'refused|connect|reach' "$WRIGHT" bench "http://127.0.0.1:$(free_port)" --tokenizer "$bundle" --requests 1 --concurrency 1
refused "ledger: no such file" 'no-such' "$WRIGHT" ledger list --ledger "$scratch/no-such.sqlite"
refused "explain: no such id" 'ledger|no ' "$WRIGHT" explain 0000 --ledger "$scratch/no-such.sqlite"
touch "$scratch/a-file"
refused "build: --out is a file" 'a-file' "$WRIGHT" build "$MODEL_GGUF" --budget 5s --out "$scratch/a-file" --ledger "$scratch/never.sqlite"
echo 'not a database, but long enough to be read as one' >"$scratch/no.sqlite"
refused "ledger: not a ledger" 'no.sqlite' "$WRIGHT" ledger list --ledger "$scratch/no.sqlite"
refused "ledger: PostgreSQL" 'PostgreSQL' "$WRIGHT" ledger list --ledger postgres://localhost/wright

echo "goals"
refused "goal: no such file" 'no-such-goal' "${build_it[@]}" --goal "$scratch/no-such-goal.toml" "$MODEL_GGUF"
refused "goal: a folder" 'goal' "${build_it[@]}" --goal "$scratch" "$MODEL_GGUF"
goal() { printf '%s\n' "$1" >"$scratch/goal.toml"; }
goal '[metric'
refused "goal: not TOML" 'goal.toml' "${build_it[@]}" --goal "$scratch/goal.toml" "$MODEL_GGUF"
goal '[metrics]'
refused "goal: unknown section" 'metrics' "${build_it[@]}" --goal "$scratch/goal.toml" "$MODEL_GGUF"
goal '[target]
mask = ["avx9000"]'
refused "goal: unknown feature" 'avx9000' "${build_it[@]}" --goal "$scratch/goal.toml" "$MODEL_GGUF"
goal '[constraints]
max_kl = -1.0'
refused "goal: impossible bound" 'max_kl' "${build_it[@]}" --goal "$scratch/goal.toml" "$MODEL_GGUF"
goal '[workload]
concurrency = []'
refused "goal: no concurrency" 'concurrency' "${build_it[@]}" --goal "$scratch/goal.toml" "$MODEL_GGUF"
printf '\377\376\000' >"$scratch/goal.toml"
refused "goal: not text" 'goal.toml' "${build_it[@]}" --goal "$scratch/goal.toml" "$MODEL_GGUF"
refused "no such option" 'unexpected|usage' "$WRIGHT" build "$MODEL_GGUF" --no-such-option
refused "no such budget" 'parsecs' "$WRIGHT" build "$MODEL_GGUF" --budget '5 parsecs'

echo "bundles"
spoilt() { rm -rf "$scratch/spoilt"; cp -r "$bundle" "$scratch/spoilt"; }
spoilt
truncate -s -1 "$scratch/spoilt/weights.bin"
refused "weights cut short" 'weights' "${serve_it[@]}" "$scratch/spoilt"
spoilt
truncate -s 100 "$scratch/spoilt/manifest.json"
refused "manifest cut short" 'manifest' "${serve_it[@]}" "$scratch/spoilt"
spoilt
truncate -s 100 "$scratch/spoilt/plan-portable.json"
refused "plan cut short" 'plan' "${serve_it[@]}" "$scratch/spoilt" --portable
spoilt
for kernel in "$scratch"/spoilt/kernels/*.so; do edit "$kernel" "$kernel" 'b[len(b) // 2] ^= 1'; done
refused "kernels changed" 'kernel' "${serve_it[@]}" "$scratch/spoilt" --portable
spoilt
edit "$scratch/spoilt/weights.bin" "$scratch/spoilt/weights.bin" 'b[len(b) // 2] ^= 1'
refused "a weight changed (verify)" 'weights|agree' "$WRIGHT" verify "$scratch/spoilt"
rm -rf "$scratch/spoilt"

echo "a port in use"
port=$(free_port)
python3 -c "
import socket, time
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(('127.0.0.1', $port)); s.listen()
time.sleep(600)" &
started+=("$!")
sleep 1
refused "port in use" "$port.*in use" "$WRIGHT" serve "$MODEL_GGUF" --port "$port"

echo "a full disk"
# A small file system of our own where that is allowed; else a limit on the size of files, with its signal turned off.
full=$scratch/full
mkdir "$full"
cat >"$scratch/full.sh" <<'INNER'
set -euo pipefail
folder=$1
shift
if mount -t tmpfs -o size=24m tmpfs "$folder" 2>/dev/null; then
  status=0
  XDG_CACHE_HOME=$folder/cache XDG_DATA_HOME=$folder/data "$@" || status=$?
  umount "$folder" 2>/dev/null || true
  exit "$status"
fi
trap '' XFSZ
ulimit -f 24000
XDG_CACHE_HOME=$folder/cache XDG_DATA_HOME=$folder/data exec "$@"
INNER
roomy=()
if unshare -rm true 2>/dev/null; then roomy=(unshare -rm); fi
words='no space left|file too large|disk is full|disk full|limit. is full'
PATIENCE=400 refused "full disk: serve MODEL" "$words" \
  "${roomy[@]}" bash "$scratch/full.sh" "$full" "$WRIGHT" serve "$MODEL_GGUF" --port 0
PATIENCE=400 refused "full disk: build" "$words" \
  "${roomy[@]}" bash "$scratch/full.sh" "$full" "$WRIGHT" build "$MODEL_GGUF" --budget 10s \
  --out "$full/engine" --ledger "$full/ledger.sqlite"
# The ledger alone on a full disk: the build ends with an error, and what was recorded stays whole.
cat >"$scratch/full-ledger.sh" <<'INNER'
set -uo pipefail
wright=$1 model=$2 folder=$3 out=$4
mount -t tmpfs -o size=600k tmpfs "$folder" || exit 77
"$wright" build "$model" --budget 60s --out "$out" --ledger "$folder/ledger.sqlite"
status=$?
"$wright" ledger check --ledger "$folder/ledger.sqlite" || status=0
umount "$folder"
exit "$status"
INNER
if [ "${#roomy[@]}" -gt 0 ]; then
  PATIENCE=400 refused "full disk: the ledger" "$words" \
    "${roomy[@]}" bash "$scratch/full-ledger.sh" "$WRIGHT" "$MODEL_GGUF" "$full" "$scratch/no-room"
else
  echo "SKIPPED: a full disk under the ledger needs a mount of its own"
fi
if [ -w /dev/full ]; then
  refused "full disk: bench --raw" 'space|full' "$WRIGHT" bench "$bundle" --requests 2 --concurrency 1 \
    --prompt-tokens 8 --output-tokens 2 --raw /dev/full
fi
echo "bad-input passed: $count cases"
