"""The tuned GEMM as a function on torch tensors; it looks up and launches, it never tunes."""

from cudal2.errors import EnvironmentProblemError

try:
    from cudal2.runtime.op import hgemm, reset, stats, warmup
except ModuleNotFoundError as error:
    raise EnvironmentProblemError(f"hgemm needs '{error.name}': pip install 'cudal2[cuda]'") from error

__all__ = ["hgemm", "reset", "stats", "warmup"]
