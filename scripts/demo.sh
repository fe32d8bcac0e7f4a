#!/usr/bin/env bash
# The main job on real tensors: every operator checked, then timed over sequence length, and the VLA/softmax crossover
# measured. Leaves records, gnuplot scripts and figures in results/.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
results=${2:-results}
mkdir -p "$results"
started=$(date +%s)

# An OpenBLAS older than the processor runs kernels of an older one, and shares of its matrix peak would say nothing.
better=$("$build/vla-bench" --op linear --T 1 --d 1 --H 1 --crossover none 2>&1 >/dev/null | sed -n 's/.*: set \(OPENBLAS_CORETYPE=[A-Za-z0-9]*\)$/\1/p')
if [ -n "$better" ]; then
  echo "OpenBLAS does not know this processor; with $better it does"
  export "${better?}"
fi

for model in vla_lm softmax_lm; do
  echo "== every form of every operator against float64 on tests/data/$model"
  "$build/vla-run" all --form all --input "tests/data/$model" --check \
    -o "$results/check_$model.csv" -o "$results/check_$model.json"
  echo
done

echo "== time against sequence length, and the measured crossover"
"$build/vla-bench" --input tests/data/vla_lm --op vla,linear,delta,decay,rls,softmax --T 64-1024x2 \
  --crossover vla,softmax --time-limit 75 -o "$results/bench.csv" -o "$results/bench.json" --plot "$results"
echo
echo "results/ after $(($(date +%s) - started)) s:"
ls "$results"
