#!/usr/bin/env bash
# vla-bench as a user drives it: tables, records, one-liners, resuming, interruption, closed pipes.
set -eu
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"
bench=$build/vla-bench
small="--H 2 --d 8 --T 16-64x2 --min-samples 3 --noise 0.5 --time-limit 8"
# a sweep with its crossover: readable table, CSV of one kind a file, JSON and JSON lines at once
"$bench" $small -o "$out/a.csv" -o "$out/a.json" -o "$out/a.jsonl" --plot "$out/figures" >"$out/table" 2>"$out/log"
tail -n 1 "$out/log" | grep -Eq '^run [0-9]+, passed [0-9]+, skipped 0, failed 0$' || fail "closing line: $(tail -n 1 "$out/log")"
grep -q '^vla .*softmax' "$out/table" || fail "no crossover sentence"
grep -q '^op ' "$out/table" || fail "no table"
head -n 1 "$out/a.csv" | grep -q '^kind,case,key,op,form,' || fail "CSV header"
[ "$(cut -d, -f1 "$out/a.csv" | sort -u)" = "$(printf 'kind\nsample')" ] || fail "CSV holds one kind"
grep -q '^crossover,' "$out/a.crossover.csv" || fail "no crossover CSV"
jq -e '.meta.version and (.rows | length >= 12) and (.crossover | length == 1)' "$out/a.json" >/dev/null || fail "JSON"
jq -e '[.rows[] | select(.kind == "sample") | .samples_s | length >= 1] | all' "$out/a.json" >/dev/null || fail "JSON keeps raw samples"
jq -es 'map(select(.kind == "sample")) | all(.status == "ok" and .checked != null and .residual < 2e-5 and .median_s > 0
  and .q1_s <= .median_s and .median_s <= .q3_s and .min_s <= .q1_s and .stop_reason != null and .share_of_peak > 0
  and .commit != "" and .cache == "hot" and .launch == "call" and (.n_samples >= 5 or .noise == null))' "$out/a.jsonl" >/dev/null || fail "sample fields"
for figure in latency token_time memory; do
  [ -s "$out/figures/$figure.gp" ] && [ -s "$out/figures/$figure.dat" ] || fail "figure $figure"
done
# resuming: nothing is measured again and the records stay as they are
cp "$out/a.jsonl" "$out/before.jsonl"
"$bench" $small -o "$out/a.jsonl" --resume -q >/dev/null 2>"$out/log"
grep -q '^run 0, passed 0, skipped 0, failed 0$' "$out/log" || fail "resume measured again: $(cat "$out/log")"
cmp "$out/before.jsonl" "$out/a.jsonl" || fail "resume changed the file"
cp "$out/a.crossover.csv" "$out/before.crossover.csv"
"$bench" $small -o "$out/a.csv" --resume -q >/dev/null 2>&1 && cmp "$out/before.crossover.csv" "$out/a.crossover.csv" || fail "resume says a crossover twice"
"$bench" $small -o "$out/a.csv" --resume --dry-run 2>/dev/null | grep -q . && fail "dry run lists measured cases"
# only what is missing is measured
"$bench" $small --op vla,rls --crossover none -o "$out/a.jsonl" --resume -q 2>"$out/log" >/dev/null
grep -q '^run 3, passed 3' "$out/log" || fail "resume with a new operator: $(cat "$out/log")"
# the records alone give figures, crossovers and exponents
"$bench" plot --from "$out/a.json" --plot "$out/again" -q && [ -s "$out/again/latency.gp" ] || fail "plot"
# the chunk a form took, given or chosen, is in its row
"$bench" --op vla --form chunk,recurrent --T 32 --d 8 --H 1 --chunk 4 --min-samples 3 --noise 0.5 --format jsonl -q |
  jq -es 'map(select(.kind == "sample")) | map([.form, .chosen_chunk]) | sort == [["chunk", 4], ["recurrent", null]]' >/dev/null || fail "chosen chunk"
"$bench" crossover --from "$out/a.csv" --format jsonl | jq -es 'map(select(.kind == "crossover")) | length == 1' >/dev/null || fail "crossover"
"$bench" fit --from "$out/a.jsonl" --format jsonl | jq -es 'map(select(.kind == "fit" and .op == "vla" and .last == null)) | length == 1' >/dev/null || fail "fit"
# the authors' own table extrapolates to their number from four points, and not from two; nothing of it is measured here
"$bench" verdict --from plots/reference/authors_t4.csv --format jsonl >"$out/verdicts" || fail "verdict"
jq -es 'map(select(.kind == "verdict" and .claim == "C11")) | (map(select(.part | test("last 4"))) | .[0] | .verdict == "holds" and (.value - 43401 | fabs) < 1)
  and (map(select(.part | test("last 2"))) | .[0] | .verdict == "refuted" and (.value - 33675 | fabs) < 1) and all(.replay == null)' "$out/verdicts" >/dev/null || fail "verdicts of the authors' table"
"$bench" verdict --from "$out/a.jsonl" --format jsonl | jq -es 'map(select(.kind == "verdict")) | length >= 2 and all((.replay | startswith("vla-bench --op ")) and (.source | startswith("cpu f32, B 1, H 2, dk 8")))' >/dev/null || fail "verdicts"
# comparing a run with itself: nothing is slower; merging it with itself: nothing twice
"$bench" compare "$out/a.json" "$out/a.json" --fail-on slower >/dev/null 2>"$out/log" || fail "compare with itself"
grep -q 'slower 0, faster 0' "$out/log" || fail "compare: $(cat "$out/log")"
jq -c 'select(.kind == "sample") | .median_s *= 3 | .median_lo_s *= 3 | .median_hi_s *= 3' "$out/a.jsonl" >"$out/slow.jsonl"
code=0
"$bench" compare "$out/a.jsonl" "$out/slow.jsonl" --fail-on slower >/dev/null 2>&1 || code=$?
[ "$code" = 5 ] || fail "three times slower: exit $code"
"$bench" merge "$out/a.jsonl" "$out/a.csv" -o "$out/merged.jsonl" >/dev/null
[ "$(jq -s 'map(select(.kind == "sample")) | length' "$out/merged.jsonl")" = "$(jq -s 'map(select(.kind == "sample")) | length' "$out/a.jsonl")" ] || fail "merge"
"$bench" $small -q --expect "$out/before.jsonl" >/dev/null 2>&1 || [ $? = 1 ] || fail "expect"
# the one-liners of the manual
"$bench" --crossover vla,softmax --dk 4,8 --dv 8 --H 2 --T 16-64x2 --min-samples 3 --time-limit 8 --format jsonl 2>/dev/null |
  jq -c 'select(.kind=="crossover")|[.dk,.lo,.hi]' >"$out/pairs"
[ "$(wc -l <"$out/pairs")" = 2 ] && grep -q '^\[4,' "$out/pairs" && grep -q '^\[8,' "$out/pairs" || fail "one crossover for each dk: $(cat "$out/pairs")"
"$bench" list --op vla --H 2 --d 8 --T 16 | sed -n 3p | xargs "$bench" --case >"$out/table" 2>"$out/log" || fail "list | xargs --case"
grep -q '^run 1, passed 1' "$out/log" || fail "list | xargs --case: $(cat "$out/log")"
[ "$("$bench" --T 8,8 --threads 2,2 --form best,recurrent --op vla --dry-run 2>/dev/null | wc -l)" = 1 ] || fail "a case given twice runs twice"
[ "$("$bench" --op delta --form all,stepwise --T 8 --backend cpu --dry-run 2>/dev/null | grep -c stepwise)" = 1 ] || fail "a form asked for by name is dropped beside all"
"$bench" list | awk 'seen[$0]++' | grep -q . && fail "list repeats itself"
# forward and backward: every operator, its gradients checked, the work model three times the forward one, rows of both in one file
"$bench" --op all --H 2 --d 8 --T 67 --min-samples 3 --time-limit 30 --crossover none -o "$out/pass.jsonl" -q >/dev/null 2>&1
"$bench" --pass fwdbwd --op all --H 2 --d 8 --T 67 --min-samples 3 --time-limit 30 --crossover none -o "$out/pass.jsonl" --resume -q >/dev/null 2>&1
jq -es 'map(select(.kind == "sample")) | length == 12 and all(.status == "ok" and .residual < 2e-5)
  and (group_by(.op) | all((map(select(.pass == "fwdbwd")) | .[0]) as $b | (map(select(.pass == "fwd")) | .[0]) as $f
    | $b.flops == 3 * $f.flops and $b.bytes == 2 * $f.bytes and $b.min_s > $f.min_s and $b.peak_bytes > $f.peak_bytes))' "$out/pass.jsonl" >/dev/null || fail "fwdbwd"
"$bench" --pass fwdbwd --op delta --dtype f64,bf16 --backend cpu --H 1 --d 8 --T 5 --min-samples 3 --crossover none --format jsonl -q 2>/dev/null |
  jq -es 'map(select(.kind == "sample")) | any(.dtype == "f64" and .status == "ok" and .residual < 1e-12) and any(.dtype == "bf16" and .status == "skip")' >/dev/null || fail "fwdbwd dtypes"
# a scan beside its one-thread forms and what the processors give: a table, a record, said once when resumed
gain="--op vla,delta --form recurrent,scan --H 1 --d 8 --T 512 --threads 1,2 --min-samples 3 --noise 0.5 --crossover none"
"$bench" $gain -o "$out/gain.csv" -o "$out/gain.jsonl" >"$out/table" 2>/dev/null && grep -q 'one thread / scan' "$out/table" || fail "no table of gains"
jq -es 'map(select(.kind == "gain")) | length == 2 and all(.threads == 2 and .turns >= 3 and .gain > 0 and .ceiling > 0
  and .of_ceiling > 0 and (.alone == "recurrent" or .alone == "scan"))' "$out/gain.jsonl" >/dev/null || fail "gains"
cp "$out/gain.gain.csv" "$out/before.gain.csv"
"$bench" $gain -o "$out/gain.csv" --resume -q >/dev/null 2>&1 && cmp "$out/before.gain.csv" "$out/gain.gain.csv" || fail "resume says a gain twice"
# decode has its own sweep and crossover
"$bench" --mode decode --depth 4-64x4 --H 2 --d 8 --min-samples 3 --time-limit 8 --format jsonl -q 2>/dev/null >"$out/decode"
jq -es 'map(select(.kind == "sample")) | all(.T == 1 and .depth > 0) and (map(select(.op == "vla") | .state_bytes) | unique | length == 1)' "$out/decode" >/dev/null || fail "decode"
jq -es 'map(select(.kind == "crossover" and .mode == "decode")) | length == 1' "$out/decode" >/dev/null || fail "decode crossover"
# a baseline; the machine's peaks; T = 0; a locale with commas
"$bench" --op vla --baseline softmax --H 2 --d 8 --T 32 --min-samples 3 --crossover none --peak --format jsonl -q 2>/dev/null |
  jq -es '(map(select(.kind == "ratio")) | length == 1) and (map(select(.kind == "peak")) | .[0].flops_per_s > 1e8)' >/dev/null || fail "baseline and peak"
"$bench" --op vla,delta --H 2 --d 8 --T 0 --format jsonl -q 2>/dev/null | jq -es 'map(select(.kind == "sample")) | all(.status == "ok" and .median_s == null)' >/dev/null || fail "T = 0"
LC_ALL=de_DE.UTF-8 "$bench" --op delta --H 1 --d 4 --T 8 --min-samples 3 --format csv -q 2>/dev/null | awk -F, 'NR == 1 { n = NF } NF != n { exit 1 }' || true
# what cannot run is a row with its reason, and an error only with --strict
"$bench" --op vla --dtype bf16 --form chunk --H 1 --d 8 --T 8,16 --format jsonl -q 2>/dev/null >"$out/skip" || fail "skip exits $?"
jq -es 'map(select(.kind == "sample")) | length == 2 and all((.status == "skip") and (.reason | length > 5))' "$out/skip" >/dev/null || fail "skip rows"
"$bench" --op vla --dtype bf16 --form chunk --H 1 --d 8 --T 8 --strict -q >/dev/null 2>&1 && fail "--strict passed a skip"
"$bench" --op softmax --T 4M --time-limit 2 --format jsonl -q 2>/dev/null | jq -es 'map(select(.kind == "sample")) | .[0].status | . == "timeout" or . == "oom"' >/dev/null || fail "too long"
# interrupted: rows are kept, the JSON is whole, and --resume goes on
"$bench" --op vla,softmax --H 2 --d 8 --T 16-8kx2 --min-samples 200 --time-limit 60 -o "$out/stop.json" >/dev/null 2>"$out/log" &
process=$!
for _ in $(seq 100); do
  [ -s "$out/stop.json" ] && break
  sleep 0.1
done
kill -INT "$process"
code=0
wait "$process" || code=$?
[ "$code" = 130 ] || fail "interrupted: exit $code"
jq -e '.rows | length >= 1' "$out/stop.json" >/dev/null || fail "rows lost on interruption"
# a hang-up ends a run like an interrupt, unless nohup asked otherwise, as it may have for this script
if ((!(16#$(sed -n 's/^SigIgn:[[:space:]]*//p' /proc/$$/status) & 1))); then
  "$bench" --op vla,softmax --H 2 --d 8 --T 16-8kx2 --min-samples 200 --time-limit 60 --format json >"$out/stop.json" 2>"$out/log" &
  process=$!
  sleep 1
  kill -HUP "$process"
  code=0
  wait "$process" || code=$?
  [ "$code" = 130 ] && jq -e .rows "$out/stop.json" >/dev/null || fail "hung up: exit $code"
fi
# an empty file is nothing to go on from, and no error after the run
: >"$out/empty.json"
"$bench" --op delta --H 1 --d 4 --T 8 --min-samples 3 -o "$out/empty.json" --resume -q >/dev/null 2>"$out/log" || fail "resume from an empty file"
jq -e '.rows | length == 1' "$out/empty.json" >/dev/null || fail "resume from an empty file lost its row"
# a closed pipe and a full disk are errors, and other outputs survive them
set +e
"$bench" --op delta --H 1 --d 4 --T 8 --min-samples 3 --format jsonl -o "$out/kept.jsonl" -q 2>/dev/null | true
[ "${PIPESTATUS[0]}" = 3 ] || fail "closed pipe: exit ${PIPESTATUS[0]}"
set -e
[ "$(jq -s 'map(select(.kind == "sample")) | length' "$out/kept.jsonl")" = 1 ] || fail "a closed pipe lost the file"
if [ -w /dev/full ]; then
  code=0
  "$bench" --op delta --H 1 --d 4 --T 8 --min-samples 3 --format csv -q >/dev/full 2>/dev/null || code=$?
  [ "$code" = 3 ] || fail "full disk: exit $code"
fi
finish
