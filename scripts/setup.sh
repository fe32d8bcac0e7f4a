#!/usr/bin/env bash
# Installs the Debian packages the build and the tests need, when they are missing. Does nothing when all are there.
set -euo pipefail
packages=(gcc make pkg-config libopenblas-dev liblapacke-dev libjansson-dev libcmocka-dev gnuplot-nox jq git "$@")
missing=()
for p in "${packages[@]}"; do
  [ "$(dpkg-query -W -f='${db:Status-Status}' "$p" 2>/dev/null)" = installed ] || missing+=("$p")
done
[ ${#missing[@]} -eq 0 ] && exit 0
if ! command -v apt-get >/dev/null; then
  echo "setup: missing: ${missing[*]}; no apt-get here: install them with your package manager" >&2
  exit 3
fi
run=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "setup: missing: ${missing[*]}; run as root: apt-get install ${missing[*]}" >&2; exit 3; }
  run=(sudo)
fi
echo "setup: installing ${missing[*]}" >&2
"${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq >&2
"${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
