#!/usr/bin/env bash
# Does the search depend on luck? Three builds with seeds 1, 2 and 3, each with a ledger of its own, so that none knows
# what another found. All must reach 80 % of the best one's speed: by each build's own final table, and with the bundles
# measured against the first one in interleaved rounds.
#
# BUDGET (5m), MODEL (smollm2-135m), LEAST (0.8). Writes docs/measurements/seeds-DATE.txt.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
BUDGET=${BUDGET:-5m} MODEL=${MODEL:-smollm2-135m} LEAST=${LEAST:-0.8}
out=docs/measurements/seeds-$(date -u +%Y%m%d).txt
mkdir -p docs/measurements

for seed in 1 2 3; do
  echo "build with seed $seed, budget $BUDGET"
  "$WRIGHT" build "$MODEL" --budget "$BUDGET" --seed "$seed" \
    --out "$scratch/seed-$seed" --ledger "$scratch/ledger-$seed.sqlite" >"$scratch/build-$seed.txt"
done
for seed in 2 3; do
  echo "seed $seed against seed 1, interleaved"
  "$WRIGHT" bench "$scratch/seed-$seed" --against "$scratch/seed-1" --concurrency 1,4,16 --rounds 5 --json \
    >"$scratch/against-$seed.json"
done

{
  echo "Three builds of $MODEL, budget $BUDGET, seeds 1 to 3, separate ledgers. $(date -u +%F). $(machine_words)."
  echo "Output tokens/s over HTTP (the final table of build.json); ratios are medians of 5 interleaved rounds."
  echo
  python3 - "$scratch" "$LEAST" <<'PY'
import json, math, sys
folder, least = sys.argv[1], float(sys.argv[2])
mean = lambda values: math.exp(sum(map(math.log, values)) / len(values))
speeds = {}
for seed in (1, 2, 3):
    build = json.load(open(f"{folder}/seed-{seed}/build.json"))
    rows = [r for r in build["table"] if r["engine"] == "champion"]
    speeds[seed] = mean([r["tokens_per_s"] for r in rows])
    cells = "  ".join(f"c{r['concurrency']} {r['tokens_per_s']:8.1f}" for r in rows)
    quality = build["quality"]
    print(f"seed {seed}: {cells}  geometric mean {speeds[seed]:8.1f}"
          f"  search {build['search_s']:.0f} s, {build['evaluations']} evaluations, KL {quality['kl']:.5f}")
ratio = min(speeds.values()) / max(speeds.values())
print(f"worst / best by the builds' own tables: {ratio:.3f}")
relative = {1: 1.0}
for seed in (2, 3):
    cells = {}
    for concurrency, comparison in json.load(open(f"{folder}/against-{seed}.json"))["comparisons"]:
        found = [r for r in comparison["ratios"] if r["metric"] == "output_tokens_per_s"][0]
        cells[concurrency] = found["median"]
        print(f"seed {seed} / seed 1 at concurrency {concurrency}: {found['median']:.3f}"
              f" ({found['low']:.3f} to {found['high']:.3f})")
    relative[seed] = mean(list(cells.values()))
interleaved = min(relative.values()) / max(relative.values())
print(f"worst / best, interleaved: {interleaved:.3f} (at least {least} wanted)")
sys.exit(0 if interleaved >= least else 1)
PY
} | tee "$out"
echo "written to $out"
