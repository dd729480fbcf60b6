"""Our own failures, one class per kind of mistake; a candidate's failure is a recorded value instead.

Every message says what happened and what to do about it, in one line.
"""


class Cudal2Error(Exception):
    """Base of every error this package raises on purpose; ``exit_code`` is what the commands return."""

    exit_code = 2


class UsageError(Cudal2Error):
    """An argument, shape or setting that cannot mean anything."""


class EnvironmentProblemError(Cudal2Error):
    """Something the machine lacks: a GPU, a library, write access."""


class ToolchainError(EnvironmentProblemError):
    """NVRTC or the CUTLASS/CUDA headers are missing or unusable."""


class CacheError(EnvironmentProblemError):
    """A build-cache entry that is neither complete nor absent."""


class RecordError(Cudal2Error):
    """A record or recording that cannot be read, or two that must not be mixed."""


class TableError(Cudal2Error):
    """A kernel table that is corrupt or made for another device, accumulator or layout."""


class NotLoadedError(Cudal2Error):
    """A kernel is needed while a CUDA graph is captured, and loading it then would spoil the capture."""


class ReplayMissError(Cudal2Error):
    """A configuration was asked of a recording that does not hold it."""


class WorkerError(Cudal2Error):
    """The GPU worker process could not be started or brought back."""


class WrongResultError(Cudal2Error):
    """A kernel that was asked for by name returned a wrong result."""

    exit_code = 1


class NothingValidError(Cudal2Error):
    """Every candidate was ruled out or failed; the message carries the histogram of reasons."""

    exit_code = 3


def first_line(error: BaseException) -> str:
    """The first line of a foreign error that says something, or its type's name: what fits into one of our lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
