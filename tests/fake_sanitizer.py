"""A stand-in for compute-sanitizer: an executable that plays what a test tells it for each case, and launches nothing.

``cases`` maps the build name of a configuration to what happens there: ``report`` prints the text given, ``die`` ends
the process, ``fault`` loses the context, ``hang`` says nothing more, ``interrupt`` is the user's Ctrl-C. Everything
else is clean.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

VERSION = "NVIDIA (R) Compute Sanitizer\nCopyright (c) 2020-2025 NVIDIA Corporation\nVersion 2025.3.1.0 (build 1)\n"
MEMCHECK = """\
========= Invalid __global__ write of size 16 bytes
=========     at cudal2_gemm+0x2b0
=========     by thread (3,0,0) in block (0,0,0)
=========     Access at 0x7f0000000400 is out of bounds
========= Invalid __global__ write of size 16 bytes
=========     at cudal2_gemm+0x2b0
=========     by thread (4,0,0) in block (0,0,0)
=========     Access at 0x7f0000000410 is out of bounds
"""
RACECHECK = """\
========= Error: Race reported between Write access at cudal2_gemm+0x140
=========     and Read access at cudal2_gemm+0xe0 [4 hazards]
=========
"""
SYNCCHECK = """\
========= Barrier error detected. Missing wait.
=========     at cudal2_gemm+0x590
=========     by thread (0,0,0) in block (17,0,0)
"""
_PROGRAM = """#!{python}
import json, os, pickle, signal, sys, time
sys.path[:0] = {path}
if "--version" in sys.argv:
    print({version!r})
    sys.exit()
played = json.loads({cases!r})
with open({asked!r}, "a") as asked:
    asked.write(json.dumps(sys.argv[1:]) + "\\n")
print("========= COMPUTE-SANITIZER")
print({before!r}, end="")
errors = 0
for number, case in enumerate(pickle.load(open(sys.argv[-2], "rb"))):
    print(f"cudal2 case {{number}}", flush=True)
    kind, text = played.get(case.config.build_name, ("clean", ""))
    print(text, end="")
    errors += text.count("\\n========= ") + bool(text)
    if kind in ("hang", "interrupt"):
        sys.stdout.flush()
        if kind == "interrupt":
            os.kill(os.getppid(), signal.SIGINT)
        time.sleep(600)
    if kind == "fault":
        print(f"cudal2 done {{number}} cuCtxSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS (700)")
        print("========= ERROR SUMMARY: 2 errors", flush=True)
        os._exit(4)
    if kind == "die":
        print("========= ERROR SUMMARY: 1 error", flush=True)
        sys.exit(9)
    print(f"cudal2 done {{number}} " + ("7 of 9 elements are wrong" if kind == "wrong" else ""), flush=True)
print(f"========= ERROR SUMMARY: {{errors}} errors")
"""


def install(
    folder: Path,
    cases: dict[str, tuple[str, str]] | None = None,
    before: str = "",
    version: str = VERSION,
) -> Path:
    """``folder/compute-sanitizer``; every call but ``--version`` adds its arguments to ``folder/asked`` as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "compute-sanitizer"
    program = _PROGRAM.format(
        python=sys.executable,
        path=sys.path,
        version=version,
        cases=json.dumps(cases or {}),
        asked=str(folder / "asked"),
        before=before,
    )
    path.write_text(program)
    path.chmod(0o755)
    return path


def asked(folder: Path) -> list[list[str]]:
    """The arguments of every run."""
    return [json.loads(line) for line in (folder / "asked").read_text().splitlines()]
