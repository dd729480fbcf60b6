"""What the GPU is, how fast it runs at the moment, and whose turn it is on it."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import math
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cudal2.bench.baselines import cublaslt
from cudal2.errors import EnvironmentProblemError

try:
    import pynvml
except ImportError:  # clocks are then not recorded, and GPUs are locked by index
    pynvml = None

logger = logging.getLogger(__name__)

UNKNOWN = "unknown"


@dataclass(frozen=True)
class DeviceInfo:
    """Facts about the GPU and its software that a measurement depends on.

    Attributes:
        name: As the driver gives it.
        capability: Compute capability (major, minor).
        sm_count: Multiprocessors.
        memory_bytes: Device memory.
        l2_bytes: L2 cache.
        driver: Driver version.
        cuda: CUDA runtime version torch was built for.
        cublaslt: cuBLASLt version.
        uuid_sha256: Tells two GPUs apart without naming one.
    """

    name: str
    capability: tuple[int, int]
    sm_count: int
    memory_bytes: int
    l2_bytes: int
    driver: str
    cuda: str
    cublaslt: str
    uuid_sha256: str


@dataclass(frozen=True)
class ClockSample:
    """NVML's view at one moment; ``None`` where it has none."""

    sm_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    throttle: int | None = None


def describe(device_index: int) -> DeviceInfo:
    """Asks torch, NVML and cuBLASLt; call in the process that owns the CUDA context."""
    properties = torch.cuda.get_device_properties(device_index)
    uuid = str(getattr(properties, "uuid", device_index))
    return DeviceInfo(
        name=properties.name,
        capability=(properties.major, properties.minor),
        sm_count=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        l2_bytes=properties.L2_cache_size,
        driver=_driver_version(),
        cuda=str(torch.version.cuda),
        cublaslt=_cublaslt_version(),
        uuid_sha256=hashlib.sha256(uuid.encode()).hexdigest()[:16],
    )


class Clocks:
    """Reads NVML for one GPU; without NVML every sample is empty.

    Args:
        device_index: Index in this process, ``CUDA_VISIBLE_DEVICES`` applied.
    """

    def __init__(self, device_index: int) -> None:
        """Finds the GPU by UUID, since NVML's order is not CUDA's."""
        self._handle = _nvml_handle(device_index)
        self._recent = ClockSample()
        self._read_at = -math.inf

    def recent(self, max_age_s: float) -> ClockSample:
        """The last sample if it is no older than that, else a new one: NVML may take as long as a measurement."""
        if time.monotonic() - self._read_at > max_age_s:
            self._recent = self.sample()
            self._read_at = time.monotonic()
        return self._recent

    def sample(self) -> ClockSample:
        """Clock, power, temperature and throttle reasons now."""
        if self._handle is None:
            return ClockSample()
        reads = (
            lambda: pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_SM),
            lambda: pynvml.nvmlDeviceGetPowerUsage(self._handle) / 1e3,
            lambda: pynvml.nvmlDeviceGetTemperature(self._handle, pynvml.NVML_TEMPERATURE_GPU),
            lambda: pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle),
        )
        return ClockSample(*(_read(read) for read in reads))


def _read(read: Any) -> Any:
    try:
        return read()
    except pynvml.NVMLError:
        return None


def _nvml_handle(device_index: int) -> Any:
    if pynvml is None:
        return None
    try:
        pynvml.nvmlInit()
        uuid = getattr(torch.cuda.get_device_properties(device_index), "uuid", None)
        if uuid is None:
            return pynvml.nvmlDeviceGetHandleByIndex(device_index)
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
    except pynvml.NVMLError as error:
        logger.warning("NVML does not answer (%s): clocks and power are not recorded", error)
        return None


def wake_nvml() -> None:
    """NVML's first call, which takes some 50 ms: for a thread of its own. Later ones say what is wrong with it."""
    if pynvml is not None:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlInit()


def _driver_version() -> str:
    if pynvml is None:
        return UNKNOWN
    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return UNKNOWN


def _cublaslt_version() -> str:
    try:
        return str(cublaslt.bindings()[1].get_version())
    except EnvironmentProblemError:
        return UNKNOWN


def gpu_key(device_index: int) -> str:
    """What this machine's processes agree to call the GPU; creates no CUDA context."""
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    name = visible[device_index] if device_index < len(visible) else str(device_index)
    if name.isdigit() and pynvml is not None:
        try:
            pynvml.nvmlInit()
            return str(pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(int(name))))
        except pynvml.NVMLError:
            pass  # no driver here: the index has to do
    return name


#: Locks this process holds, and how often: a worker may be asked something while it yields results.
_held: dict[Path, int] = {}


@contextmanager
def gpu_lock(key: str, folder: Path | None = None) -> Iterator[None]:
    """Holds the GPU against other cudal2 processes of this machine; waits for its turn and says so.

    The kernel drops the lock with its holder, so a killed process blocks nobody. Within a process it may be nested.

    Args:
        key: From :func:`gpu_key`.
        folder: Where lock files lie; the system's temporary folder by default.

    Raises:
        EnvironmentProblemError: The lock file cannot be opened.
    """
    path = (folder or Path(tempfile.gettempdir())) / f"cudal2-gpu-{hashlib.sha256(key.encode()).hexdigest()[:16]}.lock"
    descriptor = _locked(path, key) if not _held.get(path) else None
    _held[path] = _held.get(path, 0) + 1
    try:
        yield
    finally:
        _held[path] -= 1
        if descriptor is not None:
            os.close(descriptor)


def _locked(path: Path, key: str) -> int:
    descriptor = _open_shared(path)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or UNKNOWN
            logger.warning("GPU %s is in use by process %s: waiting for it (lock %s)", key, holder, path)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _open_shared(path: Path) -> int:
    """Opens a file that users of one machine share, whatever the umask of the first."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise EnvironmentProblemError(f"cannot open the GPU lock {path} ({error.strerror}): remove it") from error
    if os.fstat(descriptor).st_uid == os.getuid():
        os.fchmod(descriptor, 0o666)
    return descriptor
