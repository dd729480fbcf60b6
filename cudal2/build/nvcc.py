"""Finds nvcc and runs it: with a deadline for the whole process group, and everything it says kept in a file.

Only foreign sources need it; kernels of our own are compiled by NVRTC.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from cudal2.build.process import process_group
from cudal2.errors import ToolchainError

#: sm_90a came with CUDA 12.0.
OLDEST = (12, 0)
_RELEASE = re.compile(r"release (\d+)\.(\d+), V([\d.]+)")
_VERSION_DEADLINE_S = 30.0
REMEDY = "install a CUDA toolkit and set CUDA_HOME, or pip install nvidia-cuda-nvcc"


@dataclass(frozen=True)
class Nvcc:
    """A compiler driver.

    Attributes:
        path: The executable.
        version: For example ``13.0.88``.
    """

    path: Path
    version: str

    @classmethod
    def detect(cls) -> Nvcc:
        """The first that runs, of ``$CUDA_HOME``, ``$CUDA_PATH``, ``$PATH``, pip's nvidia-cuda-nvcc, /usr/local/cuda.

        Raises:
            ToolchainError: There is none, it does not run, or it is too old for the target.
        """
        path = next((path for path in _candidates() if os.access(path, os.X_OK) and path.is_file()), None)
        if path is None:
            raise ToolchainError(f"nvcc was not found: {REMEDY}")
        try:
            answer = subprocess.run(
                [path, "--version"], capture_output=True, text=True, timeout=_VERSION_DEADLINE_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ToolchainError(f"{path} does not run ({error}): {REMEDY}") from error
        found = _RELEASE.search(answer.stdout)
        if found is None:
            raise ToolchainError(f"{path} --version says nothing of a release: {REMEDY}")
        if (int(found.group(1)), int(found.group(2))) < OLDEST:
            raise ToolchainError(f"{path} is {found.group(3)}, older than {OLDEST[0]}.{OLDEST[1]}: {REMEDY}")
        return cls(path, found.group(3))

    def run(self, arguments: Sequence[str], log: Path, deadline_s: float) -> str:
        """Runs it to its end.

        Args:
            arguments: Everything after the program's name.
            log: Takes the command line and all output.
            deadline_s: Seconds after which it and everything it started are killed.

        Returns:
            Why it failed, in a few words; empty if it did not.
        """
        command = [str(self.path), *arguments]
        with log.open("wb") as output:
            output.write(f"{' '.join(command)}\n".encode())
            output.flush()
            try:
                with process_group(command, stdout=output, stderr=subprocess.STDOUT) as process:
                    code = process.wait(deadline_s)
            except subprocess.TimeoutExpired:
                return f"nvcc took longer than {deadline_s:g} s"
        if code < 0:
            return f"nvcc died of {signal.Signals(-code).name}"
        return f"nvcc ended with exit code {code}" if code else ""


def _candidates() -> Iterator[Path]:
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(name):
            yield Path(home) / "bin" / "nvcc"
    if found := shutil.which("nvcc"):
        yield Path(found)
    for package in ("nvidia-cuda-nvcc", "nvidia-cuda-nvcc-cu12"):
        try:
            files = metadata.files(package) or ()
        except metadata.PackageNotFoundError:
            continue
        yield from (Path(str(file.locate())) for file in files if file.as_posix().endswith("bin/nvcc"))
    yield Path("/usr/local/cuda/bin/nvcc")
