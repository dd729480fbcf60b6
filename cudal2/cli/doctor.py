"""``cudal2 doctor``: what each job needs, what of it is missing here, and the command that fixes it."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from cudal2.bench.profile import ncu
from cudal2.build import host, nvcc
from cudal2.cli import arguments as shared
from cudal2.cli.backend import gpu_arch, gpu_problem
from cudal2.cli.output import note, pip_install, print_json, print_table
from cudal2.errors import Cudal2Error, EnvironmentProblemError
from cudal2.paths import cache_dir, configs_dir, data_dir, kernels_dir

_EPILOG = """jobs: table (read tables), replay (train, no GPU), build (compile kernels), gpu (measure),
      collective (compile family sm90_collective), report (plots);
      server (eval --mode server), foreign (eval --source) and profile (counters), each with all of gpu
examples:
  cudal2 doctor                 everything; exit code 2 only if the jobs that need no GPU cannot run
  cudal2 doctor --need gpu      what measuring needs; exit code 2 unless this machine can"""

JOBS = ("table", "replay", "build", "collective", "gpu", "server", "foreign", "profile", "report")
#: Jobs that need all that measuring needs, and more.
_ON_A_GPU = ("server", "foreign", "profile")


@dataclass(frozen=True)
class Check:
    """One finding.

    Attributes:
        name: What was looked at.
        jobs: What needs it.
        ok: Whether it is there and usable.
        found: Version or place, or what is wrong.
        fix: Command or step that mends it; empty if fine.
    """

    name: str
    jobs: tuple[str, ...]
    ok: bool
    found: str
    fix: str = ""


def add(commands: Any) -> argparse.ArgumentParser:
    """Registers the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor", help="what is missing here and the command that fixes it", description=__doc__, epilog=_EPILOG
    )
    shared.add_arch(parser)
    parser.add_argument("--need", choices=JOBS, action="append", help="look at this job only; may be repeated")
    shared.add_json(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Runs the command."""
    asked = arguments.need or ("table", "replay", "build")
    needed = set().union(*map(_parts, asked))
    checks = [check for check in examine(arguments.arch) if not arguments.need or needed & set(check.jobs)]
    if arguments.json:
        print_json([asdict(check) for check in checks])
    else:
        print_table(
            ("", "what", "needed for", "found"),
            [("ok" if c.ok else "MISSING", c.name, ",".join(c.jobs), c.found) for c in checks],
        )
        for check in checks:
            if not check.ok:
                note(f"{check.name}: {check.fix}")
    missing = [check for check in checks if not check.ok and needed & set(check.jobs)]
    if missing:
        broken = ", ".join(job for job in JOBS if job in asked and any(_parts(job) & set(c.jobs) for c in missing))
        names = ", ".join(check.name for check in missing)
        raise EnvironmentProblemError(f"missing for {broken}: {names}; the lines above say how to fix each")
    return 0


def _parts(job: str) -> set[str]:
    """Jobs that one takes all checks of: its own and, if it runs on a GPU, what measuring needs."""
    return {job, "gpu"} if job in _ON_A_GPU else {job}


def examine(arch: Any) -> list[Check]:
    """Every check, in the order a user meets them."""
    everything = JOBS
    return [
        _python(everything),
        _package("numpy", "numpy", everything, pip_install()),
        _package("PyYAML", "yaml", everything, pip_install()),
        _guarded("templates and settings", everything, "install cudal2 again, or run it from its checkout", _shipped),
        _guarded("kernel table", ("table",), "give one with --table, or make one with `cudal2 train`", _table),
        _guarded(
            "recording", ("replay",), "give one with --recording, or make one on a GPU with `cudal2 record`", _recording
        ),
        _package("pyarrow", "pyarrow", ("replay",), pip_install("records")),
        _package("torch", "torch", ("replay", "gpu"), pip_install("train")),
        _package("gymnasium", "gymnasium", ("replay",), pip_install("train")),
        _package("stable-baselines3", "stable_baselines3", ("replay",), pip_install("train")),
        _package("cuda-core", "cuda.core", ("build", "collective", "gpu"), pip_install("build")),
        _guarded("NVRTC and headers", ("build", "collective", "gpu"), pip_install("build"), lambda: _toolchain(arch)),
        _guarded(
            "build cache", ("build", "collective", "gpu"), "set CUDAL2_CACHE_DIR to a directory you can write", _cache
        ),
        _guarded("C compiler", ("server",), host.REMEDY, _c_compiler),
        _guarded("nvcc", ("collective", "foreign"), nvcc.REMEDY, _nvcc),
        _gpu(),
        _torch_cuda(),
        _package("nvmath-python", "nvmath", ("gpu",), pip_install("cuda")),
        _package("nvidia-ml-py", "pynvml", ("gpu",), pip_install("cuda")),
        _profiler(),
        _package("matplotlib", "matplotlib", ("report",), pip_install("report")),
    ]


def _python(jobs: tuple[str, ...]) -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return Check(
        "python",
        jobs,
        sys.version_info >= (3, 10),
        version,
        "" if sys.version_info >= (3, 10) else "use Python 3.10 or newer",
    )


def _package(distribution: str, module: str, jobs: tuple[str, ...], fix: str) -> Check:
    try:
        present = importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        present = False
    if not present:
        return Check(distribution, jobs, False, "not installed", fix)
    try:
        found = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        found = "installed"
    return Check(distribution, jobs, True, found)


def _guarded(name: str, jobs: tuple[str, ...], fix: str, probe: Callable[[], str]) -> Check:
    try:
        return Check(name, jobs, True, probe())
    except (Cudal2Error, OSError, ImportError) as error:
        return Check(name, jobs, False, str(error), fix)


def _shipped() -> str:
    return f"{kernels_dir()}, {configs_dir()}"


def _table() -> str:
    from cudal2.table import KernelTable

    return f"{len(KernelTable.load(None))} shapes"


def _recording() -> str:
    found = sorted((data_dir() / "recordings").glob("*.parquet"))
    if not found:
        raise EnvironmentProblemError("none shipped with this version")
    return ", ".join(path.name for path in found)


def _toolchain(arch: Any) -> str:
    from cudal2.build.toolchain import Toolchain

    toolchain = Toolchain.detect(arch)
    return f"NVRTC {toolchain.nvrtc_version}"


def _c_compiler() -> str:
    return host.describe_compiler()


def _nvcc() -> str:
    found = nvcc.Nvcc.detect()
    return f"{found.version}, {found.path}"


def _cache() -> str:
    directory = cache_dir()
    existing = next(parent for parent in (directory, *directory.parents) if parent.exists())
    if not existing.is_dir():
        raise EnvironmentProblemError(f"{existing} is not a directory")
    # Asking the file system is surer than os.access, which root and network mounts deceive.
    with tempfile.TemporaryFile(dir=existing):
        pass
    return f"{directory}, {_free_gib(existing):.0f} GiB free"


def _free_gib(path: Path) -> float:
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize / 2**30


def _gpu() -> Check:
    problem = gpu_problem()
    fix = (
        "use a machine with a Hopper or Ampere GPU and its driver;"
        " only `record`, `eval`, `profile` and `--backend gpu` need one"
    )
    return Check("GPU", ("gpu",), problem is None, problem or gpu_arch().name, "" if problem is None else fix)


def _torch_cuda() -> Check:
    name, jobs, fix = "torch with CUDA", ("gpu",), "pip install --force-reinstall 'torch>=2.8' (the CUDA build)"
    if importlib.util.find_spec("torch") is None:
        return Check(name, jobs, False, "torch is not installed", pip_install("cuda"))
    import torch

    if torch.version.cuda is None:
        return Check(name, jobs, False, f"{torch.__version__} has no CUDA", fix)
    return Check(name, jobs, True, f"CUDA {torch.version.cuda}")


def _profiler() -> Check:
    name, jobs = "Nsight Compute", ("profile",)
    if ncu.find() is None:
        return Check(name, jobs, False, "no ncu in PATH, the CUDA toolkit or /opt/nvidia", ncu.INSTALL)
    return _guarded(name, jobs, ncu.INSTALL, lambda: ncu.Ncu.find().version)
