"""cuBLAS and cuBLASLt on one problem: handles, workspace, and every call they offer in either layout of B."""

from __future__ import annotations

from types import TracebackType

import torch

from cudal2.bench.baselines import LAYOUTS, LibraryCall, NotSupportedError
from cudal2.bench.cublaslt import CUDA_R_16F, PRECISIONS, Algorithm, LtMatmul, bindings, column_major
from cudal2.launch.driver import LaunchError
from cudal2.problem import Layout, Problem

#: CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION: fp32 stays fp32 across a split of K, as it must for us.
_EXACT_REDUCTION_MATH = 16
_DEFAULT_MATH = 0
_DEFAULT_ALGORITHM = -1


def library_errors() -> tuple[type[Exception], ...]:
    """What a library call that fails raises."""
    cublas, cublaslt = bindings()
    return cublas.cuBLASError, cublaslt.cuBLASLtError, LaunchError, NotSupportedError, torch.OutOfMemoryError


class VendorLibraries:
    """Everything the two libraries offer for one problem; a context manager.

    Args:
        problem: What to compute; its own layout plays no part.
        device: Where the workspace lives.
        workspace_bytes: Workspace each call may use.
        heuristic_results: Most algorithms to ask cuBLASLt for, per layout.

    Raises:
        EnvironmentProblemError: nvmath-python is missing.
    """

    def __init__(
        self, problem: Problem, device: torch.device | str, workspace_bytes: int, heuristic_results: int
    ) -> None:
        self.problem = problem
        self._results = heuristic_results
        self._workspace = torch.empty(workspace_bytes, dtype=torch.uint8, device=device)
        self._cublas = bindings()[0]
        self._handle = self._cublas.create()
        self._stream = -1
        self._matmuls = {layout: LtMatmul(problem, layout, workspace_bytes) for layout in LAYOUTS}

    def __enter__(self) -> VendorLibraries:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives handles and workspace back; no call may be running."""
        for matmul in self._matmuls.values():
            matmul.close()
        self._cublas.destroy(self._handle)

    def cublas(self, layout: Layout) -> LibraryCall:
        """``cublasGemmEx`` with the library's own choice of algorithm."""
        view, precision = column_major(self.problem, layout), PRECISIONS[self.problem.acc]
        one, zero = precision.one.ctypes.data, precision.zero.ctypes.data

        def enqueue(a: int, b: int, c: int, stream: int) -> None:
            self._use(stream)
            self._cublas.gemm_ex(
                self._handle, view.op_first, 0, view.m, view.n, view.k, one, b, CUDA_R_16F, view.first[2],
                a, CUDA_R_16F, view.second[2], zero, c, CUDA_R_16F, view.out[2], precision.compute, _DEFAULT_ALGORITHM,
            )  # fmt: skip

        version = self._cublas.get_version(self._handle)
        detail = f"cublasGemmEx {version} layout={layout} compute={precision.compute} math={self._math}"
        return LibraryCall(f"cublas_{layout}", detail, layout, enqueue)

    def cublaslt(self, layout: Layout) -> list[LibraryCall]:
        """Answers of cuBLASLt in its own order, the first being ``cublaslt_heuristic``.

        Raises:
            NotSupportedError: It has none, or refused to answer.
        """
        matmul = self._matmuls[layout]
        try:
            algorithms = matmul.algorithms(self._results)
        except bindings()[1].cuBLASLtError as error:
            raise NotSupportedError(f"cuBLASLt has no algorithm for layout {layout}: {error}") from error
        if not algorithms:
            raise NotSupportedError(f"cuBLASLt has no algorithm for layout {layout}")
        return [self._call(matmul, algorithm, layout) for algorithm in algorithms]

    def _call(self, matmul: LtMatmul, algorithm: Algorithm, layout: Layout) -> LibraryCall:
        workspace = self._workspace.data_ptr()

        def enqueue(a: int, b: int, c: int, stream: int) -> None:
            matmul.launch(algorithm, a, b, c, workspace, stream)

        detail = f"cublasLtMatmul {matmul.version} layout={layout} {matmul.describe(algorithm)}"
        return LibraryCall(f"cublaslt_heuristic_{layout}", detail, layout, enqueue)

    @property
    def _math(self) -> int:
        return _EXACT_REDUCTION_MATH if self.problem.acc == "fp32" else _DEFAULT_MATH

    def _use(self, stream: int) -> None:
        """Setting a stream resets the workspace, so the two go together."""
        if stream != self._stream:
            self._cublas.set_stream(self._handle, stream)
            self._cublas.set_workspace(self._handle, self._workspace.data_ptr(), self._workspace.nbytes)
            self._cublas.set_math_mode(self._handle, self._math)
            self._stream = stream
