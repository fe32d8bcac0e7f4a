#!/usr/bin/env bash
# vla-run as a user drives it: real tensors, oracle vectors, state in and out, streams, formats, exit codes, bad input.
set -u
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"
cd "$(dirname "$0")/../.."
run=$build/vla-run
data=$PWD/tests/data
# code, arguments: runs and compares the exit status; keeps both streams
try() {
  local want=$1 code=0
  shift
  timeout 120 "$run" "$@" >"$out/stdout" 2>"$out/stderr" </dev/null || code=$?
  [ "$code" = "$want" ] || fail "exit $code, expected $want: vla-run $*"
}
# A .npy file: name, descr, shape as "4, 5", and the elements on stdin.
npy() {
  local header="{'descr': '$2', 'fortran_order': False, 'shape': ($3), }"
  { printf '\x93NUMPY\x01\x00\x76\x00%-117s\n' "$header"; cat; } >"$1"
}
values() { tail -c +129 "$1" | od -An -v -w"$2" -t "f$2" | tr -d ' '; } # elements of a file this program wrote, one a line
# largest |a - b| over two lists of numbers is at most the limit
close() { paste "$1" "$2" | awk -v limit="$3" 'NF != 2 || !($1 - $2 <= limit && $2 - $1 <= limit) { bad++ } END { exit bad > 0 || NR == 0 }'; }

# Every operator and form on real tensors and on the oracle's inputs
try 0 all --input "$data/vla_lm" --form recurrent,chunk --check
[ "$(grep -cw ok "$out/stdout")" -ge 12 ] || fail "rows of vla_lm"
try 0 vla,softmax --input "$data/softmax_lm" --dtype f64 --check
for case in "$data"/oracle/*/; do
  try 0 all --input "$case" --form all --dtype f64 --check --dump "$out/dump" --state-out "$out/state"
  for op in softmax linear delta decay vla rls; do
    for part in o S A n alpha; do
      [ -e "$case/$op.$part.npy" ] || continue
      values "$case/$op.$part.npy" 8 >"$out/want"
      values "$out/dump/$op.naive.f64/$part.npy" 8 >"$out/got"
      [ -s "$out/want" ] || [ ! -s "$out/got" ] || fail "$case $op $part: sizes"
      [ ! -s "$out/want" ] || close "$out/want" "$out/got" 1e-9 || fail "$case $op $part: differs from the oracle"
    done
  done
  rm -rf "$out/dump" "$out/state"
done

# One pass equals two passes joined by a state, wherever the split
for name in q k v u; do
  tail -c +129 "$data/vla_lm/$name.npy" >"$out/raw"
  head -c $((300 * 128)) "$out/raw" | npy "$out/$name.npy" '<f2' '300, 64'
  head -c $((77 * 128)) "$out/raw" | npy "$out/$name.1.npy" '<f2' '77, 64'
  head -c $((300 * 128)) "$out/raw" | tail -c $((223 * 128)) | npy "$out/$name.2.npy" '<f2' '223, 64'
done
files() { echo --q "$out/q$1" --k "$out/k$1" --v "$out/v$1" --u "$out/u$1"; }
for op in vla linear delta rls decay; do
  for form in recurrent chunk; do
    for refresh in 0 20; do
      [ $op = vla ] || [ $refresh = 0 ] || continue
      common=(--form $form --dtype f64 --refresh-period $refresh)
      try 0 $op $(files .npy) "${common[@]}" --out "$out/whole.npy" --state-out "$out/s0"
      try 0 $op $(files .1.npy) "${common[@]}" --out "$out/first.npy" --state-out "$out/s1"
      try 0 $op $(files .2.npy) "${common[@]}" --out "$out/second.npy" --state-in "$out/s1" --state-out "$out/s2" --check
      values "$out/whole.npy" 8 >"$out/want"
      { values "$out/first.npy" 8; values "$out/second.npy" 8; } >"$out/got"
      close "$out/want" "$out/got" 1e-7 || fail "$op $form refresh $refresh: split differs"
      [ "$(values "$out/s2/t.npy" 8)" = 300 ] || fail "$op $form: t is not 300"
      values "$out/s0/S.npy" 8 >"$out/want"
      values "$out/s2/S.npy" 8 >"$out/got"
      close "$out/want" "$out/got" 1e-7 || fail "$op $form: S differs"
      rm -rf "$out"/s[012]
    done
  done
done
# A state names its operator; --resume tells states, asked instruction sets and unchecked rows apart
try 0 delta $(files .1.npy) --state-out "$out/sd"
refuse 3 "op.txt: the state of 'delta'; accepted: of 'decay'" "$run" decay $(files .2.npy) --state-in "$out/sd"
printf 'rls\x1b[31m' >"$out/sd/op.txt"
refuse 3 "op.txt: the state of 'rls?[31m'" "$run" delta $(files .2.npy) --state-in "$out/sd"
rm "$out/sd/op.txt"
try 0 decay $(files .2.npy) --state-in "$out/sd"
again() { # rows expected to run, arguments
  local rows=$1
  shift
  try 0 delta $(files .2.npy) -o "$out/again.jsonl" --resume "$@"
  tail -n 1 "$out/stderr" | grep -qx "run $rows, passed $rows, skipped 0, failed 0" || fail "--resume ran other than $rows: $*"
}
again 1
again 1 --state-in "$out/sd"
again 0 --state-in "$out/sd"
try 0 delta $(files .2.npy) --state-out "$out/sd"
again 1 --state-in "$out/sd"
again 1 --isa base
again 0 --isa base
again 1 --isa base --check
again 0 --isa base --check
again 0
rm -rf "$out/sd"
# fewer queries than keys: the last rows of softmax
try 0 softmax $(files .npy) --dtype f64 --out "$out/whole.npy"
tail -c $((23 * 128)) "$out/q.npy" | npy "$out/q.3.npy" '<f2' '23, 64'
try 0 softmax --q "$out/q.3.npy" --k "$out/k.npy" --v "$out/v.npy" --dtype f64 --out "$out/part.npy" --check
values "$out/whole.npy" 8 | tail -n $((23 * 64)) >"$out/want"
values "$out/part.npy" 8 >"$out/got"
close "$out/want" "$out/got" 1e-12 || fail "softmax with fewer queries"
refuse 3 "only softmax takes fewer queries than keys" "$run" vla --q "$out/q.3.npy" --k "$out/k.npy" --v "$out/v.npy"

# T = 0 and synthetic inputs; the same seed gives the same bytes
: | npy "$out/z.npy" '<f4' '2, 0, 8'
for op in softmax linear delta decay vla rls; do
  try 0 $op --q "$out/z.npy" --k "$out/z.npy" --v "$out/z.npy" --check --out "$out/zo.npy"
  [ "$(stat -c %s "$out/zo.npy")" = 128 ] || fail "$op at T = 0 writes elements"
done
try 0 vla --T 50 --H 2 --d 12 --dv 7 --seed 5 --out "$out/a.npy" --dump "$out/d" -q
try 0 vla --T 50 --H 2 --d 12 --dv 7 --seed 5 --out "$out/b.npy" --threads 1
cmp -s "$out/a.npy" "$out/b.npy" && cmp -s "$out/a.npy" "$out/d/o.npy" || fail "same seed, other bytes"
ls "$out/d" | tr '\n' ' ' | grep -qx 'A.npy S.npy alpha.npy n.npy o.npy ' || fail "what --dump wrote: $(ls "$out/d")"
[ "$(stat -c %s "$out/d/alpha.npy")" = $((128 + 2 * 50 * 12 * 4)) ] || fail "size of alpha"

# A NaN reaches only rows from its own on, is named, and gets no time
{ head -c $((30 * 128 + 10)) "$out/raw"; printf '\x00\x7e'; head -c $((70 * 128 - 12)) "$out/raw"; } | npy "$out/nan.npy" '<f2' '100, 64'
for name in q v; do head -c $((100 * 128 + 128)) "$out/$name.npy" | tail -c $((100 * 128)) | npy "$out/$name.4.npy" '<f2' '100, 64'; done
for op in softmax linear delta decay vla rls; do
  for form in recurrent chunk; do
    try 0 $op --q "$out/q.4.npy" --k "$out/nan.npy" --v "$out/v.4.npy" --form $form --out "$out/n.npy" --format json
    grep -q 'warning: k is not finite, first at batch 0, head 0, t 30' "$out/stderr" || fail "$op $form: the NaN is not named"
    [ "$(values "$out/n.npy" 4 | head -n $((30 * 64)) | grep -ci nan)" = 0 ] || fail "$op $form: the NaN leaks backwards"
    [ "$(values "$out/n.npy" 4 | tail -n 64 | grep -ci nan)" -gt 0 ] || fail "$op $form: the NaN is hidden"
    [ "$(jq -r '.rows[0].time_s' "$out/stdout")" = null ] || fail "$op $form: a time for NaN data"
    try 1 $op --q "$out/q.4.npy" --k "$out/nan.npy" --v "$out/v.4.npy" --form $form --check --format json
    jq -e '.rows[0].reason | test("k is not finite.* t 30")' "$out/stdout" >/dev/null || fail "$op $form: why the check failed"
  done
done

# Streams, formats and records
try 0 vla,softmax --T 16 --d 8 --H 2 --check -o "$out/r.json" -o "$out/r.csv" -o "$out/r.jsonl" -o "$out/r.md"
grep -q verdict "$out/stdout" || fail "no table on stdout beside -o"
tail -n 1 "$out/stderr" | grep -qx 'run 2, passed 2, skipped 0, failed 0' || fail "no closing line"
jq -e '.rows | length == 2 and all(.status == "ok" and .verdict == "ok" and .kind == "run" and .residual <= .limit)' "$out/r.json" >/dev/null || fail "r.json"
jq -e '.meta | has("version") and has("commit") and has("compiler") and has("cflags") and has("cpu") and has("gpu") and has("driver") and has("cuda") and has("cudnn") and has("blas") and has("threads") and has("date")' "$out/r.json" >/dev/null || fail "metadata"
[ "$(jq -c 'select(.kind == "run") | .op' "$out/r.jsonl" | tr '\n' ' ')" = '"vla" "softmax" ' ] || fail "r.jsonl"
head -n 1 "$out/r.csv" | grep -q '^kind,case,key,op,form,backend,dtype' || fail "r.csv"
for format in json jsonl csv md; do
  try 0 vla --T 16 --d 8 --format $format -q
  [ -s "$out/stdout" ] && [ ! -s "$out/stderr" ] || fail "--format $format"
done
try 0 vla,softmax,rls --T 16 --d 8 --H 2 --check -o "$out/r.json" -o "$out/r.jsonl" --resume
jq -e '.rows | length == 3' "$out/r.json" >/dev/null || fail "--resume measured again or lost rows"
grep -q 'run 1, passed 1' "$out/stderr" || fail "--resume ran more than what is missing"
try 0 vla --T 16 --d 8 --dry-run -o "$out/dry.json" --format json
[ ! -e "$out/dry.json" ] || fail "--dry-run wrote a file"
[ "$(cat "$out/stdout")" = vla/recurrent/cpu/f32/B1_H16_T16_K8_V8 ] || fail "--dry-run prints other things than cases"
# a file that is new beside one that holds rows gets them; an empty one holds none; others must be records
: >"$out/empty.json"
try 0 vla,softmax,rls --T 16 --d 8 --H 2 --check -o "$out/r.jsonl" -o "$out/new.json" -o "$out/new.csv" -o "$out/empty.json" --resume
for file in new empty; do
  jq -e '.rows | length == 3' "$out/$file.json" >/dev/null || fail "--resume: rows of r.jsonl are missing in $file.json"
done
[ "$(grep -c '^run,' "$out/new.csv")" = 3 ] || fail "--resume: rows of r.jsonl are missing in new.csv"
tail -n 1 "$out/stderr" | grep -qx 'run 0, passed 0, skipped 0, failed 0' || fail "--resume with a new file measured again"
# A check that failed fails again: --resume does not forget it.
for again in "" --resume; do
  try 1 vla --no-normalise --T 60 --d 16 --H 1 --check -o "$out/failed.jsonl" $again
  tail -n 1 "$out/stderr" | grep -qx 'run 1, passed 0, skipped 0, failed 1' || fail "a failed check and --resume"
done
echo rubbish >"$out/rubbish.csv"
refuse 3 "rubbish.csv:1: the header" "$run" vla --T 16 -o "$out/rubbish.csv" --resume
[ "$(cat "$out/rubbish.csv")" = rubbish ] || fail "--resume changed a file it could not read"
try 0 --help
grep -q -- '--state-in DIR' "$out/stdout" || fail "--help"
try 0 --version
grep -qE '^vla-run [0-9]+\.[0-9]+\.[0-9]+$' "$out/stdout" || fail "--version"

# Failing checks, skipped forms
try 0 all --T 16 --d 8 --form all --dtype f32
grep -q skip "$out/stdout" && fail "--form all gives rows of forms that do not exist"
try 0 vla --T 16 --d 8 --form all,stepwise --backend cpu
grep -q 'vla has no stepwise form on cpu' "$out/stdout" || fail "a form asked for by name must give a row"
try 1 vla --T 16 --d 8 --form all,stepwise --backend cpu --strict
refuse 2 "bf16" "$run" vla --T 16 --form all --dtype bf16 --backend cpu
refuse 2 "vla has no bf16 kernel" "$run" vla --T 16 --dtype bf16 --backend cpu

# Bad input: exit 2 for usage, 3 for files
refuse 2 "OP: not given" "$run"
refuse 2 "OP: unknown value 'foo'" "$run" foo --T 4
refuse 2 "OP: empty item" "$run" vla,, --T 4
refuse 2 "'rls'" "$run" vla rls --T 4
refuse 2 "--input: no input" "$run" vla
refuse 2 "--input" "$run" vla --input "$data/vla_lm" --q "$out/q.npy"
refuse 2 "--k: not given" "$run" vla --q "$out/q.npy"
refuse 2 "--T" "$run" vla --input "$data/vla_lm" --T 4
refuse 2 "--d" "$run" vla --input "$data/vla_lm" --d 4
refuse 2 "--T" "$run" vla --T 4,5
refuse 2 "--T" "$run" vla --T 4x
refuse 2 "--T" "$run" vla --T 1-4
refuse 2 "--lambda0" "$run" vla --T 4 --lambda0 -1
for lambda0 in 1e300 1e-40; do refuse 2 "1/lambda0 is beyond float32" "$run" vla --T 4 --lambda0 $lambda0; done
try 0 vla --T 4 --d 4 --lambda0 1e300 --dtype f64 --check
try 0 linear --T 4 --d 4 --lambda0 1e300 --check
refuse 2 "--inp" "$run" vla --inp "$data/vla_lm"
refuse 2 "--frobnicate" "$run" vla --frobnicate
refuse 2 "scan" "$run" rls --T 4 --form scan
refuse 2 "needs" "$run" vla --T 1000000M --d 64
refuse 2 "--out" "$run" vla,rls --T 4 --out "$out/x.npy"
refuse 2 "--state-in" "$run" vla,rls --T 4 --state-in "$out"
refuse 2 "--state-in" "$run" softmax --T 4 --state-in "$out"
refuse 2 "--plot" "$run" vla --T 4 --plot "$out/p"
refuse 2 "-o: 'x.txt'" "$run" vla --T 4 -o x.txt
refuse 2 "--resume" "$run" vla --T 4 --resume
for option in '--time-limit 3' '--min-samples 3' '--noise 0.5'; do refuse 2 "${option% *}: not for vla-run" "$run" vla --T 4 $option; done
refuse 2 "--seed" "$run" vla --T 4 --seed 18446744073709551616
refuse 3 "/nonexistent/q.npy" "$run" vla --input /nonexistent
refuse 3 "q.npy" "$run" vla --input "$out/q.npy"
refuse 3 "/nonexistent/r.json" "$run" vla --T 4 -o /nonexistent/r.json
refuse 3 "S.npy" "$run" vla --T 4 --state-in "$out"
head -c 500 "$out/q.npy" >"$out/cut.npy"
refuse 3 "cut.npy: field 'shape'" "$run" vla --q "$out/cut.npy" --k "$out/k.npy" --v "$out/v.npy"
refuse 3 "q [1,1,300,64] and k [1,1,77,64]" "$run" vla --q "$out/q.npy" --k "$out/k.1.npy" --v "$out/v.1.npy"
refuse 3 "k [1,1,300,64] and v [1,1,77,64]" "$run" vla --q "$out/q.npy" --k "$out/k.npy" --v "$out/v.1.npy"
refuse 4 "cuda" "$run" vla --T 4 --backend cuda
# one failing output does not lose the others, and nothing half-written stays
try 3 vla --T 4 --d 4 --out /dev/full -o "$out/kept.json"
grep -q '/dev/full: cannot write: No space left on device' "$out/stderr" || fail "a full disk is not named"
try 3 vla --T 4 --d 4 --out "$out/no/such/o.npy"
grep -q "no/such/o.npy: cannot write: No such file" "$out/stderr" || fail "a missing directory is not named"
ln -s /dev/full "$out/full.json"
try 3 vla --T 4 --d 4 -o "$out/full.json" -o "$out/kept.jsonl"
jq -e 'select(.kind == "run") | .status == "ok"' "$out/kept.jsonl" >/dev/null || fail "rows are lost with another file's disk full"
try 3 vla --T 4 --d 4 --dump /proc/nothing
for format in '' '--format json' '--format jsonl' '--format csv'; do
  "$run" vla --T 4 --d 4 -q $format >/dev/full 2>"$out/stderr"
  [ $? = 3 ] && grep -q 'stdout: cannot write' "$out/stderr" || fail "a full stdout ($format)"
  { "$run" vla --T 4 --d 4 -q $format 2>"$out/stderr"; echo $? >"$out/code"; } | true
done
for program in "$build"/vla-{run,bench,jacobian,capacity}; do
  "$program" --help >/dev/full 2>"$out/stderr"
  [ $? = 3 ] && grep -q 'stdout: cannot write' "$out/stderr" || fail "$program --help to a full disk"
done
# a file that may not grow: why is told, however much was written before, and nothing of it stays
(ulimit -f 8; exec "$run" vla --T 64 --d 64 --out "$out/big.npy" -q) >/dev/null 2>"$out/stderr"
[ $? = 3 ] && grep -q 'big.npy: cannot write: File too large' "$out/stderr" || fail "a file size limit"
[ -z "$(ls "$out" | grep big)" ] || fail "part of a file is left"
# closed standard streams: the table does not land in the file that would have taken their number
"$run" vla --T 4 --d 4 -o "$out/closed.csv" <&- >&- 2>&-
[ $? = 3 ] && [ "$(cut -d, -f1 "$out/closed.csv" | tr '\n' ' ')" = 'kind run ' ] || fail "closed standard streams"
find "$out" -name '*.??????' | grep -q 'npy\.' && fail "temporary files are left"
finish
