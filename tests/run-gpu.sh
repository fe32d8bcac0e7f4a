#!/bin/bash
# Device tests: tests/run-gpu.sh [BUILD]. Where there is no device it says so and exits 0 with nothing run (REQUIRE_GPU=1:
# exits 4). SANITIZE=1 runs a small part under compute-sanitizer's memcheck, racecheck, initcheck and synccheck as well.
set -u
build=${1:-build}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
"$build/test-gpu" | tee "$log" | grep -v '^ok'
code=${PIPESTATUS[0]}
grep -q '^run [0-9]*, passed [0-9]*, skipped [0-9]*, failed [0-9]*$' "$log" || { echo "run-gpu: the program did not finish"; exit 1; }
[ "$code" -eq 4 ] && exit $([ "${REQUIRE_GPU:-0}" = 1 ] && echo 4 || echo 0)
if [ "${SANITIZE:-0}" = 1 ]; then
    # every operator, form and dtype at each: a tail, odd widths, the widest with A and several segments, a decode step
    small="B1_H2_T65_K64 B1_H2_T17_K33 B1_H2_T127_K128 B3_H5_T2_K64"
    for tool in memcheck initcheck synccheck racecheck; do
        for case in $small; do
            compute-sanitizer --tool $tool --error-exitcode 9 "$build/test-gpu" "$case" >"$log" 2>&1 || { tail -20 "$log"; code=1; }
            echo "$tool $case: $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$log")"
        done
    done
fi
if [ -x "$build/vla-bench" ]; then
    tests/gpu/bench.sh "$build" || code=1
fi
exit "$code"
