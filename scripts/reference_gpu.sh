#!/usr/bin/env bash
# The committed reference record of the GPU kernels, in two halves, since a machine with the device may have no gnuplot:
#   scripts/reference_gpu.sh measure [DIR]   on the device: records, the most important first; about ten minutes on an H200 and 16 cores
#   scripts/reference_gpu.sh grid    [DIR]   on the device: every form over a grid of sizes, for the selector's table
#   scripts/reference_gpu.sh render  [DIR]   anywhere: verdicts and figures from those records
# DIR is plots/reference/h200 unless given. What is there already is not measured again: delete a file to renew it.
# BUILD=build, BUDGET=SECONDS (nothing is begun later), QUICK=1 (a minute, to try it), ONLY="d64 launch" (those records alone), LIMIT=1 scales the time limits.
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
  if [ -n "${BUDGET:-}" ] && [ $((SECONDS - begun)) -ge "$BUDGET" ]; then
    echo "$name: not begun, $BUDGET s are over" >&2
    return 0
  fi
  [ "$quick" = 1 ] && seconds=$(((seconds + 3) / 4))
  "$bench" "$@" --backend cuda --dtype bf16 --time-limit "$((seconds * ${LIMIT:-1}))" -o "$out/$name.csv" --resume -q >/dev/null || code=$?
  echo "$name: exit $code, $((SECONDS - begun)) s so far" >&2
  [ "$code" = 0 ] || failed=$code
}

measure() {
  local long=128k mid=16k more=32k contexts=1k,4k,16k,64k batch=1k,2k
  [ "$quick" = 1 ] && long=8k mid=4k more=4k contexts=1k,4k batch=1k
  mkdir -p "$out"
  local all=vla,softmax,linear,delta,decay
  local crossings=(--crossover vla,softmax --crossover delta,softmax --crossover linear,softmax)
  # latency, C1, C5, C11
  measured d64 120 --op $all --d 64 --T 512-${long}x2 "${crossings[@]}" --peak
  measured d128 150 --op $all --d 128 --T 512-${long}x2 "${crossings[@]}"
  # float32 tensors, products of tf32, beside bf16
  measured tf32 60 --op vla,delta,linear --dtype tf32 --d 64,128 --T 1k,4k,16k,64k --crossover none
  # a million tokens of 16 heads
  [ "$quick" = 1 ] || measured long_heads 90 --op vla --d 64 --T 64k,1M --crossover none --min-samples 3
  # C6
  measured launch 10 --op vla --form stepwise,recurrent --d 64 --T 1k,4k --crossover none
  measured launch_stream 10 --op vla --form stepwise,recurrent --d 64 --T 1k,4k --crossover none --launch stream
  # the paper's own setting, by the best form and by the form that is the paper's kernel
  measured paper 25 --op vla,softmax,linear --B 4 --H 1 --d 64 --T 64-64kx4 --crossover vla,softmax
  measured paper_recurrent 20 --form recurrent,chunk --filter 'vla/recurrent/*' --filter 'softmax/chunk/*' --op vla,softmax \
    --B 4 --H 1 --d 64 --T 64-64kx4 --crossover vla,softmax
  # C18
  measured decode 25 --mode decode --op vla,softmax,linear,delta,decay,rls --d 64 --depth $contexts
  # crossover against d and against B*H, with those of d64 and d128
  measured width 45 --op vla,softmax --d 32,96 --T 512-${mid}x2 --crossover vla,softmax
  measured heads 60 --op vla,softmax --d 64 --H 1,4,64 --T 512-${more}x2 --crossover vla,softmax
  # C19
  [ "$quick" = 1 ] || measured long 60 --op softmax,vla --H 1 --d 64 --T 64k,128k,1M --crossover none --min-samples 3
  measured decode_batch 25 --mode decode --op $all --B 64 --d 128 --depth $batch
  measured cold 20 --op vla,softmax --d 64 --T 512-${mid}x2 --crossover vla,softmax --cache cold
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
  measured grid 40 "${forms[@]}" --dtype f32,tf32 --d 64,128 --H 1,128 --T 64,4k
  return "$failed"
}

render() {
  local each found=()
  for each in d64 d128 paper paper_recurrent cold decode decode_batch; do
    [ -s "$out/$each.csv" ] || continue
    found=(--from "$out/$each.csv")
    [ -s "$out/$each.crossover.csv" ] && found+=(--from "$out/$each.crossover.csv")
    "$bench" plot "${found[@]}" --plot "$out/$each" -q
  done
  # crossovers against d and against B*H: figures of their own, from the crossovers of several records
  found=()
  for each in d64 d128 width heads; do
    [ -s "$out/$each.crossover.csv" ] && found+=(--from "$out/$each.crossover.csv")
  done
  [ ${#found[@]} = 0 ] || "$bench" plot "${found[@]}" --plot "$out/crossovers" -q
  for each in d64 d128 launch launch_stream paper paper_recurrent decode decode_batch cold long; do
    [ -s "$out/$each.csv" ] || continue
    "$bench" verdict --from "$out/$each.csv" -o "$out/verdict_$each.csv" -q >/dev/null || rm -f "$out/verdict_$each.csv"
  done
  "$bench" verdict --from plots/reference/authors_t4.csv -o "$out/verdict_authors.csv" -q >/dev/null
  "$bench" merge "$out"/verdict_*.csv -o "$out/verdicts.csv" -q
  rm -f "$out"/verdict_*.csv
}

case $half in
measure | grid | render) "$half" ;;
*) echo "reference_gpu.sh: '$half': accepted are measure, grid and render, then a directory" >&2 && exit 2 ;;
esac
