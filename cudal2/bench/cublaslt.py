"""cuBLASLt through nvmath's bindings: one matmul's descriptors, the algorithms the library offers, and the launch.

Decides nothing about speed; ``baselines`` does. Row-major operands are given to the column-major library by computing
the transpose: C^T[n,m] = B^T[n,k] A^T[k,m].
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudal2.errors import EnvironmentProblemError
from cudal2.problem import Acc, Layout, Problem

_OP_N, _OP_T = 0, 1
#: CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: a split of K may only add up partial sums of the compute type. Partial sums
#: in the output type would be fp16 under an fp32 label.
_EXACT_REDUCTION = 2
_ANY_REDUCTION = 7


@functools.lru_cache(maxsize=1)
def bindings() -> tuple[Any, Any]:
    """The ``cublas`` and ``cublasLt`` binding modules, loaded against the process's own cuBLAS.

    Raises:
        EnvironmentProblemError: nvmath-python is missing or cannot load.
    """
    try:
        # torch first: its wheel's libcublas is then the one that nvmath finds loaded.
        import torch  # noqa: F401
        from nvmath.bindings import cublas, cublasLt
    except (ImportError, OSError, RuntimeError) as error:
        raise EnvironmentProblemError(
            f"the cuBLAS baselines need nvmath-python ({error}): run `pip install nvmath-python`"
        ) from error
    return cublas, cublasLt


@dataclass(frozen=True)
class Precision:
    """How a leaderboard's accumulator is asked of cuBLAS.

    Attributes:
        compute: ``cublasComputeType_t``.
        scale: ``cudaDataType_t`` of alpha and beta; it must match what their pointers point at.
        one: alpha.
        zero: beta.
    """

    compute: int
    scale: int
    one: np.ndarray[Any, Any]
    zero: np.ndarray[Any, Any]


#: CUBLAS_COMPUTE_32F = 68 with CUDA_R_32F = 0; CUBLAS_COMPUTE_16F = 64 with CUDA_R_16F = 2.
PRECISIONS: dict[Acc, Precision] = {
    "fp32": Precision(68, 0, np.ones(1, np.float32), np.zeros(1, np.float32)),
    "fp16": Precision(64, 2, np.ones(1, np.float16), np.zeros(1, np.float16)),
}
CUDA_R_16F = 2


@dataclass(frozen=True)
class ColumnMajor:
    """Column-major view of a row-major GEMM, as cuBLAS takes it: the first operand is our B, the second our A.

    Attributes:
        op_first: Transposition of the first operand (0 none, 1 transposed).
        m: Rows of the library's C, which are our columns.
        n: Columns of the library's C, which are our rows.
        k: Depth.
        first: Stored rows, columns and leading dimension of our B.
        second: The same of our A.
        out: The same of our C.
    """

    op_first: int
    m: int
    n: int
    k: int
    first: tuple[int, int, int]
    second: tuple[int, int, int]
    out: tuple[int, int, int]


def column_major(problem: Problem, layout: Layout) -> ColumnMajor:
    """The swap, for B row-major (``nn``) or K-major (``tn``)."""
    m, n, k = problem.m, problem.n, problem.k
    first = (n, k, n) if layout == "nn" else (k, n, k)
    return ColumnMajor(_OP_N if layout == "nn" else _OP_T, n, m, k, first, (k, m, k), (n, m, n))


@dataclass(frozen=True)
class Algorithm:
    """One algorithm the library proposed.

    Attributes:
        rank: Place in the heuristic's list, 0 is its favourite.
        pointer: Address of its ``cublasLtMatmulAlgo_t``; the matmul that listed it keeps it alive.
        workspace_bytes: Workspace it needs.
        waves: Waves as the library estimates them.
    """

    rank: int
    pointer: int
    workspace_bytes: int
    waves: float


class LtMatmul:
    """Descriptors of one problem in one layout; owns what the library allocated until :meth:`close`.

    Args:
        problem: What to compute.
        layout: How B is stored.
        workspace_bytes: Workspace the algorithms may ask for.
    """

    def __init__(self, problem: Problem, layout: Layout, workspace_bytes: int) -> None:
        self._lt = bindings()[1]
        precision = PRECISIONS[problem.acc]
        self._one, self._zero = precision.one.ctypes.data, precision.zero.ctypes.data
        self._view = column_major(problem, layout)
        self._handle = self._lt.create()
        self._desc = self._lt.matmul_desc_create(precision.compute, precision.scale)
        self._set(self._lt.matmul_desc_set_attribute, self._desc, self._attribute("TRANSA"), self._view.op_first)
        self._set(self._lt.matmul_desc_set_attribute, self._desc, self._attribute("TRANSB"), _OP_N)
        self._first, self._second, self._out = (
            self._lt.matrix_layout_create(CUDA_R_16F, *shape)
            for shape in (self._view.first, self._view.second, self._view.out)
        )
        self._workspace_bytes = workspace_bytes
        self._reduction = _EXACT_REDUCTION if problem.acc == "fp32" else _ANY_REDUCTION
        self._kept: list[np.ndarray[Any, Any]] = []

    @property
    def version(self) -> int:
        """Version of the library that is loaded."""
        return int(self._lt.get_version())

    def _attribute(self, name: str) -> int:
        return int(getattr(self._lt.MatmulDescAttribute, name))

    @staticmethod
    def _set(setter: Any, target: int, attribute: int, value: int, dtype: type = np.int32) -> None:
        buffer: np.ndarray[Any, Any] = np.array([value], dtype=dtype)
        setter(target, attribute, buffer.ctypes.data, buffer.nbytes)

    def algorithms(self, count: int) -> list[Algorithm]:
        """Up to ``count`` algorithms in the library's order; those it marks unusable are left out.

        Raises:
            cuBLASLtError: The library supports nothing here.
        """
        lt = self._lt
        preference = lt.matmul_preference_create()
        try:
            names = lt.MatmulPreferenceAttribute
            setter = lt.matmul_preference_set_attribute
            self._set(setter, preference, int(names.MAX_WORKSPACE_BYTES), self._workspace_bytes, np.uint64)
            self._set(setter, preference, int(names.REDUCTION_SCHEME_MASK), self._reduction, np.uint32)
            results = np.zeros(count, dtype=lt.matmul_heuristic_result_dtype)
            found = np.zeros(1, np.int32)
            lt.matmul_algo_get_heuristic(
                self._handle, self._desc, self._first, self._second, self._out, self._out, preference, count,
                results.ctypes.data, found.ctypes.data,
            )  # fmt: skip
        finally:
            lt.matmul_preference_destroy(preference)
        # Every algorithm ever handed out points into its own array.
        self._kept.append(results)
        stride = results.itemsize
        return [
            Algorithm(rank, results.ctypes.data + rank * stride, int(row["workspace_size"]), float(row["waves_count"]))
            for rank, row in enumerate(results[: int(found[0])])
            if row["state"] == 0
        ]

    def launch(self, algorithm: Algorithm, a: int, b: int, c: int, workspace: int, stream: int) -> None:
        """Enqueues C = A B on ``stream``; pointers are device addresses.

        Raises:
            cuBLASLtError: The library refused.
        """
        self._lt.matmul(
            self._handle, self._desc, self._one, b, self._first, a, self._second,
            self._zero, c, self._out, c, self._out, algorithm.pointer, workspace,
            self._workspace_bytes, stream,
        )  # fmt: skip

    def describe(self, algorithm: Algorithm) -> str:
        """The algorithm's own parameters, for the record."""
        parts = [f"rank={algorithm.rank}"]
        for attribute in self._lt.MatmulAlgoConfigAttribute:
            buffer = np.zeros(1, self._lt.get_matmul_algo_config_attribute_dtype(int(attribute)))
            written = np.zeros(1, np.uint64)
            try:
                self._lt.matmul_algo_config_get_attribute(
                    algorithm.pointer, int(attribute), buffer.ctypes.data, buffer.nbytes, written.ctypes.data
                )
            except self._lt.cuBLASLtError:
                continue  # this library version does not know the attribute
            parts.append(f"{attribute.name.lower()}={self._value_name(attribute.name, int(buffer[0]))}")
        return " ".join([*parts, f"workspace={algorithm.workspace_bytes}"])

    def _value_name(self, attribute: str, value: int) -> str:
        """Readable name where the library has an enumeration for it; newer libraries may know values it lacks."""
        enums = {"TILE_ID": "MatmulTile", "STAGES_ID": "MatmulStages", "CLUSTER_SHAPE_ID": "ClusterShape"}
        enum = getattr(self._lt, enums.get(attribute, ""), None)
        try:
            return str(enum(value).name) if enum else str(value)
        except ValueError:
            return str(value)

    def close(self) -> None:
        """Gives the library's objects back."""
        for layout in (self._first, self._second, self._out):
            self._lt.matrix_layout_destroy(layout)
        self._lt.matmul_desc_destroy(self._desc)
        self._lt.destroy(self._handle)
