#!/usr/bin/env bash
# Style, types and layers of the whole tree. Everything runs; the exit code says whether all of it passed.
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
bin=.venv/bin
[[ -x $bin/ruff ]] || { echo "no ruff in .venv: run bash scripts/test.sh --setup-only" >&2; exit 2; }
failed=0

step() {
    echo "== $*" >&2
    "$@" || failed=1
}

step $bin/ruff check .
step $bin/ruff format --check .
step $bin/mypy
step $bin/lint-imports
if command -v shellcheck >/dev/null; then
    step shellcheck -x scripts/*.sh eval_one_file.sh .ci/run
else
    echo "== shellcheck is not installed: skipped" >&2
fi
exit $failed
