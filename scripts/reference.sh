#!/usr/bin/env bash
# The committed reference record of this machine's CPU kernels: shares of peak, crossovers, scan, decode, long runs.
# Run it on a quiet machine; about six minutes on two cores.     BUILD=build  scripts/reference.sh [OUTPUT_DIRECTORY]
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-plots/reference/cpu}
build=${BUILD:-build}
mkdir -p "$out"
all=vla,softmax,linear,delta,decay,rls
"$build/vla-bench" --input tests/data/vla_lm --op $all --T 64-1024x2 --crossover vla,softmax --time-limit 60 \
  -o "$out/real.csv" -o "$out/real.json" --plot "$out"
for d in 32 64 128; do
  "$build/vla-bench" --op $all --d $d --T 256-4kx2 --crossover vla,softmax --time-limit 60 \
    -o "$out/d$d.csv" --plot "$out/d$d"
done
"$build/vla-bench" --op vla,linear,delta,decay,rls --form all --d 32,64,128 --T 1k --crossover none --time-limit 60 \
  -o "$out/forms.csv"
"$build/vla-bench" --op vla,delta,linear --form all --H 1 --d 64,128 --T 4k,16k --threads 1,2 --crossover none --time-limit 60 \
  -o "$out/scan.csv" # with scan.gain.csv: beside what the cores give
"$build/vla-bench" --mode decode --op vla,softmax,linear,delta --depth 64-4kx2 --time-limit 40 -o "$out/decode.csv" --plot "$out"
"$build/vla-bench" --op vla,linear --H 1 --d 16 --T 4M --crossover none --min-samples 1 --time-limit 120 -o "$out/long.csv"
