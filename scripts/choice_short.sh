#!/usr/bin/env bash
# From the record of every form over B*H, T and d, the rows of kernels/cuda/choice_short.inc: what one chunk takes.
#   scripts/choice_short.sh plots/reference/h200/grid.csv >kernels/cuda/choice_short.inc
set -euo pipefail
awk '
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
  f[at["kind"]] != "sample" || f[at["status"]] != "ok" || f[at["median_s"]] == "" || f[at["T"]] != 64 { next }
  { printf "{VLA_%s, VLA_%s, VLA_%s, %d, %d, %.1f},\n", toupper(f[at["op"]]), toupper(f[at["form"]]), toupper(f[at["dtype"]]),
      f[at["dk"]], f[at["B"]] * f[at["H"]], 1e6 * f[at["median_s"]] }' "$1" | sort -t, -k1,4 -k5,5n
