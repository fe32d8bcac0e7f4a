# shellcheck shell=bash
# What the scripts of this folder share, sourced first: the programs, a folder of the script's own, and how it fails.
build=$(realpath "${1:-build}")
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failures=0
# With set -e the first failure ends the script; without, failures are counted until `finish`.
fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
  case $- in *e*) exit 1 ;; esac
}
finish() {
  [ "$failures" = 0 ] || exit 1
  echo passed
  exit 0
}
# Bad input: the exit code, what one line on stderr names, a program and its arguments; nothing goes to stdout.
refuse() {
  local want=$1 names=$2 code=0
  shift 2
  timeout 60 "$@" >"$out/stdout" 2>"$out/stderr" </dev/null || code=$?
  if [ "$code" != "$want" ] || [ "$(wc -l <"$out/stderr")" != 1 ] || ! grep -qF -- "$names" "$out/stderr" || [ -s "$out/stdout" ]; then
    fail "exit $code, expected $want and one line naming '$names': $(basename "$1") ${*:2}: $(cat "$out/stderr")"
  fi
}
