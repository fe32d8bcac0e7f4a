#!/usr/bin/env bash
# Splits a list of cases over cluster jobs and merges what they leave.
#   scripts/cluster.sh submit JOBS OUTPUT_DIRECTORY vla-bench options...    one Slurm array job of JOBS tasks
#   scripts/cluster.sh task OUTPUT_DIRECTORY vla-bench options...           one task (SLURM_ARRAY_TASK_ID of _COUNT)
#   scripts/cluster.sh merge OUTPUT_DIRECTORY                               all parts into OUTPUT_DIRECTORY/all.jsonl
# Every task resumes: submitting again measures only what is missing. Without Slurm, `submit` runs the tasks in turn.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=${BUILD:-$here/../build}
verb=${1:?submit, task or merge}
shift
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
  out=${1:?output directory}
  shift
  id=${SLURM_ARRAY_TASK_ID:-0} count=${SLURM_ARRAY_TASK_COUNT:-1}
  mapfile -t cases < <("$build/vla-bench" --dry-run "$@" | sed -n "$((id + 1))~${count}p")
  [ ${#cases[@]} -gt 0 ] || { echo "task $id: no cases" >&2; exit 0; }
  chosen=()
  for c in "${cases[@]}"; do chosen+=(--case "$c"); done
  "$build/vla-bench" "${chosen[@]}" --resume -o "$out/part$id.jsonl"
  ;;
merge)
  out=${1:?output directory}
  "$build/vla-bench" merge "$out"/part*.jsonl -o "$out/all.jsonl"
  ;;
*)
  echo "cluster.sh: '$verb': accepted are submit, task and merge" >&2
  exit 2
  ;;
esac
