"""cuBLASLt through nvmath's bindings: one matmul's descriptors, the algorithms there are for it, and the launch.

Decides nothing about speed; ``autotune`` does, and ``enumeration`` in which order algorithms are tried. Row-major
operands are given to the column-major library by computing the transpose: C^T[n,m] = B^T[n,k] A^T[k,m].
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cudal2.bench.baselines.enumeration import Algorithm, Capabilities, Configuration
from cudal2.bench.baselines.lt_attributes import ALGORITHM_BYTES, LtAttributes
from cudal2.bench.native import MatmulArguments
from cudal2.errors import EnvironmentProblemError
from cudal2.problem import Acc, Dtype, Layout, Problem

_OP_N, _OP_T = 0, 1
#: CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: a split of K may only add up partial sums of the compute type. Partial sums
#: in the output type would be half precision under an fp32 label.
_EXACT_REDUCTION = 2
_ANY_REDUCTION = 7
#: More than any version has; the library answers with fewer.
_MOST_ALGORITHM_IDS = 256


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
#: ``cudaDataType_t`` of A, B and C: CUDA_R_16F and CUDA_R_16BF.
ELEMENTS: dict[Dtype, int] = {"fp16": 2, "bf16": 14}


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


class LtMatmul:
    """Descriptors of one problem in one layout; owns what the library allocated until :meth:`close`.

    Args:
        problem: What to compute.
        layout: How B is stored.
        workspace_bytes: Workspace the algorithms may ask for.
    """

    def __init__(self, problem: Problem, layout: Layout, workspace_bytes: int) -> None:
        self._lt = bindings()[1]
        precision, element = PRECISIONS[problem.acc], ELEMENTS[problem.dtype]
        self._one, self._zero = precision.one.ctypes.data, precision.zero.ctypes.data
        self._view = column_major(problem, layout)
        self._handle = self._lt.create()
        self._desc = self._lt.matmul_desc_create(precision.compute, precision.scale)
        self._set(self._lt.matmul_desc_set_attribute, self._desc, self._attribute("TRANSA"), self._view.op_first)
        self._set(self._lt.matmul_desc_set_attribute, self._desc, self._attribute("TRANSB"), _OP_N)
        self._first, self._second, self._out = (
            self._lt.matrix_layout_create(element, *shape)
            for shape in (self._view.first, self._view.second, self._view.out)
        )
        self._workspace_bytes = workspace_bytes
        self._reduction = _EXACT_REDUCTION if problem.acc == "fp32" else _ANY_REDUCTION
        self._types = (precision.compute, precision.scale, *[element] * 4)
        self._attributes = LtAttributes(self._lt)
        self._initial: dict[int, bytes] = {}
        self._held: dict[bytes, np.ndarray[Any, Any]] = {}

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
        return [
            self._algorithm(rank, row["algo"].tobytes(), row)
            for rank, row in enumerate(results[: int(found[0])])
            if row["state"] == 0
        ]

    def capabilities(self) -> list[Capabilities]:
        """What every algorithm of the library that takes these data types can be set to.

        Raises:
            cuBLASLtError: The library lists none.
        """
        found = {}
        for number in map(int, self._lt.matmul_algo_get_ids(self._handle, *self._types, _MOST_ALGORITHM_IDS)):
            data: np.ndarray[Any, Any] = np.zeros(ALGORITHM_BYTES, np.uint8)
            try:
                self._lt.matmul_algo_init(self._handle, *self._types, number, data.ctypes.data)
            except self._lt.cuBLASLtError:
                continue  # listed, but not for this GPU
            self._initial[number] = data.tobytes()
            found[number] = Capabilities(number, self._attributes.options(data, self._view.k, self._reduction))
        return list(found.values())

    def configured(self, configuration: Configuration) -> Algorithm | None:
        """An algorithm of :meth:`capabilities` so configured; ``None`` if the library's check refuses it here."""
        data = np.frombuffer(self._initial[configuration.id], np.uint8).copy()
        return self.checked(data.tobytes()) if self._attributes.configure(data, configuration) else None

    def checked(self, data: bytes) -> Algorithm | None:
        """An algorithm's bytes as an :class:`Algorithm`; ``None`` if the library's check refuses them here."""
        held = np.frombuffer(data, np.uint8).copy()
        result = np.zeros(1, self._lt.matmul_heuristic_result_dtype)
        try:
            self._lt.matmul_algo_check(
                self._handle, self._desc, self._first, self._second, self._out, self._out, held.ctypes.data,
                result.ctypes.data,
            )  # fmt: skip
        except self._lt.cuBLASLtError:
            return None
        usable = result[0]["state"] == 0 and result[0]["workspace_size"] <= self._workspace_bytes
        return self._algorithm(None, data, result[0]) if usable else None

    def bound(self, algorithm: Algorithm) -> Callable[[int, int, int, int, int], None]:
        """A call that enqueues C = A B: takes the addresses of A, B, C and the workspace, and a stream.

        The call raises ``cuBLASLtError`` where the library refuses.
        """
        pointer = self._hold(algorithm)

        def launch(a: int, b: int, c: int, workspace: int, stream: int) -> None:
            self._lt.matmul(
                self._handle, self._desc, self._one, b, self._first, a, self._second,
                self._zero, c, self._out, c, self._out, pointer, workspace,
                self._workspace_bytes, stream,
            )  # fmt: skip

        return launch

    def arguments(self, algorithm: Algorithm, workspace: int) -> MatmulArguments:
        """What the call of :meth:`bound` passes on, for callers outside Python; valid as long as this matmul."""
        return MatmulArguments(
            int(self._handle), int(self._desc), self._one, int(self._first), int(self._second), self._zero,
            int(self._out), self._hold(algorithm), workspace, self._workspace_bytes,
        )  # fmt: skip

    def _hold(self, algorithm: Algorithm) -> int:
        """Address of the algorithm's bytes: the library reads them at every launch, so they live as long as this."""
        held = self._held.setdefault(algorithm.data, np.frombuffer(algorithm.data, np.uint8).copy())
        return int(held.ctypes.data)

    def describe(self, algorithm: Algorithm) -> str:
        """The algorithm's own parameters, for the record."""
        rank = "enumerated" if algorithm.rank is None else algorithm.rank
        configuration = self._attributes.describe(algorithm.configuration)
        return f"rank={rank} {configuration} workspace={algorithm.workspace_bytes}"

    def _algorithm(self, rank: int | None, data: bytes, result: Any) -> Algorithm:
        configuration = self._attributes.configuration(np.frombuffer(data, np.uint8).copy())
        return Algorithm(rank, data, configuration, int(result["workspace_size"]), float(result["waves_count"]))

    def close(self) -> None:
        """Gives the library's objects back."""
        for layout in (self._first, self._second, self._out):
            self._lt.matrix_layout_destroy(layout)
        self._lt.matmul_desc_destroy(self._desc)
        self._lt.destroy(self._handle)
