#!/usr/bin/env bash
# vla-bench on a device, as a user drives it: tests/gpu/bench.sh [BUILD]. Needs a device, vla-bench and nothing else.
set -u
build=${1:-build}
bench=$build/vla-bench
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failures=0
fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}
device="--backend cuda --dtype bf16 --H 2 --d 64 --T 100,300"
columns() { # FILE NAME..: those columns of a CSV, one row a line, | between them
  local file=$1
  shift
  awk -v names="$*" 'BEGIN { n = split(names, want, " ") }
    { line = $0; count = 0; field = ""; quoted = 0
      for (i = 1; i <= length(line) + 1; i++) { c = substr(line, i, 1)
        if (c == "\"") quoted = !quoted; else if ((c == "," && !quoted) || i > length(line)) { f[++count] = field; field = "" } else field = field c }
      if (NR == 1) { for (i = 1; i <= count; i++) at[f[i]] = i; next }
      for (i = 1; i <= n; i++) printf "%s%s", f[at[want[i]]], i < n ? "|" : "\n" }' "$file"
}
"$bench" $device --op vla,softmax,linear,delta,decay,rls --crossover none --peak -q -o "$out/a.csv" >"$out/table" 2>"$out/log" || fail "sweep: exit $?"
grep -q '^run 12, passed 12, skipped 0, failed 0$' "$out/log" || fail "sweep: $(tail -n 1 "$out/log")"
columns "$out/a.csv" status n_samples launch cache | while IFS='|' read -r status n launch cache; do
  [ "$status $launch $cache" = "ok graph hot" ] && [ "$n" -ge 10 ] || echo "$status $n $launch $cache"
done >"$out/odd"
[ -s "$out/odd" ] && fail "rows: $(cat "$out/odd")"
columns "$out/a.csv" share_of_peak floor_s peak_bytes sm_clock_hz cuda gpu driver | grep -qE '^[|]|[|][|]|[|]$' && fail "a column is empty"
[ "$(columns "$out/a.peak.csv" dtype | sort | tr '\n' ' ')" = "bf16 f16 f32 f64 tf32 " ] || fail "peaks: $(cat "$out/a.peak.csv")"
"$bench" $device --op vla --crossover none --cache cold -q -o "$out/cold.csv" >/dev/null 2>&1 || fail "cold: exit $?"
"$bench" $device --op vla --crossover none --launch stream -q -o "$out/stream.csv" >/dev/null 2>&1 || fail "stream: exit $?"
[ "$(cat "$out/a.csv" "$out/cold.csv" "$out/stream.csv" | grep -c '^sample,vla/')" = 6 ] || fail "launch and cache"
[ "$(for f in a cold stream; do columns "$out/$f.csv" op key | grep '^vla'; done | sort -u | wc -l)" = 6 ] || fail "keys do not tell launch and cache apart"
"$bench" $device --op vla --resume --crossover none --cache cold -q -o "$out/cold.csv" 2>&1 >/dev/null | grep -q '^run 0,' || fail "resume"
"$bench" --case vla/recurrent/cuda/bf16/B1_H2_T100_K64_V64 --profile -q -o "$out/profile.csv" >/dev/null 2>&1 || fail "profile: exit $?"
[ "$(columns "$out/profile.csv" status median_s)" = "ok|" ] || fail "profile times something"
"$bench" $device --op vla --profile >/dev/null 2>"$out/log" && fail "two cases to a profiler"
grep -q 'accepted is one' "$out/log" || fail "profile: $(cat "$out/log")"
"$bench" --mode decode --backend cuda --dtype bf16 --H 2 --d 64 --op vla,softmax,linear,delta,decay,rls --depth 1,70 --crossover none -q -o "$out/decode.csv" >/dev/null 2>"$out/log" || fail "decode: exit $?"
grep -q '^run 12, passed 12, skipped 0, failed 0$' "$out/log" || fail "decode: $(tail -n 1 "$out/log")"
"$bench" --backend cpu,cuda --dtype f32 --H 2 --d 32 --op vla,linear --T 64 --crossover none -q -o "$out/both.csv" >/dev/null 2>&1 || fail "both: exit $?"
[ "$(columns "$out/both.csv" backend | sort | uniq -c | tr -s ' \n' ' ')" = " 2 cpu 2 cuda " ] || fail "both backends"
# without cuBLAS the shares of peak are empty, without cuDNN the baseline is labelled as the weaker one
VLA_CUBLAS=/nonexistent "$bench" $device --op vla --crossover none -q -o "$out/without.csv" >/dev/null 2>&1 || fail "without cuBLAS: exit $?"
columns "$out/without.csv" status share_of_peak floor_s | grep -qvE '^ok[|][|][0-9]' && fail "without cuBLAS: $(columns "$out/without.csv" status share_of_peak floor_s)"
VLA_CUDNN=/nonexistent "$bench" $device --op softmax --crossover none -q -o "$out/tiled.csv" >/dev/null 2>&1 || fail "without cuDNN: exit $?"
columns "$out/tiled.csv" isa | grep -q 'weaker than cuDNN' || fail "a weaker baseline is not labelled"
# where several versions of cuDNN are installed, a row is by the fastest of them; one that is named is alone
"$bench" $device --op softmax --crossover none -q -o "$out/fastest.csv" >/dev/null 2>"$out/log" || fail "cuDNN: exit $?"
paths=$(columns "$out/fastest.csv" cudnn_path | head -n 1)
columns "$out/fastest.csv" status isa libraries | while IFS='|' read -r status isa libraries; do
  case $paths in *,*) ;; *) [ "$status|$libraries" = "ok|" ] || echo "one version, but '$libraries'"; continue ;; esac
  least=$(tr ';' '\n' <<<"$libraries" | awk '$NF == "s" { print $(NF - 1), $1, $2, $3 }' | sort -g | head -n 1 | cut -d' ' -f 2-)
  case "$status $isa " in "ok cudnn "*) ;; *) echo "$status $isa" ;; esac
  case "$least " in "$isa "*) ;; *) echo "by $isa, but $libraries" ;; esac
done >"$out/odd"
[ -s "$out/odd" ] && fail "fastest cuDNN: $(cat "$out/odd" "$out/log")"
tr ',' '\n' <<<"$paths" | while read -r path; do
  [ -n "$path" ] || continue
  "$bench" $device --op softmax --crossover none -q --cudnn "$path" -o "$out/named.csv" >/dev/null 2>&1
  columns "$out/named.csv" status isa libraries cudnn_path | grep -vx "ok|cudnn [0-9.]*||$path"
  rm -f "$out/named.csv"
done >"$out/odd"
[ -s "$out/odd" ] && fail "named cuDNN: $(cat "$out/odd")"
# a version that cannot run is left out, also where it is the first that is found
if [[ $paths == *libcudnn* ]] && mkdir "$out/fake" && echo 'unsigned long cudnnGetVersion(void) { return 99900; }' |
  cc -shared -fPIC -Wl,-soname,libcudnn.so.9 -x c -o "$out/fake/libcudnn.so.9" - 2>/dev/null; then
  LD_LIBRARY_PATH=$out/fake${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$bench" $device --op softmax --crossover none -o "$out/beside.csv" >/dev/null 2>"$out/log" || fail "fake cuDNN: exit $?"
  columns "$out/beside.csv" status isa libraries | grep -v '^ok|cudnn 9[0-9.]*|cudnn 9.99.0 no time; cudnn ' >"$out/odd"
  [ -s "$out/odd" ] && fail "fake cuDNN: $(cat "$out/odd")"
  [ "$(grep -c 'cudnn 9.99.0 is left out of softmax/' "$out/log")" = 1 ] || fail "fake cuDNN: $(cat "$out/log")"
fi
[ "$failures" = 0 ] && echo "bench on a device: passed" || { echo "bench on a device: $failures failed"; exit 1; }
