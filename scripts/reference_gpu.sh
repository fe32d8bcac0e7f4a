#!/usr/bin/env bash
# The committed reference record of the GPU kernels, in two halves, since a machine with the device may have no gnuplot:
#   scripts/reference_gpu.sh measure [DIR]   on the device: records, the most important first; about six minutes on an H200
#   scripts/reference_gpu.sh grid    [DIR]   on the device: every form over a grid of sizes, for the selector's table
#   scripts/reference_gpu.sh render  [DIR]   anywhere: verdicts and figures from those records
# DIR is plots/reference/h200 unless given. What is there already is not measured again: delete a file to renew it.
# BUILD=build, QUICK=1 (a minute, to try it), ONLY="d64 launch" (those records alone), LIMIT=1 scales the time limits.
set -euo pipefail
cd "$(dirname "$0")/.."
half=${1:-}
out=${2:-plots/reference/h200}
bench=${BENCH:-${BUILD:-build}/vla-bench}
quick=${QUICK:-0}
failed=0
begun=$SECONDS

# measured NAME SECONDS OPTION..: one record, within so many seconds; what fails is said, and the others go on.
measured() {
  local name=$1 seconds=$2 code=0
  shift 2
  [ -z "${ONLY:-}" ] || [[ " $ONLY " == *" $name "* ]] || return 0
  [ "$quick" = 1 ] && seconds=$(((seconds + 3) / 4))
  "$bench" "$@" --backend cuda --dtype bf16 --time-limit "$((seconds * ${LIMIT:-1}))" -o "$out/$name.csv" --resume -q >/dev/null || code=$?
  echo "$name: exit $code, $((SECONDS - begun)) s so far" >&2
  [ "$code" = 0 ] || failed=$code
}

measure() {
  local long=128k mid=16k more=32k contexts=1k-128kx2 batch=1k,4k
  [ "$quick" = 1 ] && long=8k mid=4k more=4k contexts=1k-8kx2 batch=1k
  mkdir -p "$out"
  # latency, C1, C5, C11
  measured d64 60 --op vla,softmax,linear,delta,decay --d 64 --T 512-${long}x2 --crossover vla,softmax --crossover delta,softmax --crossover linear,softmax --peak
  measured d128 80 --op vla,softmax,linear,delta,decay --d 128 --T 512-${long}x2 --crossover vla,softmax --crossover delta,softmax --crossover linear,softmax
  # C6
  measured launch 12 --op vla --form stepwise,recurrent --d 64 --T 1k,4k --crossover none
  measured launch_stream 12 --op vla --form stepwise,recurrent --d 64 --T 1k,4k --crossover none --launch stream
  # the paper's own setting, by the form that is the paper's kernel and by the best
  measured paper 25 --op vla,softmax,linear --B 4 --H 1 --d 64 --T 64-64kx4 --crossover vla,softmax
  measured paper_recurrent 25 --form recurrent,chunk --filter 'vla/recurrent/*' --filter 'softmax/chunk/*' --op vla,softmax \
    --B 4 --H 1 --d 64 --T 64-64kx4 --crossover vla,softmax
  # C18
  measured decode 40 --mode decode --op vla,softmax,linear,delta,decay,rls --d 64 --depth $contexts
  measured decode_batch 40 --mode decode --op vla,softmax,linear,delta,decay --B 64 --d 128 --depth $batch
  # crossover against d and against B*H
  measured width 40 --op vla,softmax --d 32,64,96,128 --T 512-${mid}x2 --crossover vla,softmax
  measured heads 60 --op vla,softmax --d 64 --H 1,4,16,64 --T 512-${more}x2 --crossover vla,softmax
  # cold caches
  measured cold 30 --op vla,softmax,linear,delta --d 64 --T 512-${mid}x2 --crossover vla,softmax --cache cold
  # C19
  [ "$quick" = 1 ] && return "$failed"
  measured long_vla 90 --op vla --d 64 --T 64k,1M --crossover none --min-samples 3
  measured long 90 --op softmax --d 64 --T 128k,1M --crossover none --min-samples 1
  return "$failed"
}

# Every form over B*H, T and d: what the selector's table is made from and held against. Apart, since it is asked for by
# name: about eighty seconds.
grid() {
  mkdir -p "$out"
  local forms=(--form all --filter '*/recurrent/*' --filter '*/chunk/*' --filter '*/scan/*' --op vla,delta,linear --crossover none --min-samples 5)
  measured grid 60 "${forms[@]}" --d 64,128,32 --H 1,4,16,64 --T 64,256,512,2k,8k
  measured grid 30 "${forms[@]}" --d 64,128,32 --B 8 --H 16,64 --T 64,512,2k
  measured grid 30 "${forms[@]}" --d 64 --H 1,16 --T 32k,128k
  measured grid 20 "${forms[@]}" --d 128,32 --H 16 --T 32k
  measured grid 40 "${forms[@]}" --dtype f32,tf32 --d 64,128 --H 1,16,128 --T 64,512,4k
  return "$failed"
}

render() {
  local all=() each
  for each in d64 d128 paper paper_recurrent width heads cold; do
    [ -s "$out/$each.csv" ] || continue
    "$bench" plot --from "$out/$each.csv" $([ -s "$out/$each.crossover.csv" ] && echo --from "$out/$each.crossover.csv") --plot "$out/$each" -q
  done
  for each in decode decode_batch; do
    [ -s "$out/$each.csv" ] && "$bench" plot --from "$out/$each.csv" --plot "$out/$each" -q
  done
  for each in width heads; do # one figure each of all crossovers: the others are of single settings
    [ -d "$out/$each" ] && find "$out/$each" -type f ! -name 'crossover_*' -delete
  done
  for each in d64 d128 launch launch_stream paper paper_recurrent decode decode_batch cold; do
    [ -s "$out/$each.csv" ] || continue
    "$bench" verdict --from "$out/$each.csv" -o "$out/verdict_$each.csv" -q >/dev/null || rm -f "$out/verdict_$each.csv"
  done
  if [ -s "$out/long.csv" ] && [ -s "$out/long_vla.csv" ]; then
    "$bench" verdict --from "$out/d64.csv" --from "$out/long_vla.csv" --from "$out/long.csv" -o "$out/verdict_d64.csv" -q
  fi
  "$bench" verdict --from plots/reference/authors_t4.csv -o "$out/verdict_authors.csv" -q
  all=("$out"/verdict_*.csv)
  "$bench" merge "${all[@]}" -o "$out/verdicts.csv" -q
  rm -f "${all[@]}"
}

case $half in
measure | grid | render) "$half" ;;
*) echo "reference_gpu.sh: '$half': accepted are measure, grid and render, then a directory" >&2 && exit 2 ;;
esac
