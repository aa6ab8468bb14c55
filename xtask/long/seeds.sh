#!/usr/bin/env bash
# Does the search depend on luck? Three builds with seeds 1, 2 and 3, each with a ledger of its own, so that none knows
# what another found. All must reach 80 % of the best one's speed: by each build's own final table, and with the bundles
# measured against the first one in interleaved rounds.
#
# And does what was learnt pay? A fourth build, with the first one's ledger and a small budget, against the first engine.
#
# BUDGET (5m), SECOND (20s), MODEL (smollm2-135m), LEAST (0.8), ROUNDS (3). Writes docs/measurements/seeds-DATE-ISA.txt.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
BUDGET=${BUDGET:-5m} SECOND=${SECOND:-20s} ROUNDS=${ROUNDS:-3} MODEL=${MODEL:-smollm2-135m} LEAST=${LEAST:-0.8}
out=$(measurement seeds)

for seed in 1 2 3; do
  echo "build with seed $seed, budget $BUDGET"
  "$WRIGHT" build "$MODEL" --budget "$BUDGET" --seed "$seed" \
    --out "$scratch/seed-$seed" --ledger "$scratch/ledger-$seed.sqlite" >"$scratch/build-$seed.txt"
done
echo "second build: seed 4 on the ledger of seed 1, budget $SECOND"
"$WRIGHT" build "$MODEL" --budget "$SECOND" --seed 4 \
  --out "$scratch/seed-4" --ledger "$scratch/ledger-1.sqlite" >"$scratch/build-4.txt"
[ -z "${KEEP:-}" ] || cp -r "$scratch/seed-1" "$KEEP"
for seed in 2 3 4; do
  echo "seed $seed against seed 1, interleaved"
  "$WRIGHT" bench "$scratch/seed-$seed" --against "$scratch/seed-1" --concurrency 1,16 --rounds "$ROUNDS" --json \
    >"$scratch/against-$seed.json"
done

{
  echo "Three builds of $MODEL, budget $BUDGET, seeds 1 to 3, separate ledgers. $(date -u +%F). $(machine_words)."
  echo "Output tokens/s over HTTP (the final table of build.json); ratios are medians of $ROUNDS interleaved rounds."
  echo
  python3 - "$scratch" "$LEAST" <<'PY'
import json, math, sys
folder, least = sys.argv[1], float(sys.argv[2])
mean = lambda values: math.exp(sum(map(math.log, values)) / len(values))
speeds, searched = {}, {}
for seed in (1, 2, 3, 4):
    build = json.load(open(f"{folder}/seed-{seed}/build.json"))
    rows = [r for r in build["table"] if r["engine"] == "champion"]
    speeds[seed] = mean([r["tokens_per_s"] for r in rows])
    cells = "  ".join(f"c{r['concurrency']} {r['tokens_per_s']:8.1f}" for r in rows)
    quality = build["quality"]
    searched[seed] = build["search_s"]
    name = f"seed {seed}" if seed < 4 else "second build on the ledger of seed 1"
    print(f"{name}: {cells}  geometric mean {speeds[seed]:8.1f}"
          f"  search {searched[seed]:.0f} s, {build['evaluations']} evaluations, KL {quality['kl']:.5f}")
print(f"search time of the second build / of the first: {searched[4] / searched[1]:.3f}")
searches = [speeds[s] for s in (1, 2, 3)]
ratio = min(searches) / max(searches)
print(f"worst / best by the builds' own tables: {ratio:.3f}")
relative = {1: 1.0}
for seed in (2, 3, 4):
    cells = {}
    for concurrency, comparison in json.load(open(f"{folder}/against-{seed}.json"))["comparisons"]:
        found = [r for r in comparison["ratios"] if r["metric"] == "output_tokens_per_s"][0]
        cells[concurrency] = found["median"]
        print(f"seed {seed} / seed 1 at concurrency {concurrency}: {found['median']:.3f}"
              f" ({found['low']:.3f} to {found['high']:.3f})")
    if seed < 4:
        relative[seed] = mean(list(cells.values()))
    else:
        print(f"second build / first build, interleaved: {mean(list(cells.values())):.3f}")
interleaved = min(relative.values()) / max(relative.values())
print(f"worst / best, interleaved: {interleaved:.3f} (at least {least} wanted)")
sys.exit(0 if interleaved >= least else 1)
PY
  echo
  echo "The final table of seed 1: f32 reference, portable baseline and champion, one after the other over HTTP, ratios interleaved."
  cat "$scratch/build-1.txt"
} | tee "$out"
echo "written to $out"
