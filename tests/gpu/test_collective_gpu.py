"""The ``sm90_collective`` family on the GPU: corners of its space on odd shapes, chains of dependent launches."""

from __future__ import annotations

import collective_kernels as collective
import gpu_kernels as kernels
import pytest
from gpu_kernels import kernel

torch = pytest.importorskip("torch")

import chains  # noqa: E402

from cudal2.bench.worker import Worker  # noqa: E402
from cudal2.build.artifact import BuildResult, CompileFailure  # noqa: E402
from cudal2.problem import Problem  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BuildResult]:
    results = collective.build(kernels.cache(tmp_path_factory.mktemp("build")))
    missing = [one for one in results.values() if isinstance(one, CompileFailure) and "cannot compile" in one.reason]
    if len(missing) == len(results):
        pytest.skip(missing[0].reason)
    return {name: result for name, result in results.items() if result not in missing}


@pytest.mark.parametrize("pdl", [False, True], ids=["plain", "pdl"])
@pytest.mark.parametrize("kind", collective.KINDS, ids="-".join)
@pytest.mark.parametrize("mnk", collective.SHAPES)
def test_every_corner_is_right(
    mnk: str, kind: collective.Kind, pdl: bool, worker: Worker, built: dict[str, BuildResult]
) -> None:
    problem = Problem.parse(mnk, *kind)
    corners = [config for config, of in collective.CORNERS if of == kind and collective.key(config, kind) in built]
    legal = [config for config in corners if kernels.runnable(config, problem)]
    if not legal:
        pytest.skip("no tensor map describes row-major B or C with such rows" if corners else "not built")
    kernels.assert_right(worker, problem, legal, built, pdl)


@pytest.mark.parametrize(
    "config",
    [config for config, kind in collective.CORNERS if kind == collective.PLAIN],
    ids=lambda config: config.name,
)
def test_a_chain_of_dependent_launches_is_the_same_with_overlap_and_without(
    config: collective.Sm90CollectiveConfig, built: dict[str, BuildResult]
) -> None:
    """Of 400 launches each finds the locks of stream-K as the one before it left them."""
    key = collective.key(config, collective.PLAIN)
    if key not in built or not kernels.runnable(config, chains.PROBLEM):
        pytest.skip("not built, or more slices than K tiles")
    plain, overlapping = chains.ends(config, kernel(built[key]))
    assert torch.equal(plain, overlapping)
