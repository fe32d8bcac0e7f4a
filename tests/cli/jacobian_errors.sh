#!/usr/bin/env bash
# Bad input to vla-jacobian: one line that names it and the documented exit code.
set -u
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"
jacobian=$build/vla-jacobian
expect() { refuse "$1" "$2" "$jacobian" "${@:3}"; } # exit code, what the message names, arguments..
npy() { # file, shape text, doubles in hexadecimal (little-endian) on stdin
  local header="{'descr': '<f8', 'fortran_order': False, 'shape': ($2), }"
  { printf '\x93NUMPY\x01\x00\x76\x00%-117s\n' "$header"; xxd -r -p; } >"$1"
}
one=000000000000f03f nan=000000000000f87f inf=000000000000f07f
tensors() { # directory, name of the bad tensor, bad value
  mkdir -p "$1"
  for name in q k v u; do
    local bad=$one
    [ "$name" = "$2" ] && bad=$3
    echo "$one$one$one$bad$one$one" | npy "$1/$name.npy" "3, 2"
  done
}
tensors "$out/nan" k "$nan"
tensors "$out/inf" v "$inf"
tensors "$out/good" none "$one"
expect 1 "k holds NaN at head 0, token 1" --input "$out/nan" -q
expect 1 "v holds an infinity at head 0, token 1" --input "$out/inf" -q
expect 1 "nan: k holds NaN at head 0, token 1, element 1" --input "$out/nan" --verify C3,C4 -q
# u along an axis: A has an exact 0 on its diagonal after one step, whatever LAPACK's kernels round
zero=0000000000000000
mkdir -p "$out/axis"
for name in q k v u; do echo "$one$zero$one$zero" | npy "$out/axis/$name.npy" "2, 2"; done
exact="head 0, step 1: Cholesky of order 2: dpotrf info 1 "
expect 1 "C8: $exact" --verify C8 --input "$out/axis" --lambda0 1e-200 -q
expect 1 "vla/jacobian/input/B1_H1_T2_K2_V2_elu1_l1e-200: $exact" --input "$out/axis" --lambda0 1e-200 -q
# of random u the step depends on that rounding: 1 to 4 on the processors tried
for names in "C8: head 0, step " ": Cholesky of order 4: dpotrf info "; do
  expect 1 "$names" --verify C8 --source gauss --lambda0 1e-200 --T 8 --d 4 --H 1 -q
done
for names in "vla/jacobian/gauss/B1_H1_T8_K4_V4_identity_l1e-200: head 0, step " ": Cholesky of order 4: dpotrf info "; do
  expect 1 "$names" --source gauss --lambda0 1e-200 --T 8 --d 4 --H 1 -q
done
expect 2 "has 3 tokens" --input "$out/good" --T 4 -q
expect 3 "missing" --input "$out/missing"
expect 2 "softmax keeps no recurrent state" --op softmax -q
expect 2 "unknown claim 'C99'" --verify C99
expect 2 "--source" --source foo
expect 2 "--goal" --goal foo
expect 2 "--bound" --bound 0
expect 2 "--bound" --bound nan
expect 2 "--every" --every -1
expect 2 "--lambda0s" --lambda0s 0.1,x
expect 2 "--lambda0s" --lambda0s 0.1,-1
expect 2 "use --d" --verify C8 --dk 4
expect 2 "'what'" what
expect 2 "--want" --T 4 --d 2 --want sigma_max -q
expect 3 "nowhere" --from "$out/nowhere.jsonl"
expect 3 "nowhere" --T 4 --d 2 -q --expect "$out/nowhere.jsonl"
expect 3 "/proc/" --source adversary --goal jacobian --T 4 --d 2 --witness /proc/none -q
# what would be found wrong, or be ignored, only after the measurement
small="--T 5 --H 1 --d 4"
expect 2 "--want: 'foo'" $small --want foo
expect 2 "--want: 'x='" $small --want x=
expect 2 "--fail-on slower" $small --fail-on slower
expect 2 "--resume" $small --resume
expect 2 "--threads" $small --threads 1,2
for option in '--time-limit 3' '--min-samples 3' '--noise 0.02' '--B 2' '--chunk 4' '--segments 2' '--H 1,2'; do
  expect 2 "${option% *}: " --T 5 --d 4 $option
done
expect 2 "--part: 'foo': accepted: norm " --verify C8 --part foo
expect 2 "--part: 'norm': accepted: exponent direction" --verify C2,C17 --part norm
expect 2 "--part: 'norm closed-form'" --verify C8 --part "norm closed-form"
expect 2 "--part: no claims" $small --part norm
expect 2 "--T: several" --verify C8 --T 5,6
expect 2 "--T: 0 tokens" --verify C8 --T 0
for option in '--lambda0s 1,2' '--refresh-periods 0,2' '--goal state' '--every 5'; do
  expect 2 "${option% *}: not for claims" --verify C8 $option
done
expect 2 "--goal: no adversary" $small --goal state
expect 2 "--lambda0: given beside --lambda0s" $small --lambda0 1 --lambda0s 1,2
expect 2 "--dtype: several" $small --dtype f32,f64
expect 2 "--refresh-period" $small --refresh-period 3 --refresh-periods 2,4
expect 2 "no case matches" $small --filter nothing
expect 3 "nowhere" $small --expect "$out/nowhere.jsonl"
expect 3 "not a directory" $small --plot "$jacobian"
expect 4 "--backend cuda" $small --backend cuda
printf '{"kind":"sample","op":"vla"}\n' >"$out/other.jsonl"
expect 3 "other.jsonl: holds no records" --from "$out/other.jsonl"
# a full disk and a closed pipe under the table are errors
for format in '' '--format json' --dry-run '--verify C8 --dry-run'; do
  "$jacobian" $small $format >/dev/full 2>"$out/stderr"
  [ $? = 3 ] && grep -q 'stdout: cannot write' "$out/stderr" || fail "a full stdout ($format)"
done
{ "$jacobian" $small 2>"$out/stderr"; echo $? >"$out/code"; } | true
[ "$(cat "$out/code")" = 3 ] || fail "a closed pipe"
timeout 60 "$jacobian" --T 8 --d 2 --H 1 -q --want sigma_max=7 >/dev/null 2>&1
[ $? = 1 ] || fail "--want does not set the exit code"
for want in 'op=rls vla' 'nosuch=1 nothing of that name' 'sigma_max=0.5 1'; do
  "$jacobian" $small -q --want "${want%% *}" >/dev/null 2>"$out/stderr"
  grep -qF "wanted ${want%% *}, measured ${want#* }" "$out/stderr" || fail "$want: $(cat "$out/stderr")"
done
finish
