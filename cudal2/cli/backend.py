"""Which backend a command runs on: the GPU if there is one that this version supports, else replay."""

from __future__ import annotations

import ctypes
from typing import Literal

from cudal2.arch import ARCHS, Arch, arch_of
from cudal2.errors import EnvironmentProblemError

Backend = Literal["gpu", "replay"]

_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76


def gpu_problem(device: int = 0) -> str | None:
    """Why no usable GPU is here, in one line; ``None`` if there is one. Creates no CUDA context."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver (libcuda.so.1 not found)"
    code = driver.cuInit(0)
    if code != 0:
        return f"the NVIDIA driver does not start (cuInit: error {code})"
    count = ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))
    if device >= count.value:
        return f"no GPU number {device}: the driver sees {count.value}"
    major, minor = _capability(driver, device)
    if arch_of((major, minor)) is None:
        known = ", ".join(f"{arch.capability[0]}.{arch.capability[1]}" for arch in ARCHS.values())
        return f"GPU {device} has compute capability {major}.{minor}; this version has kernels for {known}"
    return None


def gpu_arch(device: int = 0) -> Arch:
    """Architecture of a GPU that :func:`gpu_problem` finds nothing wrong with."""
    found = arch_of(_capability(ctypes.CDLL("libcuda.so.1"), device))
    assert found is not None, "gpu_problem comes first"
    return found


def _capability(driver: ctypes.CDLL, device: int) -> tuple[int, int]:
    handle, value = ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(handle), device)
    found = []
    for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, handle)
        found.append(value.value)
    return found[0], found[1]


def require_gpu(device: int = 0, advice: str = "run it on a machine with one") -> None:
    """Raises unless the GPU can be used; the message ends in the advice.

    Raises:
        EnvironmentProblemError: There is none, or not one this version supports.
    """
    problem = gpu_problem(device)
    if problem is not None:
        raise EnvironmentProblemError(f"this needs a GPU: {problem}; {advice}")


def choose_backend(wanted: str, device: int = 0) -> tuple[Backend, str]:
    """The backend to use and a line that says why.

    Raises:
        EnvironmentProblemError: ``gpu`` was asked for and there is none.
    """
    if wanted == "replay":
        return "replay", "backend: replay of recorded measurements (asked for)"
    problem = gpu_problem(device)
    if problem is None:
        return "gpu", f"backend: GPU {device}"
    if wanted == "gpu":
        require_gpu(device, "leave --backend out to replay recorded measurements, or say --backend replay")
    return "replay", f"backend: replay of recorded measurements ({problem})"
