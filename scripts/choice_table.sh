#!/usr/bin/env bash
# From a record of every form over B*H, T and d (reference_gpu.sh grid), the rows of kernels/cuda/choice_table.inc, by the rule
# stated in kernels/cuda/choice.h, fitted to all cells in least squares of the logarithm:   scripts/choice_table.sh plots/reference/h200/grid.csv 132 >kernels/cuda/choice_table.inc
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
    k = f[at["op"]] " " f[at["form"]] " " f[at["dtype"]] " " f[at["dk"]]
    heads = f[at["B"]] * f[at["H"]]; T = f[at["T"]] + 0; us = 1e6 * f[at["median_s"]]
    t[k, heads, T] = us; keys[k] = 1; H[k, heads] = 1; Ts[T] = 1
    if (!(k in fewest) || heads < fewest[k]) fewest[k] = heads
    if (!(k in most) || heads > most[k]) most[k] = heads
  }
  # slope of time in T between the two longest T measured at so many heads; 0 where there are not two
  function slope(k, h,   T, a, b) {
    a = b = 0
    for (T in Ts) if ((k, h, T) in t) { if (T + 0 > b) { a = b; b = T + 0 } else if (T + 0 > a) a = T + 0 }
    return a > 0 ? (t[k, h, b] - t[k, h, a]) / (b - a) : 0
  }
  function fewer(k, h,   pair, p, best) { # the next smaller number of heads
    best = fewest[k]
    for (pair in H) { split(pair, p, SUBSEP); if (p[1] == k && p[2] + 0 < h && p[2] + 0 > best) best = p[2] + 0 }
    return best
  }
  function shortest(k, h,   T, s) {
    s = 0
    for (T in Ts) if ((k, h, T) in t && (s == 0 || T + 0 < s)) s = T + 0
    return s
  }
  # sum of squared log errors of the three numbers over the cells of a form; a cell of one chunk weighs three
  function wrong(k, base, serial, load,   cell, p, per, guess, sum) {
    sum = 0
    for (cell in t) {
      split(cell, p, SUBSEP)
      if (p[1] != k) continue
      per = load * p[2] / sms
      guess = base + p[3] * (per > serial ? per : serial)
      sum += (p[3] > 64 ? 1 : 3) * log(guess / t[cell]) ^ 2
    }
    return sum
  }
  function tuned(k, v,   step, i, sign, old, now, least, better) { # v[1..3]: one number at a time, in ever smaller steps
    least = wrong(k, v[1], v[2], v[3])
    for (step = 0.3; step > 0.001; ) {
      better = 0
      for (i = 1; i <= 3; i++)
        for (sign = -1; sign <= 1; sign += 2) {
          old = v[i]; v[i] *= 1 + sign * step
          now = wrong(k, v[1], v[2], v[3])
          if (now < least) { least = now; better = 1 } else v[i] = old
        }
      if (!better) step /= 2
    }
  }
  END {
    for (k in keys) {
      serial = slope(k, fewest[k])
      while (most[k] > fewest[k] && slope(k, most[k]) == 0) most[k] = fewer(k, most[k])
      load = slope(k, most[k]) * sms / most[k]
      s = shortest(k, fewest[k]); base = t[k, fewest[k], s] - s * serial
      v[1] = base > 1 ? base : 1; v[2] = serial; v[3] = load
      tuned(k, v)
      split(k, p, " ")
      printf "{VLA_%s, VLA_%s, VLA_%s, %d, %.1f, %.5f, %.5f},\n", toupper(p[1]), toupper(p[2]), toupper(p[3]), p[4], v[1], v[2], v[3]
    }
  }' "$1" | sort -t, -k1,3 -k4n
