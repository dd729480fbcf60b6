"""cuBLAS and cuBLASLt on one problem: handles, workspace, and every call they offer in either layout of B."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Sequence

import torch

from cudal2.bench.baselines.baseline import LAYOUTS, LibraryCall, NotSupportedError, SavedCall
from cudal2.bench.baselines.cublaslt import ELEMENTS, PRECISIONS, LtMatmul, bindings, column_major
from cudal2.bench.baselines.enumeration import Algorithm, Enumeration
from cudal2.bench.native import GemmExArguments
from cudal2.closing import Closing
from cudal2.launch.driver import LaunchError
from cudal2.problem import Layout, Problem

logger = logging.getLogger(__name__)

#: CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION: fp32 stays fp32 across a split of K, as it must for us.
_EXACT_REDUCTION_MATH = 16
_DEFAULT_MATH = 0
_DEFAULT_ALGORITHM = -1


def library_errors() -> tuple[type[Exception], ...]:
    """What a library call that fails raises."""
    cublas, cublaslt = bindings()
    return cublas.cuBLASError, cublaslt.cuBLASLtError, LaunchError, NotSupportedError, torch.OutOfMemoryError


def wake(problem: Problem, device: torch.device, workspace_bytes: int, heuristic_results: int) -> None:
    """Asks cuBLASLt's heuristic, whose first answer takes a process 80 ms of host time: for a thread of its own.

    Who asks again is told what it has to say.
    """
    torch.cuda.set_device(device)
    for layout in LAYOUTS:
        matmul = LtMatmul(problem, layout, workspace_bytes)
        try:
            matmul.algorithms(heuristic_results)
        finally:
            matmul.close()


class EnumeratedCalls:
    """An enumeration of algorithms as calls.

    Args:
        enumeration: Of one layout.
        call: Makes the call of an algorithm.
    """

    def __init__(self, enumeration: Enumeration, call: Callable[[Algorithm], LibraryCall]) -> None:
        self._enumeration = enumeration
        self._call = call

    @property
    def checked(self) -> int:
        """Configurations the library was asked about so far."""
        return self._enumeration.checked

    def near(self, leaders: Sequence[LibraryCall]) -> Iterator[LibraryCall]:
        """Calls not given before, nearest to the leaders (best first) first."""
        configurations = [leader.algorithm.configuration for leader in leaders if leader.algorithm is not None]
        return map(self._call, self._enumeration.near(configurations))


class VendorLibraries(Closing):
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
        self._offered: dict[Layout, list[Algorithm]] = {}
        self._matmuls = {layout: LtMatmul(problem, layout, workspace_bytes) for layout in LAYOUTS}

    def close(self) -> None:
        """Gives handles and workspace back; no call may be running."""
        for matmul in self._matmuls.values():
            matmul.close()
        self._cublas.destroy(self._handle)

    def cublas(self, layout: Layout) -> LibraryCall:
        """``cublasGemmEx`` with the library's own choice of algorithm."""
        view, precision = column_major(self.problem, layout), PRECISIONS[self.problem.acc]
        element = ELEMENTS[self.problem.dtype]
        one, zero = precision.one.ctypes.data, precision.zero.ctypes.data

        def enqueue(a: int, b: int, c: int, stream: int) -> None:
            self._use(stream)
            self._cublas.gemm_ex(
                self._handle, view.op_first, 0, view.m, view.n, view.k, one, b, element, view.first[2],
                a, element, view.second[2], zero, c, element, view.out[2], precision.compute, _DEFAULT_ALGORITHM,
            )  # fmt: skip

        version = self._cublas.get_version(self._handle)
        detail = f"cublasGemmEx {version} layout={layout} compute={precision.compute} math={self._math}"
        arguments = GemmExArguments(
            int(self._handle), one, zero, view.op_first, view.m, view.n, view.k, view.first[2], view.second[2],
            view.out[2], element, precision.compute, _DEFAULT_ALGORITHM,
        )  # fmt: skip
        return LibraryCall(f"cublas_{layout}", detail, layout, enqueue, arguments=arguments)

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
        self._offered[layout] = algorithms
        return [self._call(layout, algorithm) for algorithm in algorithms]

    def enumerated(self) -> dict[Layout, EnumeratedCalls]:
        """Calls of cuBLASLt beyond its own answers, for each layout that :meth:`cublaslt` found answers for."""
        found = {}
        for layout, algorithms in self._offered.items():
            try:
                enumeration = Enumeration(self._matmuls[layout], algorithms)
            except bindings()[1].cuBLASLtError as error:
                logger.warning("cuBLASLt lists no algorithms for layout %s: %s", layout, error)
                continue
            found[layout] = EnumeratedCalls(enumeration, functools.partial(self._call, layout))
        return found

    def restore(self, saved: SavedCall) -> LibraryCall:
        """The call that another process, or an earlier object, chose.

        Raises:
            NotSupportedError: Another version of the library is loaded, or it refuses the algorithm for this problem.
        """
        matmul = self._matmuls[saved.layout]
        if matmul.version != saved.library_version:
            raise NotSupportedError(
                f"{saved.name} was chosen with cuBLASLt {saved.library_version}; {matmul.version} is loaded"
            )
        if matmul.checked(saved.algorithm.data) is None:
            raise NotSupportedError(f"cuBLASLt refuses the algorithm chosen as {saved.name}: {saved.detail}")
        call = self._call(saved.layout, saved.algorithm)
        return dataclasses.replace(call, name=saved.name, detail=saved.detail)

    def _call(self, layout: Layout, algorithm: Algorithm) -> LibraryCall:
        matmul, workspace = self._matmuls[layout], self._workspace.data_ptr()
        launch = matmul.bound(algorithm)

        def enqueue(a: int, b: int, c: int, stream: int) -> None:
            launch(a, b, c, workspace, stream)

        detail = f"cublasLtMatmul {matmul.version} layout={layout} {matmul.describe(algorithm)}"
        arguments = matmul.arguments(algorithm, workspace)
        name = f"cublaslt_heuristic_{layout}"
        return LibraryCall(name, detail, layout, enqueue, algorithm, matmul.version, arguments)

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
