#!/usr/bin/env bash
# scripts/cluster.sh: a farm chooses a rate and trains at it, keeps what is done, goes on where it was stopped; tasks and merging.
set -eu
# shellcheck source=tests/cli/common.sh
. "$(dirname "$0")/common.sh"
here=$(cd "$(dirname "$0")/../.." && pwd)
export BUILD=$build
cat >"$out/list" <<'END'
# a remark
@900 vla-capacity mqar --n 2 --vocab 8 --steps 9 --batch 8 --op rls
vla-capacity mqar --protocol tuned --op linear --n 2 --vocab 8 --steps 40 --batch 8 --seeds 7,8
vla-capacity copy --T 9 --steps 20 --batch 8 --op vla --gradients --threads 2
vla-bench --op delta --T 16 --H 1 --d 8 --crossover none --min-samples 3 --time-limit 5
END
"$here/scripts/cluster.sh" farm 2 100 "$out/farm" "$out/list" >"$out/log" 2>&1 || fail "farm: $(tail -n 3 "$out/log")"
jq -es '(map(select(.kind == "train")) | length == 8 and (map(select(.search)) | length == 5) and (map(.case) | unique | length == 8) and all(.op != "rls"))
  and (map(select(.kind == "gradient")) | length > 4 and (map(.key) | unique | length) == length)
  and (map(select(.kind == "sample")) | length == 1 and .[0].threads == 1)' "$out/farm/all.jsonl" >/dev/null || fail "merged: $(jq -c '[.kind, .case]' "$out/farm/all.jsonl")"
# the same networks as one run of the program
"$build/vla-capacity" mqar --protocol tuned --op linear --n 2 --vocab 8 --steps 40 --batch 8 --seeds 7,8 -o "$out/one.jsonl" -q >/dev/null
rows() { jq -c 'select(.kind == "train" and .task == "mqar") | [.case, .key, .accuracy, .loss]' | sort; }
cmp <(rows <"$out/one.jsonl") <(rows <"$out/farm/all.jsonl") || fail "the farm's networks differ"
# again: nothing is left to do; a part that is lost is made again
"$here/scripts/cluster.sh" farm 2 60 "$out/farm" "$out/list" >"$out/log" 2>&1
cp "$out/farm/part.copy-vla-paper-T9_s42.jsonl" "$out/kept" && rm "$out/farm/part.copy-vla-paper-T9_s42.jsonl"
"$here/scripts/cluster.sh" farm 2 60 "$out/farm" "$out/list" >"$out/log" 2>&1
cmp <(jq -c 'select(.kind == "train") | [.key, .accuracy, .loss]' "$out/kept") <(jq -c 'select(.kind == "train") | [.key, .accuracy, .loss]' "$out/farm/part.copy-vla-paper-T9_s42.jsonl") || fail "resuming"
"$here/scripts/cluster.sh" submit 2 "$out/jobs" vla-bench --op vla,delta --T 8,16 --H 1 --d 8 --crossover none --min-samples 3 --time-limit 5 >/dev/null 2>&1
"$here/scripts/cluster.sh" merge "$out/jobs" >/dev/null 2>&1
[ "$(jq -s 'map(select(.kind == "sample")) | length' "$out/jobs/all.jsonl")" = 4 ] || fail "tasks"
finish
