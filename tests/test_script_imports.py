"""Every script where a package is missing: one line with the command that installs it and exit code 2, as a command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"
#: Runs every script's --help without a package, and prints exit codes and the last line that each said.
EVERY_SCRIPT = """
import contextlib, io, json, runpy, sys
missing, *scripts = sys.argv[1:]
sys.modules[missing] = None
said = {}
for script in scripts:
    sys.argv = [script, "--help"]
    with contextlib.redirect_stderr(io.StringIO()) as stderr, contextlib.redirect_stdout(io.StringIO()):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as stop:
            said[script] = (stop.code, stderr.getvalue().rpartition("\\nerror: ")[2])
        except ModuleNotFoundError as error:
            said[script] = (1, str(error))
print(json.dumps(said))
"""


@pytest.mark.parametrize("package", ["numpy", "cuda", "pyarrow", "torch"])
def test_a_script_without_a_package_ends_as_a_command_does(package: str) -> None:
    scripts = [str(path) for path in SCRIPTS.glob("*.py")]
    path = os.pathsep.join([str(SCRIPTS.parent), str(SCRIPTS)])  # the latter for the parts of step_breakdown.py
    command = [sys.executable, "-c", EVERY_SCRIPT, package, *scripts]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60)
    said = json.loads(done.stdout)
    told = {script for script, (code, text) in said.items() if code == 2 and f"needs the package '{package}" in text}
    parts = {str(SCRIPTS / name) for name in ("device_gaps.py", "graph_costs.py")}
    fine = {script for script, (code, text) in said.items() if code == 0}
    assert told and told | fine | parts == set(scripts), said
    assert all(said[script][1].count("\n") == 1 for script in told), said
