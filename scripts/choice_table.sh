#!/usr/bin/env bash
# From a record of every form over B*H, T and d (reference_gpu.sh measure with ONLY=grid), the rows of the table in
# kernels/cuda/choice.h, by the rule stated there:   scripts/choice_table.sh plots/reference/h200/grid.csv MULTIPROCESSORS
set -euo pipefail
awk -v sms="${2:-132}" '
  # CSV with quoted fields that may hold commas
  function split_line(line, f,   n, i, c, quoted, field) {
    n = 0; field = ""; quoted = 0
    for (i = 1; i <= length(line); i++) {
      c = substr(line, i, 1)
      if (c == "\"") quoted = !quoted
      else if (c == "," && !quoted) { f[++n] = field; field = "" }
      else field = field c
    }
    f[++n] = field
    return n
  }
  { n = split_line($0, f) }
  NR == 1 { for (i = 1; i <= n; i++) at[f[i]] = i; next }
  f[at["kind"]] != "sample" || f[at["status"]] != "ok" || f[at["median_s"]] == "" { next }
  {
    k = f[at["op"]] " " f[at["form"]] " " (f[at["dk"]] <= 64 ? 64 : f[at["dk"]] <= 128 ? 128 : 256) " " f[at["dk"]]
    heads = f[at["B"]] * f[at["H"]]; T = f[at["T"]] + 0; us = 1e6 * f[at["median_s"]]
    t[k, heads, T] = us; keys[k] = 1; H[k, heads] = 1; Ts[T] = 1
    if (!(k in fewest) || heads < fewest[k]) fewest[k] = heads
    if (!(k in most) || heads > most[k]) most[k] = heads
  }
  # slope of time in T between the two longest T measured at so many heads
  function slope(k, h,   T, a, b) {
    a = b = 0
    for (T in Ts) if ((k, h, T) in t) { if (T + 0 > b) { a = b; b = T + 0 } else if (T + 0 > a) a = T + 0 }
    return a > 0 ? (t[k, h, b] - t[k, h, a]) / (b - a) : 0
  }
  function shortest(k, h,   T, s) {
    s = 0
    for (T in Ts) if ((k, h, T) in t && (s == 0 || T + 0 < s)) s = T + 0
    return s
  }
  END {
    for (k in keys) {
      serial = slope(k, fewest[k]); load = slope(k, most[k]) * sms / most[k]
      s = shortest(k, fewest[k]); base = t[k, fewest[k], s] - s * serial
      split(k, p, " ")
      printf "    {VLA_%s, VLA_%s, %d, %.1f, %.5f, %.5f}, /* d %d */\n", toupper(p[1]), toupper(p[2]), p[3], base < 0 ? 0 : base, serial, load, p[4]
    }
  }' "$1" | sort
