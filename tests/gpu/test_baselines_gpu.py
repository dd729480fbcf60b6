"""The libraries on a real GPU: right in both layouts and accumulators, capturable, tuned no worse than untuned."""

import dataclasses

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("nvmath")

from cudal2.bench.arena import DeviceArena, baseline_entrants  # noqa: E402
from cudal2.bench.baselines import LAYOUTS, BothLayouts  # noqa: E402
from cudal2.bench.context import ProblemContext  # noqa: E402
from cudal2.bench.device import Clocks, describe  # noqa: E402
from cudal2.bench.final import contest  # noqa: E402
from cudal2.bench.judge import FinalRequest, run_final  # noqa: E402
from cudal2.bench.libraries import VendorLibraries  # noqa: E402
from cudal2.bench.rounds import RoundLimits  # noqa: E402
from cudal2.bench.worker import Worker  # noqa: E402
from cudal2.problem import Problem  # noqa: E402
from cudal2.records.finals import group_finals  # noqa: E402
from cudal2.records.measurement import Status  # noqa: E402
from cudal2.settings import BenchSettings  # noqa: E402

pytestmark = pytest.mark.gpu

SETTINGS = BenchSettings(replay_ms=0.5, final_replay_ms=2.0, final_rounds=5, heuristic_results=20)
SHAPES = ["64_64_64", "256_512_1024", "64_64_16384", "1000_520_712"]
ALL = sorted(
    ["torch", *(f"{name}_{layout}" for name in ("cublas", "cublaslt_heuristic", "cublaslt_auto") for layout in LAYOUTS)]
)


@pytest.fixture(scope="module")
def stream():
    chosen = torch.cuda.Stream()
    with torch.cuda.stream(chosen):
        yield chosen


@pytest.fixture
def make_context(stream):
    made = []

    def make(problem):
        context = ProblemContext(problem, SETTINGS, describe(0), torch.device("cuda", 0), SETTINGS.final_replay_ms)
        made.append(context)
        return context

    yield make
    torch.cuda.synchronize()
    for context in made:
        context.close()


def libraries_for(problem):
    return VendorLibraries(problem, "cuda:0", SETTINGS.workspace_bytes, SETTINGS.heuristic_results)


@pytest.mark.parametrize("acc", ["fp32", "fp16"])
@pytest.mark.parametrize("mnk", SHAPES)
def test_every_answer_of_every_library_is_right_or_left_out(mnk, acc, make_context):
    context = make_context(Problem.parse(mnk, acc))
    buffers = BothLayouts(context.checks.sets)
    with libraries_for(context.problem) as libraries:
        for layout in LAYOUTS:
            first = libraries.cublaslt(layout)[0]
            for call in (libraries.cublas(layout), first):
                result = context.checks.run(call.on(buffers), context.stopwatch.stream)
                assert result.ok, f"{call.detail}: {result.reason}"
                assert result.max_error < 1.0


@pytest.mark.parametrize("layout", ["tn", "nn"])
def test_a_final_of_baselines_alone_times_all_of_them(layout, make_context):
    problem = Problem(512, 1024, 512, layout=layout)
    context = make_context(problem)
    arena = DeviceArena(context, Clocks(0), lambda built, config: None)
    with libraries_for(problem) as libraries:
        entrants = baseline_entrants(arena, libraries)
        rows = contest(problem, entrants, arena, RoundLimits(rounds=5))
    assert sorted(row.contestant for row in rows) == ALL
    assert {row.status for row in rows} == {Status.CORRECT}, [row.reason for row in rows if not row.ok]
    (final,) = group_finals(rows)
    best, first = final.baseline("cublaslt_auto"), final.baseline("cublaslt_heuristic")
    # Tuned over a list that begins with the heuristic's choice; 5 % for noise.
    assert best.median_us < 1.05 * first.median_us
    assert all(row.sm_clock_mhz for row in rows)
    assert "tile_id=" in best.detail and "MHz" in best.detail


def test_a_final_through_the_worker_repeats_within_its_noise():
    problem = Problem(1024, 1024, 1024)
    settings = dataclasses.replace(SETTINGS, final_replay_ms=5.0)
    with Worker(0) as worker:
        medians = []
        for seed in (0, 1):
            request = FinalRequest(problem, (), dataclasses.replace(settings, seed=seed))
            (final,) = group_finals(run_final(worker, request))
            medians.append(final.baseline("cublaslt_auto").median_us)
    # 2.1 GFLOP: under the 2.1 us of the burst rate is impossible, over 20 us is not cuBLASLt.
    assert 2.1 < min(medians) and max(medians) < 20.0
    assert medians[0] == pytest.approx(medians[1], rel=0.05)
