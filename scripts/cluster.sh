#!/usr/bin/env bash
# Splits cases over jobs of a cluster, or over the cores of one machine, and merges what they leave.
#   scripts/cluster.sh submit JOBS OUTPUT_DIRECTORY PROGRAM OPTIONS..   one Slurm array job of JOBS tasks; without Slurm in turn
#   scripts/cluster.sh task OUTPUT_DIRECTORY PROGRAM OPTIONS..          one task (SLURM_ARRAY_TASK_ID of _COUNT)
#   scripts/cluster.sh farm CORES SECONDS OUTPUT_DIRECTORY LIST         the cases of every line of LIST, in order, on this machine
#   scripts/cluster.sh merge OUTPUT_DIRECTORY                           all parts into OUTPUT_DIRECTORY/all.jsonl
# PROGRAM is vla-bench, or vla-capacity with its task. A line of LIST is [@SECONDS] PROGRAM OPTIONS..; with --threads N a case
# takes N cores, otherwise one; with @SECONDS none is started that late before the end. Every verb resumes: what has its record is not measured again, a network in training goes on from
# its checkpoint, and cases that wait for others (a rate that must be chosen first) are started when those have ended.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=${BUILD:-$here/../build}
verb=${1:?submit, task, farm or merge}
shift

rows_of() { cat /dev/null "$@" 2>/dev/null | grep -vE '^\{"kind":"(meta|cell|verdict|fit|crossover)"' || true; }

# Cases of a command that have no record in the parts so far.
cases_of() { # PROGRAM OPTIONS..
  local known
  known=$(mktemp --suffix .jsonl)
  rows_of "$out"/part*.jsonl >"$known"
  "$build/$1" "${@:2}" --dry-run --resume -o "$known" 2>/dev/null | grep -E '^[^ ]+/[^ ]+$' || true
  rm -f "$known"
}

# One case into a part of its own, which starts with what is known and counts when it is done.
run_case() { # CASE SECONDS PROGRAM OPTIONS..
  local name=${1//\//-} case=$1 seconds=$2
  shift 2
  rows_of "$out"/part*.jsonl >"$out/open.$name.jsonl"
  if "$build/$1" "${@:2}" --filter "$case" --time-limit "$seconds" --resume -o "$out/open.$name.jsonl" >"$out/log.$name" 2>&1 ||
    [ $? = 1 ]; then
    rows_of "$out/open.$name.jsonl" | grep -F "\"case\":\"$case\"" >"$out/open.$name" || true
    [ ! -s "$out/open.$name" ] || mv "$out/open.$name" "$out/part.$name.jsonl"
  fi
  rm -f "$out/open.$name.jsonl" "$out/open.$name"
}

case $verb in
submit)
  jobs=${1:?number of jobs} out=${2:?output directory}
  shift 2
  mkdir -p "$out"
  if command -v sbatch >/dev/null; then
    sbatch --array="0-$((jobs - 1))" --exclusive --output="$out/%a.log" --wrap \
      "$(printf '%q ' env BUILD="$build" "$here/cluster.sh" task "$out" "$@")"
  else
    for ((i = 0; i < jobs; i++)); do
      SLURM_ARRAY_TASK_ID=$i SLURM_ARRAY_TASK_COUNT=$jobs "$here/cluster.sh" task "$out" "$@"
    done
  fi
  ;;
task)
  out=${1:?output directory} program=${2:?vla-bench, or vla-capacity with its task}
  shift 2
  mkdir -p "$out"
  id=${SLURM_ARRAY_TASK_ID:-0} count=${SLURM_ARRAY_TASK_COUNT:-1}
  mapfile -t cases < <("$build/$program" "$@" --dry-run | sed -n "$((id + 1))~${count}p")
  [ ${#cases[@]} -gt 0 ] || { echo "task $id: no cases" >&2; exit 0; }
  chosen=()
  for c in "${cases[@]}"; do chosen+=(--filter "$c"); done
  "$build/$program" "$@" "${chosen[@]}" --resume -o "$out/part$id.jsonl"
  ;;
farm)
  cores=${1:?number of cores} seconds=${2:?seconds in all} out=${3:?output directory} list=${4:?file of command lines}
  mkdir -p "$out"
  end=$((SECONDS + seconds))
  export OPENBLAS_NUM_THREADS=1
  declare -A begun=() taken=()
  mapfile -t lines < <(grep -vE '^[[:space:]]*(#|$)' "$list")
  free=$cores
  collect() { # gives back the cores of every case that has ended
    for pid in "${!taken[@]}"; do
      kill -0 "$pid" 2>/dev/null && continue
      wait "$pid" || true
      free=$((free + taken[$pid]))
      unset "taken[$pid]"
    done
  }
  start_next() { # false when no case can start now
    local line case need most
    for line in "${lines[@]}"; do
      need=1 most=0
      [[ $line =~ ^@([0-9]+)\ +(.*) ]] && most=${BASH_REMATCH[1]} line=${BASH_REMATCH[2]}
      [ "$most" -le $((end - SECONDS)) ] || continue
      [[ $line =~ --threads[\ =]([0-9]+) ]] && need=${BASH_REMATCH[1]}
      [ "$need" -le "$free" ] || continue
      [[ $line == *--threads* ]] || line="$line --threads 1" # part of what a case is
      # shellcheck disable=SC2086
      for case in $(cases_of $line); do
        [ -z "${begun[$case]:-}" ] || continue
        begun[$case]=1
        [[ $line != vla-capacity* ]] || line="$line --checkpoint $out/state"
        # shellcheck disable=SC2086
        run_case "$case" "$((end - SECONDS))" $line &
        taken[$!]=$need
        free=$((free - need))
        return 0
      done
    done
    return 1
  }
  while [ $SECONDS -lt $end ]; do
    while [ "$free" -gt 0 ] && start_next; do :; done
    [ ${#taken[@]} -gt 0 ] || break
    wait -n || true
    collect
  done
  wait
  "$here/cluster.sh" merge "$out"
  ;;
merge)
  out=${1:?output directory}
  "$build/vla-bench" merge "$out"/part*.jsonl -o "$out/all.jsonl"
  ;;
*)
  echo "cluster.sh: '$verb': accepted are submit, task, farm and merge" >&2
  exit 2
  ;;
esac
