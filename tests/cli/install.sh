#!/usr/bin/env bash
# `make install` into a fresh prefix, then a small C program built with pkg-config against the shared and static library.
set -eu
build=${1:-build}
prefix=$(mktemp -d)
trap 'rm -rf "$prefix"' EXIT
make -s BUILD="$build" PREFIX="$prefix" install
for program in vla-run vla-bench; do "$prefix/bin/$program" --version; done
cat >"$prefix/user.c" <<'C'
#include <stdio.h>
#include <vla.h>
int main(void)
{
    float q[6] = {1, 2, 3, 4, 5, 6}, o[6];
    vla_problem problem = vla_problem_default(VLA_VLA, 1, 1, 3, 2);
    vla_tensors tensors = {.q = q, .k = q, .v = q, .o = o};
    vla_error error;
    if (vla_forward_f32(&problem, &tensors, &error) != VLA_OK) return fprintf(stderr, "%s\n", error.message), 1;
    return printf("%s %.6f %.6f\n", vla_version(), (double)o[4], (double)o[5]) < 0;
}
C
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig LD_LIBRARY_PATH=$prefix/lib
flags=${SAN:+-fsanitize=address,undefined}
# shellcheck disable=SC2046
${CC:-cc} $flags $(pkg-config --cflags vla) "$prefix/user.c" -o "$prefix/user" $(pkg-config --libs vla)
shared=$("$prefix/user")
[ "$(pkg-config --modversion vla)" = "${shared%% *}" ]
rm "$prefix"/lib/libvla.so*
# shellcheck disable=SC2046
${CC:-cc} $flags $(pkg-config --cflags vla) "$prefix/user.c" -o "$prefix/user" $(pkg-config --static --libs vla)
[ "$("$prefix/user")" = "$shared" ]
echo "$shared"
