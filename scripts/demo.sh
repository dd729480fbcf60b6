#!/usr/bin/env bash
# No GPU needed: trains the search on the H200 measurements shipped with the package, prints and saves the kernel table and its plot.
# `--setup-only` stops after the set-up; other arguments go to the training (for example --steps 2000).
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/setup.sh
if [[ ${1:-} == --setup-only ]]; then
    exit 0
fi
python=.venv/bin/python
run=runs/demo-$(date -u +%Y%m%d-%H%M%S)
export OMP_NUM_THREADS=1

"$python" -m cudal2 train --arch sm90 --backend replay --run-dir "$run" "$@"
"$python" -m cudal2 report --run "$run"
