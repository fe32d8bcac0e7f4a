#!/bin/bash
# Device tests: tests/run-gpu.sh [BUILD]. Where there is no device it says so and exits 0 with nothing run (REQUIRE_GPU=1:
# exits 4). SANITIZE=1 runs a small part under compute-sanitizer's memcheck, racecheck, initcheck and synccheck as well,
# racecheck with BUILD/race/test-gpu, which make builds (chunk_walk.cuh: VLA_EVERY_LANE).
set -u
build=${1:-build}
log=$(mktemp -d)
tool_log=$(mktemp)
trap 'rm -rf "$log" "$tool_log"' EXIT
"$build/test-gpu" /none/ >"$log/none" || { # no device
    cat "$log/none"
    exit $([ "${REQUIRE_GPU:-0}" = 1 ] && echo 4 || echo 0)
}
head -n 1 "$log/none"
# Processes side by side, since the float64 oracle runs on one core; then what takes tens of GB, one after the other.
parts="softmax linear decay rls delta/chunk delta/scan delta/recurrent vla/chunk/bf16 vla/chunk/f16 vla/chunk/f32 vla/chunk/tf32
    vla/scan vla/recurrent vla/stepwise"
part() { # NAME WORD..: a part of the cases, and how it did as it ends
    local to=$log/${1//\//-}
    "$build/test-gpu" "${@:2}" >"$to" 2>&1
    echo "  $1: $(tail -n 1 "$to")" >&2
}
for each in $parts; do part "$each" "$each/" '!/far' & done
wait
part far /far
code=0
for each in $parts far; do
    part=${each//\//-}
    grep -v '^ok' "$log/$part" | sed -e 1d -e '/^run [0-9]/d'
    tail -n 1 "$log/$part" | grep -q '^run [0-9]*, passed [0-9]*, skipped [0-9]*, failed 0$' || { echo "run-gpu: $part: $(tail -n 1 "$log/$part")"; code=1; }
done
# how each form and dtype did
sed 's/^\(ok\|skip\|FAIL\) *\([^/ ]*\/[^/ ]*\/[^/ ]*\)\/.*/\2 \1/;t;d' "$log"/* | sort | awk '
    function line() { if (form) printf "%-24s passed %4d  skipped %3d  failed %3d\n", form, n["ok"], n["skip"], n["FAIL"] }
    $1 != form { line(); form = $1; n["ok"] = n["skip"] = n["FAIL"] = 0 }
    { n[$2]++ }
    END { line() }'
if [ "${SANITIZE:-0}" = 1 ]; then
    # Every operator, form and dtype at each: a tail, odd widths, the widest with A and several segments, a decode step; then
    # the chunkwise forms of bfloat16 in steps of two chunks and with their walk beside them. Not racecheck over softmax,
    # most of which are another library's kernels; these have so many barriers that synccheck must be told to follow
    # more, for which it has no memory with the kernels of recurrent.
    sanitize() { # tool program word..
        local options=()
        [ "$3" != softmax/ ] || options=(--num-cuda-barriers 65536)
        compute-sanitizer --tool "$1" "${options[@]}" --error-exitcode 9 "${@:2}" >"$tool_log" 2>&1 ||
            { grep -m 40 '^=========' "$tool_log"; tail -3 "$tool_log"; code=1; }
        echo "$1 ${*:3}: $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$tool_log")"
    }
    general="B1_H2_T65_K64 B1_H2_T17_K33 B1_H2_T127_K128 B3_H5_T2_K64"
    for case in $general chunk/bf16/B1_H1_T2050_K64 chunk/bf16/B1_H1_T1150_K128; do
        sanitize memcheck "$build/test-gpu" "$case"
        sanitize initcheck "$build/test-gpu" "$case"
        sanitize synccheck "$build/test-gpu" "$case" '!softmax/'
        sanitize racecheck "$build/race/test-gpu" "$case" '!softmax/'
    done
    for case in $general; do sanitize synccheck "$build/test-gpu" softmax/ "$case"; done
fi
if [ -x "$build/vla-bench" ]; then
    tests/gpu/bench.sh "$build" || code=1
fi
sed -n 's/^run \([0-9]*\), passed \([0-9]*\), skipped \([0-9]*\), failed \([0-9]*\)$/\1 \2 \3 \4/p' "$log"/* |
    awk '{ for (i = 1; i <= 4; i++) n[i] += $i } END { printf "run %d, passed %d, skipped %d, failed %d\n", n[1], n[2], n[3], n[4] }'
exit "$code"
