# What the long checks share. Sourced, not run.
# WRIGHT: the program, default target/release/wright.

cd "$(dirname "${BASH_SOURCE[0]}")/../.."
WRIGHT=${WRIGHT:-target/release/wright}
command -v "$WRIGHT" >/dev/null || {
  echo "$WRIGHT is not there: cargo build --release, or set WRIGHT" >&2
  exit 2
}
WRIGHT=$(realpath "$(command -v "$WRIGHT")")

scratch=$(mktemp -d)
started=()

# Ends what was started, by its id, and removes the scratch folder.
clean_up() {
  local pid
  for pid in "${started[@]}"; do kill -9 "$pid" 2>/dev/null || true; done
  rm -rf "$scratch"
}
trap clean_up EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}

need() {
  local name
  for name in "$@"; do
    [ -n "${!name:-}" ] || { echo "set $name (see the head of this script)" >&2; exit 2; }
  done
}

# free_port: a TCP port that nobody uses now.
free_port() {
  python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# await_health URL SECONDS
await_health() {
  python3 - "$1" "$2" <<'PY'
import sys, time, urllib.request
url, patience = sys.argv[1], float(sys.argv[2])
end = time.time() + patience
while time.time() < end:
    try:
        if urllib.request.urlopen(url + "/health", timeout=5).status == 200:
            sys.exit(0)
    except Exception:
        time.sleep(0.3)
sys.exit(f"{url} did not become healthy within {patience:.0f} s")
PY
}

# serve BUNDLE NAME [ARGS]: starts a server on a free port; sets served_url and served_pid.
serve() {
  local bundle=$1 name=$2
  shift 2
  "$WRIGHT" serve "$bundle" --port 0 --model-name default "$@" \
    >"$scratch/$name.out" 2>"$scratch/$name.err" &
  served_pid=$!
  started+=("$served_pid")
  local i
  for ((i = 0; i < 3000; i++)); do
    [ -s "$scratch/$name.out" ] && break
    kill -0 "$served_pid" 2>/dev/null || { cat "$scratch/$name.err" >&2; fail "the server of $bundle ended"; }
    sleep 0.1
  done
  served_url=$(python3 -c 'import json, sys; print(json.loads(open(sys.argv[1]).readline())["url"])' "$scratch/$name.out")
  await_health "$served_url" 60
}

# isa: the instruction sets that decide which kernels there are, strongest first.
isa() {
  local flag found=""
  for flag in amx_int8 amx_bf16 avx512_bf16 avx512_vnni avx512f avx2; do
    grep -qw "$flag" /proc/cpuinfo && found+="${found:+ }$flag"
  done
  echo "${found:-plain}"
}

# machine_words: processor, instruction sets and cores, for the head of a measurement.
machine_words() {
  local cpu
  cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)
  echo "${cpu:-unknown processor} ($(isa)), $(nproc) cores, Linux $(uname -r | cut -d- -f1)"
}

# measurement NAME: the file for what is measured today on this kind of machine; makes its folder.
measurement() {
  local all
  all=$(isa)
  mkdir -p docs/measurements
  echo "docs/measurements/$1-$(date -u +%Y%m%d)-$(tr _ - <<<"${all%% *}").txt"
}
