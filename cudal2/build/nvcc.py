"""Finds nvcc and runs it: with a deadline for the whole process group, and everything it says kept in a file.

Foreign sources need it, and the one family of ours that has host code; the others are compiled by NVRTC.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
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
REMEDY = "install a CUDA toolkit and set CUDA_HOME, or pip install 'cudal2[nvcc]'"
#: CUTLASS's collectives take 30 to 60 s on a core of their own.
KERNEL_DEADLINE_S = 600.0
#: Peak of nvcc on one of them.
KERNEL_BYTES = 7 * 2**29
#: The host half calls the driver directly, which whoever loads it has loaded; nothing of it but the entries is visible.
KERNEL_FLAGS = (
    *("-std=c++17", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr", "-Xptxas", "-v", "-shared", "-Xcompiler", "-fPIC"),
    *("-Xcompiler", "-fvisibility=hidden", "-Xlinker", "-s", "-DCUTLASS_ENABLE_DIRECT_CUDA_DRIVER_CALL=1"),
)


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
        # pip's packages keep the runtime where nvcc itself does not look for it.
        libraries = self.path.resolve().parents[1] / "lib"
        beside = [f"-L{libraries}"] if (libraries / "libcudart_static.a").is_file() else []
        command = [str(self.path), *beside, *arguments]
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


def compile_kernel(
    nvcc: Nvcc, text: str, target: str, include_dirs: Sequence[Path], deadline_s: float = KERNEL_DEADLINE_S
) -> tuple[bytes, bytes, str]:
    """Compiles one source with host code in it.

    Args:
        nvcc: By what.
        text: CUDA C++.
        target: For example ``sm_90a``.
        include_dirs: Header folders, in search order.
        deadline_s: Seconds it may take.

    Returns:
        The cubin and the shared library, both empty if the source was rejected, and the log.
    """
    with tempfile.TemporaryDirectory(prefix="cudal2-nvcc-") as temporary:
        folder = Path(temporary)
        (folder / "kernel.cu").write_text(text, encoding="utf-8")
        code = f"arch=compute_{target.removeprefix('sm_')},code={target}"
        arguments = [*KERNEL_FLAGS, "-gencode", code, "--keep", "--keep-dir", temporary]
        arguments += [*(f"-I{path}" for path in include_dirs), "-o", str(folder / "kernel.so")]
        failure = nvcc.run([*arguments, str(folder / "kernel.cu")], folder / "log", deadline_s)
        # The first line is the command, whose paths are this machine's.
        log = (folder / "log").read_text(encoding="utf-8", errors="replace").partition("\n")[2]
        if failure:
            return b"", b"", f"{log}\n{failure}".strip()
        (cubin,) = (path for path in folder.glob("kernel*.cubin") if "_dlink" not in path.name)
        return cubin.read_bytes(), (folder / "kernel.so").read_bytes(), log


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
