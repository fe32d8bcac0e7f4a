#!/usr/bin/env bash
# vla-jacobian measures what it says: closed forms, records, sweeps, expected lists, files read back, interruption.
set -u
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"
jacobian=$build/vla-jacobian
data=$(realpath tests/data)
cd "$out" || exit 1
run() { # arguments..: must succeed
  "$jacobian" "$@" >stdout 2>stderr </dev/null || fail "exit $? of vla-jacobian $*: $(tail -n 3 stderr)"
}
all() { # jq condition on every row of a kind, which must exist
  jq -es --arg kind "$2" "[.[] | select(.kind == \$kind)] | length > 0 and all(.[]; $3)" "$1" >/dev/null ||
    fail "$1: $2 rows: not all $3"
}

run --op all --source all --T 40 --d 8 --H 2 --every 1 -q -o a.jsonl --goal product
all a.jsonl summary '.closed_gap <= 1e-12'
all a.jsonl derivative '.status == "ok"'
jq -es '[.[] | select(.kind == "jacobian" and .source == "isotropic" and .op == "vla")] | length == 80 and
  all(.[]; (.sigma - 1 | fabs) <= 1e-12)' a.jsonl >/dev/null || fail "isotropic |J| is not 1 at 2 x 40 rows"
jq -es '[.[] | select(.kind == "summary" and .op == "vla" and (.source | startswith("adversary") | not))] |
  length == 4 and all(.[]; (.radius_max - 1 | fabs) <= 1e-9 and (.metric_max - 1 | fabs) <= 1e-9)' a.jsonl >/dev/null ||
  fail "radius or M-norm of vla is not 1"

# Sweeps: every combination is a case of its own.
run --T 5,9 --d 3,4 --lambda0s 0.1,2 --refresh-periods 0,2 --seeds 1,2,3 --H 1 -q --format jsonl
[ "$(jq -rs '[.[] | select(.kind == "summary") | .case] | unique | length' stdout)" = 16 ] || fail "a sweep of 2 x 2 x 2 x 2 gives not 16 cases"
all stdout summary '.n == 3'

# Lengths 0 and 1, width 1.
run --T 0,1 --d 1,2 --H 1 -q --format jsonl
jq -es '[.[] | select(.kind == "summary" and .T == 0)] | length == 2 and all(.[]; .sigma_max == null)' stdout >/dev/null ||
  fail "T = 0 has numbers"
jq -es '[.[] | select(.kind == "summary" and .T == 1 and .dk == 1)] | .[0].sigma_max < 1e-15' stdout >/dev/null ||
  fail "|1 - c| at d = 1 is not 0"

# Real tensors; the same numbers with one thread and with two.
run --input "$data/vla_lm" --T 200 --threads 1 -q --format jsonl
jq -c 'select(.kind == "summary")' stdout >one
run --input "$data/vla_lm" --T 200 --threads 2 -q --format jsonl
jq -c 'select(.kind == "summary")' stdout >two
cmp -s one two || fail "results depend on the threads"

# Any form can be the subject of the finite differences.
run --op vla,delta --form naive,recurrent,chunk --T 20 --d 8 --H 1 -q --format jsonl
jq -es '[.[] | select(.kind == "derivative" and .status == "ok") | .form] | unique == ["chunk", "naive", "recurrent"]' stdout >/dev/null ||
  fail "not every form was differentiated"
run --op vla --form chunk --dtype f32 --T 20 --d 8 --H 1 -q --format jsonl
all stdout derivative '.status == "ok" and .dtype == "f32" and .gap > 0'

# Records read back give the same table and are judged alike; --expect sets the exit code.
run --verify C9,C17 --H 2 -q -o v.jsonl -o v.csv
run --from v.jsonl --expect v.verdict.csv -q
sed 's/"verdict":"holds"/"verdict":"refuted"/' v.jsonl >wrong.jsonl
"$jacobian" --from v.jsonl --expect wrong.jsonl -q >/dev/null 2>stderr && fail "--expect did not see a difference"
grep -q 'expected refuted, measured holds' stderr || fail "--expect does not name the difference"
"$jacobian" --from v.jsonl --fail-on refuted -q >/dev/null 2>&1
[ $? = 5 ] || fail "--fail-on refuted is not exit 5"

# --resume leaves out what a file holds.
run --T 10 --d 4 --H 1 -q -o r.jsonl
run --T 10,20 --d 4 --H 1 -q --resume -o r.jsonl
[ "$(jq -rs '[.[] | select(.kind == "summary")] | length' r.jsonl)" = 2 ] || fail "--resume measured again or not at all"

# An interrupted run keeps its rows, claims nothing about what it did not finish, and says so.
"$jacobian" --T 10000000 --d 8 --H 1 --every 1000 -q -o i.jsonl >/dev/null 2>&1 &
pid=$!
for _ in $(seq 100); do
  [ -s i.jsonl ] && grep -q '"kind":"jacobian"' i.jsonl && break
  sleep 0.1
done
kill -INT $pid
wait $pid
[ $? = 130 ] || fail "interruption is not exit 130"
jq -es '([.[] | select(.kind == "jacobian")] | length > 0) and ([.[] | select(.kind == "summary")] | length == 0)' i.jsonl >/dev/null ||
  fail "an interrupted run lost its rows or summed up what it did not measure"

# The readable table comes with the closing line on stderr.
run --T 10 --d 4 --H 1
grep -q 'max |J|' stdout || fail "no table"
grep -q '^run [0-9]*, passed [0-9]*, skipped 0, failed 0$' stderr || fail "no closing line"

finish
