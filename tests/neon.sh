#!/usr/bin/env bash
# The kernels as AArch64 has them (NEON, the base instruction set), under emulation: cross-builds what the kernel tests
# need and runs them. Needs Debian's gcc-aarch64-linux-gnu and qemu-user, and fetches cmocka for arm64 into the build
# folder (first argument, build/neon). Minutes, so not part of `make test`. Last line: "N passed, N failed".
set -eu
cd "$(dirname "$0")/.."
build=${1:-build/neon}
for tool in aarch64-linux-gnu-gcc qemu-aarch64; do
  command -v $tool >/dev/null || { echo "neon.sh: $tool is missing: apt-get install gcc-aarch64-linux-gnu qemu-user" >&2; exit 2; }
done
mkdir -p "$build/arm64/lists/partial" "$build/arm64/cache/archives/partial"
if [ ! -e "$build/arm64/usr/include/cmocka.h" ]; then
  private=(-qq -o APT::Architectures=arm64 -o APT::Architecture=arm64 -o Dir::State::Lists="$PWD/$build/arm64/lists"
    -o Dir::Cache="$PWD/$build/arm64/cache" -o APT::Sandbox::User=root)
  apt-get "${private[@]}" update
  (cd "$build/arm64" && apt-get "${private[@]}" download libcmocka0 libcmocka-dev)
  for package in "$build"/arm64/*.deb; do dpkg-deb -x "$package" "$build/arm64"; done
fi
objects=()
for source in kernels/cpu/*_cpu.c; do
  case $source in
  *_naive_cpu.c) objects+=("${source%.c}.o") ;;
  *) for bits in f32 f64; do objects+=("${source%.c}.$bits.base.o"); done ;;
  esac
done
for source in kernels/cpu/table.c lib/base/*.c lib/op/{registry,residual,problem,plan,work,inputs,state}.c lib/tensor/*.c \
  lib/device/none.c; do objects+=("${source%.c}.o"); done
tests=(test_kernels_softmax.o test_kernels_recurrent.o test_kernels_state.o)
CPPFLAGS=-I$build/arm64/usr/include make -j"$(nproc)" --no-print-directory BUILD="$build" CUDA=0 CC=aarch64-linux-gnu-gcc DEP_CFLAGS= \
  "${objects[@]/#/$build/obj/}" "${tests[@]/#/$build/obj/tests/}" >"$build/log" 2>&1 || { tail -n 20 "$build/log"; exit 1; }
passed=0 failed=0
for test in "${tests[@]}"; do
  aarch64-linux-gnu-gcc -pthread -o "$build/${test%.o}" "$build/obj/tests/$test" "${objects[@]/#/$build/obj/}" \
    -L"$build/arm64/usr/lib/aarch64-linux-gnu" -l:libcmocka.so.0 -lm
  if LD_LIBRARY_PATH=$build/arm64/usr/lib/aarch64-linux-gnu qemu-aarch64 -L /usr/aarch64-linux-gnu \
    -E LD_LIBRARY_PATH="$build/arm64/usr/lib/aarch64-linux-gnu" "$build/${test%.o}"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
  fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
