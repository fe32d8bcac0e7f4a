#!/usr/bin/env bash
# vla-capacity mqar and copy: a small vla learns 4 pairs exactly, its tensors feed the other programs; threads, resuming,
# protocols, refusals.
set -eu
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"
program=$build/vla-capacity
# all of 1,000 held-out sequences, four questions each
"$program" mqar --quick --dump "$out/dump" -o "$out/quick.jsonl" >"$out/table" 2>"$out/log"
jq -es 'map(select(.kind == "train")) | length == 1 and .[0].accuracy == 1 and .[0].scored == 4000 and .[0].train_s < 90' "$out/quick.jsonl" >/dev/null ||
  fail "quick: $(jq -c 'select(.kind == "train") | {accuracy, scored, train_s}' "$out/quick.jsonl")"
grep -q 'not measured here' "$out/table"
"$build/vla-jacobian" --input "$out/dump" -q >/dev/null
"$build/vla-bench" --input "$out/dump" --op vla --min-samples 1 --noise 1 -q >/dev/null

small="--steps 6 --batch 8 --seed 7 -q"
rows() { jq -c 'select(.kind == "train") | del(.train_s, .tokens_per_s, .threads)'; }
for task in "mqar --n 3" "mqar --n 3 --mqar-form zoology" copy; do
  # shellcheck disable=SC2086
  "$program" $task $small --op all --threads 1 --format jsonl | rows >"$out/one"
  # shellcheck disable=SC2086
  "$program" $task $small --op all --threads 2 --format jsonl | rows >"$out/two"
  [ "$(wc -l <"$out/one")" = 6 ] || fail "$task: $(wc -l <"$out/one") rows"
  cmp "$out/one" "$out/two"
done
# stopped by the time limit, then resumed from its checkpoint: as if never stopped
# shellcheck disable=SC2086
"$program" mqar --n 3 $small --op rls --format jsonl | rows >"$out/whole"
# shellcheck disable=SC2086
"$program" mqar --n 3 $small --op rls --checkpoint "$out/kept" --time-limit 1e-9 -o "$out/part.jsonl" >/dev/null 2>&1
[ -n "$(ls "$out/kept")" ] || fail "no checkpoint"
[ "$(rows <"$out/part.jsonl" | wc -l)" = 0 ] || fail "a stopped run has a row"
# shellcheck disable=SC2086
"$program" mqar --n 3 $small --op rls --checkpoint "$out/kept" -o "$out/part.jsonl" --resume >/dev/null
rows <"$out/part.jsonl" | cmp - "$out/whole"
# what is there is not trained again
"$program" mqar --n 3 --steps 6 --batch 8 --seed 7 --op rls -o "$out/part.jsonl" --resume 2>"$out/log" >/dev/null
grep -q '^run 0,' "$out/log" || fail "trained again: $(cat "$out/log")"
# options reach the network, and its size is told
# shellcheck disable=SC2086
"$program" mqar --n 3 $small --op delta --preset delta-pub --gradients --norms --format jsonl |
  jq -es 'any(.kind == "train" and .conv == 4 and .out_norm == "rms" and .parameters > 800000) and any(.kind == "state" and .T == 1000 and .norm > 0)
    and (map(select(.kind == "gradient" and .trained)) | length > 3 and all(.gradient > 0))' >/dev/null
# shared options reach it too, and are part of the case
# shellcheck disable=SC2086
"$program" mqar --n 3 $small --op vla --lambda0 0.5 --features silu --refresh-period 4 --format jsonl |
  jq -es 'any(.kind == "train" and .lambda0 == 0.5 and .features == "silu" and .refresh_period == 4 and (.case | test("lambda0.5_silu_refresh4")))' >/dev/null
# the gates' first bias reaches the operators that have gates, and is part of their case
# shellcheck disable=SC2086
"$program" mqar --n 3 $small --op decay,rls --gate-bias 4 --format jsonl |
  jq -es 'map(select(.kind == "train")) | map([.case, .gate_bias]) == [["mqar/decay/paper/n3_T10_gate4_s7", 4], ["mqar/rls/paper/n3_T10_s7", null]]' >/dev/null || fail "gate bias"
# a run with options of its own is no measurement of the protocol
! "$program" mqar --n 4 --steps 2 --batch 8 --op vla -q | grep -q '1 seed' || fail "a short run filled the table"
# a tuned case is a grid of rates; a case by its label
[ "$("$program" mqar --protocol tuned --case mqar/vla/tuned/n24_T73 --dry-run | grep -c search_lr)" = 5 ]
[ "$("$program" mqar --case mqar/vla/paper/n24_T73_s42 --dry-run)" = mqar/vla/paper/n24_T73_s42 ]
# copying asked at a token's own position, where it is the input: learned in a few steps without any memory
"$program" copy --copy-form own --op decay --T 15 --vocab 8 --steps 60 --batch 16 --lr 1e-2 --format jsonl -q |
  jq -es 'any(.kind == "train" and .task == "copy-own" and .accuracy == 1 and (.case | test("^copy-own/decay/paper/T15")))' >/dev/null || fail "copy own"
# a search of rates shared out by --case and merged: the rest of its cases follow, and the whole is what one run gives;
# a rate that diverges is skipped
tuned="--protocol tuned --op linear --n 2 --vocab 8 --steps 40 --batch 8 --seeds 7,8 -q"
# shellcheck disable=SC2086
{
  "$program" mqar $tuned -o "$out/tuned.jsonl" >/dev/null
  "$program" mqar $tuned --dry-run | head -2 >"$out/cases"
  while read -r case; do "$program" mqar $tuned --case "$case" -o "$out/shared.jsonl" --resume >/dev/null; done <"$out/cases"
  [ "$("$program" mqar $tuned --dry-run -o "$out/shared.jsonl" --resume | grep -c search)" = 3 ] || fail "a search begun"
  "$program" mqar $tuned --case mqar/linear/tuned/n2_T7_V8_search -o "$out/shared.jsonl" --resume >/dev/null
  [ "$("$program" mqar $tuned --dry-run -o "$out/shared.jsonl" --resume | grep -vc search)" = 2 ] || fail "a search ended"
  "$program" mqar $tuned -o "$out/shared.jsonl" --resume >/dev/null
}
[ "$(rows <"$out/tuned.jsonl" | wc -l)" -ge 7 ] || fail "a tuned cell has $(rows <"$out/tuned.jsonl" | wc -l) rows"
rows <"$out/tuned.jsonl" | cmp - <(rows <"$out/shared.jsonl")
jq -es 'map(select(.kind == "train")) | (map(select(.search)) | all(.steps == 40)) and (map(select(.search | not)) | length == 2 and all(.validation >= 0))' \
  "$out/tuned.jsonl" >/dev/null || fail "tuned rows"
# the first seed's network is the one that tried the rate
jq -es 'map(select(.kind == "train" and .seed == 7)) | (map(select(.search | not)) | .[0]) as $own |
  map(select(.search and .lr == $own.lr)) | length == 1 and .[0].accuracy == $own.accuracy and .[0].curve == $own.curve' \
  "$out/tuned.jsonl" >/dev/null || fail "the first seed's network"
# the rate that is there first is chosen, and the others stop where it was
"$program" mqar --protocol tuned --op rls --n 2 --vocab 16 --steps 2000 --seeds 3 -q -o "$out/first.jsonl" >/dev/null
jq -es 'map(select(.kind == "train")) | (map(select(.search | not)) | .[0]) as $own | map(select(.search)) |
  (map(select(.stop_reason == "accuracy reached") | .steps) | min) == $own.steps and any(.stop_reason == "another rate was faster") and
  all(.stop_reason != "another rate was faster" or .steps >= $own.steps)' "$out/first.jsonl" >/dev/null ||
  fail "the first rate: $(jq -c 'select(.kind == "train") | [.case, .steps, .stop_reason, .validation]' "$out/first.jsonl")"
# a loss that is not finite stops with its step and fails the run
code=0
"$program" mqar --n 3 --steps 20 --batch 8 --op linear --lr 1e30 --format jsonl >"$out/bad" 2>/dev/null || code=$?
[ "$code" = 1 ] || fail "lr 1e30: exit $code"
jq -es 'any(.kind == "train" and .status == "fail" and (.reason | test("step [0-9]+")))' "$out/bad" >/dev/null
# an option of another task is refused by its name
for bad in "mqar --trials 3" "recall --protocol tuned" "copy --n 4" "mqar --copy-form own" "recall --T 8" "mqar --d 16"; do
  code=0
  # shellcheck disable=SC2086
  "$program" $bad >/dev/null 2>"$out/log" || code=$?
  [ "$code" = 2 ] && grep -qe "$(echo "$bad" | cut -d' ' -f2): " "$out/log" || fail "$bad: $(cat "$out/log")"
done
for bad in "mqar --n 127,128" "mqar --n 8 --T 17" "mqar --mqar-form zoology --n 64" "copy --T 64" "mqar --n 4 --vocab 4" "mqar --protocol x" \
  "mqar --lr 0" "mqar --dump $out/d --op all" "mqar --from $out/none.jsonl" "recall mqar"; do
  code=0
  # shellcheck disable=SC2086
  "$program" $bad --steps 1 --batch 1 >/dev/null 2>"$out/log" || code=$?
  [ "$code" = 2 ] || [ "$code" = 3 ] || fail "$bad: exit $code"
  [ "$(wc -l <"$out/log")" = 1 ] || fail "$bad: $(cat "$out/log")"
done
