#!/usr/bin/env bash
# Checks and benchmarks one shape: ./eval_one_file.sh --mnk 64_4096_64 --acc_precise fp32 --device_type h200 --mode offline
# All arguments, help and errors are those of `python -m cudal2 eval`. Works from any directory; deletes nothing.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
export PATH="$root/.venv/bin:$PATH" PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
exec python3 -m cudal2 eval "$@"
