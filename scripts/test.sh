#!/usr/bin/env bash
# Sets up .venv if need be, then runs the tests. `--setup-only` stops before them; other arguments go to pytest.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/setup.sh
if [[ ${1:-} == --setup-only ]]; then
    exit 0
fi
# One thread a process: the suite is many small arrays, and the cores are better spent on a worker each. A GPU is not
# shared: two tests would time each other.
export OMP_NUM_THREADS=1
workers=()
has_gpu || workers=(-n auto --maxprocesses 8 --dist loadfile)
exec .venv/bin/python -m pytest "${workers[@]}" "$@"
