#!/usr/bin/env bash
# vla-capacity recall: records, verdicts, resuming, filters, refusals.
set -eu
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"
program=$build/vla-capacity
"$program" recall --d 16 --keys orth,elu1 --trials 8 -o "$out/a.jsonl" -o "$out/a.csv" >"$out/table" 2>"$out/log"
grep -q '^run 105, passed 105, skipped 0, failed 0$' "$out/log" || fail "closing line: $(tail -n 1 "$out/log")"
grep -q 'C10 .*orth d=16.* holds' "$out/table" || fail "C10 on orthonormal keys"
jq -es 'map(select(.kind == "recall" and .op == "vla" and .keys == "orth")) | length > 2 and all(.accuracy == 1)' "$out/a.jsonl" >/dev/null
jq -es 'map(select(.kind == "recall" and .n == 64 and .op == "vla")) | length == 1 and all(.age_q1 < .age_q4 and .state_bytes == 2048)' "$out/a.jsonl" >/dev/null
# the same seed, another thread count: the same rows
"$program" recall --d 16 --keys orth,elu1 --trials 8 --threads 1 --format jsonl -q | jq -c 'select(.kind == "recall")' >"$out/one"
jq -c 'select(.kind == "recall")' "$out/a.jsonl" | cmp - "$out/one"
# resuming measures nothing again and judges the same
"$program" recall --d 16 --keys orth,elu1 --trials 8 -o "$out/a.jsonl" --resume >"$out/again" 2>"$out/log"
grep -q '^run 0,' "$out/log" || fail "resumed run measured again"
cmp "$out/table" "$out/again"
"$program" recall --from "$out/a.jsonl" -q >"$out/again"
cmp "$out/table" "$out/again"
# what was expected is met by itself, and by no other seed's verdict that differs
"$program" recall --from "$out/a.jsonl" --expect "$out/a.jsonl" -q >/dev/null
sed 's/"verdict": *"refuted"/"verdict":"holds"/' "$out/a.jsonl" >"$out/wrong.jsonl"
code=0
"$program" recall --from "$out/a.jsonl" --expect "$out/wrong.jsonl" -q >/dev/null 2>"$out/log" || code=$?
{ [ "$code" = 1 ] && grep -q '^expected: verdict .* differs$' "$out/log"; } || fail "--expect: exit $code"
code=0
"$program" recall --from "$out/a.jsonl" --fail-on refuted -q >/dev/null || code=$?
[ "$code" = 5 ] || fail "--fail-on refuted: exit $code"
# a verdict's replay finds the same, whatever the options were
"$program" recall --d 8 --keys gauss --op vla,linear,rls --n 4,8,12 --trials 4 --lambda0 3 --u-scale 0.5 --seed 5 -q -o "$out/odd.jsonl" >/dev/null
jq -r 'select(.claim == "C14a").replay' "$out/odd.jsonl" >"$out/replay"
# shellcheck disable=SC2046
"$program" $(cut -d' ' -f2- "$out/replay") -q -o "$out/again.jsonl" >/dev/null
cmp <(jq -c 'select(.claim == "C14a" or .claim == "C17") | [.claim, .value, .lo, .hi]' "$out/odd.jsonl") \
  <(jq -c 'select(.claim == "C14a" or .claim == "C17") | [.claim, .value, .lo, .hi]' "$out/again.jsonl") || fail "replay: $(cat "$out/replay")"
# records of another program hold nothing to judge
printf '{"kind":"sample","op":"vla"}\n' >"$out/other.jsonl"
code=0
"$program" recall --from "$out/other.jsonl" >/dev/null 2>"$out/log" || code=$?
{ [ "$code" = 3 ] && grep -q 'other.jsonl: holds no records' "$out/log"; } || fail "--from other records: exit $code"
# figures: one that shows the line n = d
"$program" recall --from "$out/a.jsonl" --plot "$out/plots" -q >/dev/null
for name in recall_n_elu1_d16 recall_age_elu1_d16 recall_capacity_elu1 recall_state_elu1; do [ -s "$out/plots/$name.gp" ]; done
grep -q 'n = d' "$out/plots/recall_n_elu1_d16.gp"
# real keys
"$program" recall --input tests/data/vla_lm --trials 2 --n 8 --op rls,vla --format jsonl -q | jq -es 'map(select(.kind == "recall")) | length == 2 and all(.keys == "input" and .d == 64)' >/dev/null
# a case by its label; a filter; a dry run
"$program" recall --d 16 --case recall/vla/gauss/d16_n8 --format jsonl -q | jq -es 'map(select(.kind == "recall")) | length == 10 and all(.op == "vla" and .keys == "gauss")' >/dev/null
[ "$("$program" recall --d 16 --filter '*/rls/*' --dry-run | wc -l)" = 4 ]
# equal state: linear gets keys twice as wide
"$program" recall --d 16 --op linear,vla --keys gauss --match state --trials 2 --n 8 --format jsonl -q |
  jq -es 'map(select(.kind == "recall")) | (map(.state_bytes) | unique | length) == 1 and (map(.dk) | sort) == [16, 32]' >/dev/null
# orthonormal keys beyond d are a skip with its reason; --strict makes it an error
"$program" recall --d 16 --keys orth --n 8,20 --op vla --format jsonl 2>"$out/log" | jq -es 'any(.status == "skip" and (.reason | test("dk = 16")))' >/dev/null
grep -q 'skipped 1' "$out/log"
if "$program" recall --d 16 --keys orth --n 8,20 --op vla --strict -q >/dev/null; then fail "--strict passed"; fi
# what would be found wrong only after everything is measured is refused before; a filter that leaves nothing is no success
for task in recall mqar; do
  refuse 3 "$out/none.csv" "$program" $task --expect "$out/none.csv"
  refuse 3 "holds no records of vla-capacity" "$program" $task --expect "$out/other.jsonl"
  refuse 3 "$out/table" "$program" $task --plot "$out/table"
  refuse 2 "--fail-on slower: refuted is accepted" "$program" $task --fail-on slower
  refuse 2 "--threads: several values" "$program" $task --threads 1,2
  refuse 4 "--backend cuda" "$program" $task --backend cuda
  refuse 2 "no case matches" "$program" $task --case nosuch
  refuse 2 "no case matches" "$program" $task --filter '['
done
refuse 2 "an array of 2^31 elements" "$program" recall --op vla --n 16M --d 128 --trials 1
refuse 3 "$out/none/dump" "$program" mqar --quick --steps 3 --dump "$out/none/dump"
# a name given twice is measured once; the first case left out says why
"$program" recall --d 4 --keys gauss,gauss --gate unit,unit --op vla --n 2 --trials 1 >/dev/null 2>"$out/log"
grep -q '^run 1, passed 1' "$out/log" || fail "a name given twice: $(cat "$out/log")"
"$program" recall --input tests/data/vla_lm --d 8 --trials 1 >/dev/null 2>"$out/log"
[ "$(grep -c ': skip: input keys have width 64, not 8' "$out/log")" = 1 ] || fail "a skip without its reason: $(cat "$out/log")"
# a limit and an interruption say so and keep what is done
"$program" recall --time-limit 0.1 >/dev/null 2>"$out/log"
grep -q '^vla-capacity: stopped at --time-limit' "$out/log" || fail "--time-limit: $(cat "$out/log")"
code=0
timeout --foreground --preserve-status -s INT 0.5 "$program" recall --trials 2000 -o "$out/stop.jsonl" >/dev/null 2>"$out/log" || code=$?
{ [ "$code" = 130 ] && grep -q '^vla-capacity: interrupted; --resume goes on' "$out/log"; } || fail "interrupted: exit $code: $(cat "$out/log")"
for bad in "--keys gaus" --resume "--trials 0" "--n 0" "--gate x" "--u-scale nan" "--match x" "--decay 2"; do
  code=0
  # shellcheck disable=SC2086
  "$program" recall $bad >/dev/null 2>"$out/log" || code=$?
  [ "$code" = 2 ] || fail "$bad: exit $code"
  [ "$(wc -l <"$out/log")" = 1 ] || fail "$bad: $(cat "$out/log")"
done
code=0
"$program" what >/dev/null 2>&1 || code=$?
[ "$code" = 2 ]
