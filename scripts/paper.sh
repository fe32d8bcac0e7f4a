#!/usr/bin/env bash
# Every record and figure of the report on this machine, in one directory; each step resumes where it was interrupted.
#   scripts/paper.sh [OUTPUT_DIRECTORY]      BUILD=build
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-results/paper}
build=${BUILD:-build}
mkdir -p "$out"

bench() { # name options...
  local name=$1
  shift
  "$build/vla-bench" "$@" --resume -o "$out/$name.jsonl" --plot "$out/$name"
}
bench latency_d64 --op vla,softmax,linear,delta,decay,rls --T 128-8kx2 --d 64 --crossover vla,softmax --time-limit 900
bench latency_d128 --op vla,softmax,linear,delta,decay,rls --T 128-8kx2 --d 128 --crossover vla,softmax --time-limit 900
bench forms --op vla --form all --T 1k --d 32,64,128 --time-limit 300
bench long --op vla,linear,delta --form best --H 1 --T 4k-1Mx4 --d 64 --time-limit 600
bench decode --mode decode --op vla,softmax,linear,delta --depth 128-16kx2 --d 64 --time-limit 300
"$build/vla-bench" fit --from "$out/latency_d64.jsonl" -o "$out/fit.csv"

if [ -x "$build/vla-jacobian" ]; then
  "$build/vla-jacobian" --verify all -o "$out/propositions.jsonl" --plot "$out/propositions"
  for model in vla_lm softmax_lm; do
    "$build/vla-jacobian" --input "tests/data/$model" -o "$out/jacobian_$model.jsonl" --plot "$out/jacobian_$model"
  done
fi
