#!/usr/bin/env bash
# The chunkwise CUDA kernels of vla, delta and linear on the CPU, no device and no CUDA toolkit needed: tests/emulate/run.sh [BUILD] [OPTION..] [CASE..].
# Every thread of a block is a fiber, products and copies are computed; each case is held against naive float64, under several
# orders of warps and landings of asynchronous copies, which must all give the same bits. Needs an x86-64 processor, g++ and python3.
#   --quick   nine cases (some seconds)        --full    all of them, the default (about a minute)
#   --seeds N that many orders besides one     --filter TEXT  those of --full with it      --chunks  the error of each chunk
# A CASE is words: "op=vla|delta|linear dtype=bf16|f16, of linear tf32 too (its scan), d= dv= T= H= back=auto|apart|pairs|beside|brief plain lambda0= no_u qk_l2
# features= split=N (stop there, go on from the state) kind=normal|equal|near|zeros|turn|axis|large|loud|vla_lm|softmax_lm sms=
# (multiprocessors) per= (chunks a segment) budget= (bytes of workspace)". A line: error of o in the worst chunk over that chunk's
# own size, its mean over chunks, of all; of S, A and n. BAD: above 3e-2 (o, S), 2e-2 (A, n), in tf32 5e-3, not finite, or bits that differ.
# Environment: EMU_ARCH=80 the code for older devices; EMU_EARLY=0|2 kernels never, always let in early; EMU_LONE=0|1;
# EMU_RESIDENT=N blocks resident at most (64); EMU_TRACE=1 launches; EMU_MMA=rz sums of products rounded toward zero.
# It does not show: missing memory or proxy fences, races that the order of warps and lanes cannot reach, registers, time.
set -euo pipefail
cd "$(dirname "$0")/../.."
if [ "$(uname -m)" != x86_64 ]; then
  echo "emulate: $(uname -m): skipped, switching threads is written for x86-64"
  exit 0
fi
build=build
case ${1:-} in
"" | --* | *=*) ;;
*) build=$1 && shift ;;
esac
arch=${EMU_ARCH:-90}
make -s -j"$(nproc)" -f tests/emulate/emulate.mk OUT="$build/emulate/$arch" ARCH="$arch" >&2
[ $# -gt 0 ] || set -- --full
exec "$build/emulate/$arch/cases" "$@"
