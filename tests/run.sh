#!/usr/bin/env bash
# Runs every test program and every command-line script against the programs in BUILD (first argument).
# Last line: "N passed, N failed". A test that prints no closing line has failed.
set -u
cd "$(dirname "$0")/.."
build=${1:-build}
export LC_ALL=C OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-2}
passed=0 failed=0
failures=()
run_one() { # name command...
  local name=$1 start log
  shift
  start=$(date +%s)
  log=$build/tests/$name.log
  mkdir -p "$build/tests"
  if "$@" >"$log" 2>&1; then
    passed=$((passed + 1))
    printf 'ok    %-36s %4ds\n' "$name" $(($(date +%s) - start))
  else
    local code=$?
    failed=$((failed + 1))
    failures+=("$name")
    printf 'FAIL  %-36s exit %d\n' "$name" "$code"
    tail -n 40 "$log" | sed 's/^/      /'
  fi
}
for source in tests/test_*.c; do
  [ -e "$source" ] || continue
  name=$(basename "$source" .c)
  [ -z "${ONLY:-}" ] || [[ $name == $ONLY ]] || continue
  run_one "$name" "$build/tests/$name"
done
for script in tests/cli/*.sh; do
  [ -e "$script" ] || continue
  name=$(basename "$script" .sh)
  [ "$name" = common ] && continue
  [ -z "${ONLY:-}" ] || [[ $name == $ONLY ]] || continue
  run_one "$name" bash "$script" "$build"
done
[ ${#failures[@]} -eq 0 ] || printf 'failed: %s\n' "${failures[*]}"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
