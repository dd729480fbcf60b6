"""Torch operations that are asked for over and over: replayed as one graph, where each costs the host some 20 us."""

from __future__ import annotations

from collections.abc import Callable

import torch

#: Runs before the operations are recorded, which takes as long as a few: a final checks about as often and no more.
_RUNS = 32


class Recorded:
    """Operations on tensors that stay where they are; their results are overwritten by the next call.

    Args:
        work: Enqueues them on torch's current stream, and gives their result.
        device: Where; only a GPU records.
    """

    def __init__(self, work: Callable[[], torch.Tensor], device: torch.device) -> None:
        """Records nothing yet."""
        self._work = work
        self._left = _RUNS if device.type == "cuda" else -1
        self._graph: torch.cuda.CUDAGraph | None = None
        self._result: torch.Tensor | None = None

    def __call__(self) -> torch.Tensor:
        """Enqueues all of it on the current stream."""
        if self._graph is None:
            if self._left:
                self._left -= 1
                return self._work()
            self._record()
        assert self._graph is not None and self._result is not None
        self._graph.replay()
        return self._result

    def _record(self) -> None:
        """Captures on a stream of its own, into memory that only the graph uses."""
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        stream = torch.cuda.Stream(current.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="relaxed")
            try:
                self._result = self._work()
            finally:
                graph.capture_end()
        self._graph = graph
