#!/usr/bin/env bash
# Bad input to vla-bench: one line that names it, the documented exit code, nothing half-written.
set -u
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"
bench=$build/vla-bench
expect() { refuse "$1" "$2" "$bench" "${@:3}"; } # exit code, what the message names, arguments..
printf 'kind,op,T,median_s\nsample,vla,64,0.5\n' >"$out/rows.csv"
expect 2 "--T" --T ''
expect 2 "--T" --T 64,
expect 2 "--T" --T 64-32
expect 2 "--T" --T 64-4096x1
expect 2 "--T" --T 64-128+0
expect 2 "--T" --T -5
expect 2 "--T" --T 64k64
expect 2 "--T" --T 99999999999999999999
expect 2 "--d" --d 0
expect 2 "--op" --op foo
expect 2 "--op" --op vla,,softmax
expect 2 "--form" --form fast
expect 2 "--dtype" --dtype f99
expect 2 "--threads" --threads 0
expect 2 "--min-samples" --min-samples 0
expect 2 "--noise" --noise nan
expect 2 "--time-limit" --time-limit 0
expect 2 "--time-limit" --time-limit 5s
expect 2 "--lambda0" --lambda0 0
expect 2 "--tim" --tim 3
expect 2 "--mode" --mode train
expect 2 "a decode step is not trained" --pass fwdbwd --mode decode
expect 2 "--depth" --depth 64
expect 2 "--T" --mode decode --T 64
expect 2 "--crossover vla" --crossover vla
expect 2 "itself" --crossover vla,vla
expect 2 "'foo'" --crossover vla,foo
expect 2 "--baseline" --baseline foo
expect 2 "--cudnn newest" --cudnn newest
expect 2 "--cudnn" crossover --from x.csv --cudnn first
expect 3 "--cudnn $out/none" --cudnn "$out/none"
expect 2 "started by vla-bench itself" worker
expect 2 "--case foo" --case foo
expect 2 "V is missing" --case vla/chunk/cpu/f32/B1_H1_T8_K4
expect 2 "'K5'" --case vla/chunk/cpu/f32/B1_H1_T8_K4_V4_K5
expect 2 "--T: given together with --case" --case vla/chunk/cpu/f32/B1_H1_T8_K4_V4 --T 16
expect 2 "--threads" --case vla/chunk/cpu/f32/B1_H1_T8_K4_V4 --threads 1,2
expect 2 "are B1_H4_K64_V64" --case vla/chunk/cpu/f32/B1_H5_T8_K64_V64 --input tests/data/vla_lm
expect 2 "are B1_H4_K64_V64" --case vla/chunk/cpu/f32/B1_H4_T8_K64_V65 --input tests/data/vla_lm
expect 2 "--crossover none" --crossover none --crossover vla,softmax
expect 2 "--filter nothing" --filter nothing
expect 2 "'what'" what
expect 2 "'more'" list more
"$bench" list >/dev/full 2>"$out/stderr"
[ $? = 3 ] && grep -q 'stdout: cannot write: ' "$out/stderr" || fail "a full disk under list: $(cat "$out/stderr")"
expect 2 "--resume" --resume
expect 2 "--fail-on" --fail-on slower
expect 2 "'warm'" --cache warm
expect 2 "--launch" --launch fast
expect 2 "'cuda,cpu'" --backend cuda,cpu
expect 3 "no claim" verdict --from "$out/rows.csv"
expect 2 "--from" verdict
expect 2 "--op" verdict --from "$out/rows.csv" --op vla
expect 2 "--fail-on" --fail-on refuted
expect 2 "--fail-on refuted" compare one two --fail-on refuted
expect 2 "--fail-on" list --fail-on slower
expect 2 "--from" --from x.csv
expect 2 "--from" list --from x.csv
expect 2 "--T: fit reads records" fit --from x.csv --T 64
expect 2 "--resume" merge one two --resume
expect 2 "--from" crossover
expect 2 "--plot" plot --from x.csv
expect 2 "compare" compare one
expect 2 "merge" merge
expect 2 "x.txt" -o "$out/x.txt"
expect 3 "$out/no/x.csv" -o "$out/no/x.csv"
expect 3 "$out/no/figures" --plot "$out/no/figures"
expect 3 "$out/no/q.npy" --input "$out/no"
expect 3 "none.csv" --expect "$out/none.csv"
printf 'kind,claim\nverdict,C1\n' >"$out/verdict.csv"
expect 3 "holds no samples or crossovers" --expect "$out/verdict.csv"
expect 3 "none.csv" fit --from "$out/none.csv"
expect 2 "1024 tokens" --input tests/data/vla_lm --T 2048
expect 2 "--H 3" --input tests/data/vla_lm --H 3
expect 2 "--d 32" --input tests/data/vla_lm --d 32
expect 4 "--backend cuda" --backend cuda
expect 4 "vla/chunk/cuda" --case vla/chunk/cuda/f32/B1_H4_T8_K4_V4
printf 'kind,case\nsample,"unfinished' >"$out/bad.csv"
expect 3 "bad.csv" fit --from "$out/bad.csv"
printf '{"kind": "sample", nonsense}\n{"kind": "sample"}\n' >"$out/bad.jsonl"
expect 3 "bad.jsonl" crossover --from "$out/bad.jsonl"
# figures from records whose strings are odd or whose times are missing do not break anything
printf 'kind,op,T,median_s,cpu\nsample,vla,64,,"it''s ""quoted_%%s"" {x}"\nsample,vla,128,-1,\nsample,softmax,0,1,\n' >"$out/odd.csv"
timeout 60 "$bench" plot --from "$out/odd.csv" --plot "$out/odd figures" -q || fail "odd records"
# the table behind a published extrapolation: the last 4, 3 and 2 points give these crossings
{
  echo kind,op,T,median_s
  paste -d, <(printf 'sample,softmax\n%.0s' 1 2 3 4 5 6 7) <(printf '%s\n' 64 128 256 512 1024 2048 4096) <(printf '%s\n' .0004 .0004 .0004 .0004 .0012 .0043 .0166)
  paste -d, <(printf 'sample,vla\n%.0s' 1 2 3 4 5 6 7) <(printf '%s\n' 64 128 256 512 1024 2048 4096) <(printf '%s\n' .0047 .0050 .0090 .0153 .0282 .0556 .1139)
} >"$out/published.csv"
found=$("$bench" fit --from "$out/published.csv" --format jsonl | jq -r 'select(.kind == "extrapolation" and .last) | .estimate | round' | tr '\n' ' ')
[ "$found" = "43401 36073 33675 " ] || fail "published table gives $found"
"$bench" --help | grep -q 'Exit: 0' || fail "--help"
"$bench" --version | grep -q '^vla-bench [0-9]' || fail "--version"
finish
