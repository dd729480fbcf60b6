"""Our own kernel as a contestant: one loaded configuration bound to one rotation of buffer sets."""

from __future__ import annotations

from cudal2.bench.inputs import BufferSets
from cudal2.bench.native import Submitter, bound_submitter
from cudal2.launch.driver import ZeroedBuffer
from cudal2.launch.kernel import Allocate, LoadedKernel
from cudal2.launch.tensor_map import MapCache
from cudal2.space.config import KernelConfig


class KernelContestant:
    """Launches one configuration on the buffer sets.

    Args:
        kernel: Its cubin, loaded.
        config: The configuration.
        sets: Buffers to launch on; their problem is the one that is solved.
        sm_count: Multiprocessors a persistent grid fills.
        pdl: Whether launches carry the programmatic-dependent-launch attribute.
        maps: Tensor maps of these buffers, shared between candidates.
        allocate: Where a workspace comes from.

    Raises:
        LaunchError: The driver cannot encode a tensor map for this problem.
    """

    def __init__(
        self,
        kernel: LoadedKernel,
        config: KernelConfig,
        sets: BufferSets,
        sm_count: int,
        pdl: bool = False,
        maps: MapCache | None = None,
        allocate: Allocate = ZeroedBuffer,
    ) -> None:
        """Prepares every launch; nothing is left to do per launch but to submit."""
        self.config = config
        self._launch = kernel.on(config, sets.problem, sm_count, pdl, allocate)
        self._params = self._launch.params(sets.a_pointers, sets.b_pointers, sets.c_pointers, maps)

    @property
    def name(self) -> str:
        """The kernel family."""
        return self.config.family

    @property
    def detail(self) -> str:
        """The configuration."""
        return self.config.name

    def submitter(self, stream: int) -> Submitter:
        """How C enqueues it."""
        return bound_submitter(self._launch, self._params, stream)

    def launch(self, set_index: int, stream: int) -> None:
        """Enqueues one set."""
        self._launch.launch(self._params.kernel_params(set_index), stream)
