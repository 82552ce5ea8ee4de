#!/usr/bin/env bash
# Writes the charts of docs/simulation.md anew: bash tools/plots.sh [PROGRAM]; ./dev setup bench installs what draws them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
program=${1:-build/bin/armillary}
problem="--heads 32 --kv-heads 8 --head-dim 128 --layout zigzag"

chart() {  # NAME KIND FLAG...: docs/plots/NAME.svg, and the table beside it
  local name=$1 kind=$2
  shift 2
  # shellcheck disable=SC2086  # words are wanted
  "$program" simulate $problem "$@" --csv "docs/plots/$name.csv"
  .venv/bin/python armillary/lab/bench plots "$kind" "docs/plots/$name.csv" "docs/plots/$name.svg"
}

mkdir -p docs/plots
chart speedup speedup --cluster c3 --world 8..64 --seq 262144
chart winners winners --cluster c3 --world 4..32 --seq 16384,65536,262144,1048576
chart weak_scaling scaling --cluster c1 --weak --world 8..64 --seq 65536
