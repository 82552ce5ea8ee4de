#!/usr/bin/env bash
# The main road, shown. ./dev demo builds the program first and then runs this.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PATH="$PWD/build/bin:$PATH"
problem=(--strategy ring --world 4 --seq 64 --mask causal --layout zigzag)
# Real documents that are always there: the Python source of the torch package that the program was built with.
text=$(sed -n 's/^ARMILLARY_TORCH_ROOT:INTERNAL=//p' build/CMakeCache.txt)

title() { printf '\n== %s\n' "$*"; }
show() {
  printf '$ %s\n' "$*"
  "$@"
}

title "A plan is data: what each of 4 ranks sends, receives and computes, in order"
show armillary plan "${problem[@]}"

title "It is proved before it runs: every visible pair counted once, no deadlock, no buffer overwritten"
show armillary verify "${problem[@]}"

title "The same plan with its first op dropped: the proof fails and says where"
status=0
show armillary verify "${problem[@]}" --pass forward --break 0 || status=$?
if [ $status -ne 1 ]; then
  echo "demo: the broken plan was not caught (exit code $status)" >&2
  exit 1
fi

run=(--set "training.dataset_path=$text" --set training.steps=15)  # of the 50 of the recipe
title "The plan runs: a GPT learns Python source, every sequence of 4,096 tokens spread over 4 ranks"
rm -rf runs/4_ranks runs/1_rank
show armillary train recipes/default.toml "${run[@]}" --set job.dump_folder=runs/4_ranks

title "The same run on 1 rank, its first steps: loss and gradient norm must agree"
one_rank=(--set parallelism.context_parallel_degree=1 --set training.steps=4)
printf '$ armillary train recipes/default.toml %s ...\n' "${one_rank[*]}"
armillary train recipes/default.toml --set "training.dataset_path=$text" --set job.dump_folder=runs/1_rank \
  "${one_rank[@]}" --json >/dev/null
python3 tools/compare_runs.py runs/4_ranks runs/1_rank
