#!/usr/bin/env bash
# Puts the virtual environment of this checkout in .venv; sourced by demo.sh and test.sh. Does nothing when it is up to date.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=.venv/bin/python
stamp=.venv/.cudal2-setup
log=.venv/setup.log

# pip's own output goes to a file; on failure its end is what the reader needs.
quiet_pip() {
    "$python" -m pip "$@" >>"$log" 2>&1 || { tail -n 20 "$log" >&2; echo "set-up failed; the whole log is $log" >&2; exit 2; }
}

try_pip() { "$python" -m pip "$@" >>"$log" 2>&1; }

has_gpu() { command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; }

# Without a GPU the CPU build of torch is enough, and a tenth of the size: a wheel in pip's find-links, else from pip's index.
# What torch itself needs comes with the other packages.
install_torch() {
    "$python" -c "from importlib.metadata import version; version('torch')" 2>/dev/null && return
    echo "set-up: torch" >&2
    if ! has_gpu; then
        try_pip install --no-index --no-deps "torch>=2.8" && return
        try_pip install "torch==2.13.0+cpu" && return
        echo "set-up: pip knows no CPU build of torch, so this takes the CUDA one, 5 GB; to avoid it, stop here and set" \
            "PIP_EXTRA_INDEX_URL to PyTorch's index of CPU builds" >&2
        try_pip install "torch==2.13.0" && return
    fi
    quiet_pip install "torch>=2.8"
}

wanted="$(cat pyproject.toml scripts/constraints.txt scripts/setup.sh | sha256sum) $(pwd)"
if [[ ! -f $stamp || "$(cat "$stamp")" != "$wanted" ]]; then
    command -v python3 >/dev/null || { echo "python3 is missing: install Python 3.10 or newer" >&2; exit 2; }
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python 3.10 or newer is needed; $(python3 --version) is first on PATH" >&2; exit 2; }
    if [[ ! -x $python ]]; then
        echo "set-up: virtual environment in .venv" >&2
        python3 -m venv .venv || { echo "python3 has no working venv module: install it (Debian: apt-get install python3-venv)" >&2; exit 2; }
    fi
    : >"$log"
    install_torch
    extras=train,plan,build,report,dev
    has_gpu && extras=$extras,cuda
    echo "set-up: packages" >&2
    quiet_pip install -c scripts/constraints.txt -e ".[$extras]"
    printf '%s' "$wanted" >"$stamp"
fi
