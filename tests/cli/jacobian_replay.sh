#!/usr/bin/env bash
# Every refuted claim carries a command line that shows the same number again, run as a user would run it.
set -u
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"
jacobian=$build/vla-jacobian
cd "$out" || exit 1
replay() { # least number of witnesses, options of vla-jacobian..
  local least=$1 count
  shift
  "$jacobian" "$@" --format jsonl -q 2>stderr | jq -r 'select(.verdict=="refuted").replay' >replay.sh
  count=$(wc -l <replay.sh)
  [ "$count" -ge "$least" ] || fail "$* gave $count witnesses, not $least: $(cat stderr)"
  sh -e replay.sh >log 2>&1 || fail "a witness of $* does not replay: $(tail -n 2 log)"
}
replay 4 --verify C8 --T 400 --d 8 --H 2
replay 1 --verify C7 --source adversary --d 4
replay 3 --verify C4,C16,C17 --T 60 --d 8 --H 2
replay 2 --verify C20
replay 1 --verify C17 --source gauss --T 8 --d 4 --H 1 --seeds 1-60+1 # a long line is a whole one
# The numbers the adversary is asked for.
"$jacobian" --source adversary --goal product --T 1680 --d 8 -q --format jsonl >a.jsonl 2>stderr || fail "adversary: $(cat stderr)"
jq -es '[.[] | select(.kind == "witness")] | .[0].value >= 4 and .[0].value > .[0].random_value and .[0].value <= .[0].bound_value' \
  a.jsonl >/dev/null || fail "the product adversary is below 1e4, or out of bounds"
# A wrong number must not replay.
jq -r 'select(.kind == "witness").replay' a.jsonl | sed 's/=[-0-9.]*$/=7.5/' | sh >/dev/null 2>&1 && fail "a wrong number replays"
finish
