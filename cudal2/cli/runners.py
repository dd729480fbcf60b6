"""Opens what a search runs on: a recording, or the GPU."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cudal2.arch import Arch
from cudal2.cli import arguments as shared
from cudal2.cli.backend import Backend, choose_backend, gpu_arch
from cudal2.cli.output import counted, note
from cudal2.errors import NothingValidError, UsageError
from cudal2.problem import Problem, precision_of

if TYPE_CHECKING:
    from cudal2.records.fingerprint import Fingerprint
    from cudal2.records.measurement import Measurement
    from cudal2.runners.base import Runner
    from cudal2.runners.plan import ByFamily


@dataclass(frozen=True)
class Opened:
    """A runner, the problems it was opened for, and the environment its numbers come from."""

    backend: Backend
    runner: Runner
    problems: tuple[Problem, ...]
    fingerprint: Fingerprint


def add_backend(parser: argparse.ArgumentParser) -> None:
    """``--backend``, ``--recording`` and those of a GPU; read back by :func:`open_runner`."""
    parser.add_argument(
        "--backend",
        choices=("auto", "gpu", "replay"),
        default="auto",
        help="measure on the GPU, or replay recorded measurements; auto (default) takes the GPU if there is one",
    )
    parser.add_argument(
        "--recording",
        type=Path,
        metavar="FILE",
        help="with replay: a .parquet recording or a directory of shards (default: the shipped one)",
    )
    add_gpu(parser)


def add_gpu(parser: argparse.ArgumentParser) -> None:
    """``--device``, ``--pdl``, ``--bench``, ``--jobs`` and ``--cache-dir``; read back by :func:`open_gpu`."""
    parser.add_argument("--device", type=shared.index, default=0, metavar="N", help="on a GPU: which one (default 0)")
    parser.add_argument(
        "--pdl", choices=("on", "off"), help="programmatic dependent launch (default: off; by replay, as recorded)"
    )
    parser.add_argument("--bench", default="offline", metavar="FILE", help="on a GPU: YAML, or a name in configs/bench")
    parser.add_argument("--jobs", type=shared.positive, metavar="N", help="compiler processes (default: one per core)")
    shared.add_cache(parser)


@contextmanager
def open_runner(arguments: argparse.Namespace, records: Path | None = None) -> Iterator[Opened]:
    """The backend asked for, announced on stderr; closed with the block.

    Raises:
        UsageError: The arguments contradict each other.
        EnvironmentProblemError: A GPU was asked for and there is none.
    """
    if arguments.recording and arguments.backend == "gpu":
        raise UsageError("--recording is for replay; leave it out with --backend gpu")
    backend, why = choose_backend("replay" if arguments.recording else arguments.backend, arguments.device)
    note(why)
    if backend == "replay":
        yield open_replay(arguments)
    else:
        with open_gpu(arguments, records) as opened:
            yield opened


def open_replay(arguments: argparse.Namespace) -> Opened:
    """The recording, and those of its problems that were asked for; all of them if none were.

    Raises:
        RecordError: It cannot be read.
        ReplayMissError: A shape asked for was not recorded.
        NothingValidError: It holds nothing of this layout and precision.
    """
    from cudal2.records.recording import Recording, bundled_recording
    from cudal2.runners.replay import ReplayRunner
    from cudal2.settings import load_space
    from cudal2.space.space import SearchSpace

    acc, layout, dtype = kind = shared.signature(arguments)
    wanted = tuple(shared.problems(arguments)) if shared.chosen_shapes(arguments) else ()
    path = arguments.recording or bundled_recording(precision_of(acc, dtype), shared.family(arguments))
    recording = Recording.load(path, pdl=None if arguments.pdl is None else arguments.pdl == "on")
    recorded = recording.space
    shared.space_of(arguments, recorded.family.name, path.name)
    narrowed = load_space(arguments.space) if arguments.space else None
    space = SearchSpace(recorded.arch, narrowed, recorded.family.name) if narrowed else None
    runner = ReplayRunner(recording, space, on_missing="mask")
    for problem in wanted:
        runner.problem_index(problem)
    problems = wanted or tuple(problem for problem in runner.problems if problem.signature == kind)
    if not problems:
        raise NothingValidError(f"{path.name} holds no {precision_of(acc, dtype)} {layout} problem")
    pdl = "on" if recording.pdl else "off"
    note(f"recording: {path.name}, {counted(len(problems), 'shape')}, {recording.fingerprint.gpu}, PDL {pdl}")
    return Opened("replay", runner, problems, recording.fingerprint)


@contextmanager
def open_gpu(
    arguments: argparse.Namespace, records: Path | None, on_done: Callable[[Measurement], None] | None = None
) -> Iterator[Opened]:
    """This machine's GPU; measurements are appended to ``records``, if given, as they are made.

    Raises:
        UsageError: No shape was given.
        WorkerError: The GPU's worker does not start.
    """
    from cudal2.build.cache import resolve_toolchain
    from cudal2.runners.local import LocalRunner
    from cudal2.settings import load_bench

    wanted = tuple(shared.problems(arguments))
    space, cache = shared.search_space(arguments), shared.build_cache(arguments)
    with LocalRunner(
        space,
        wanted,
        settings=load_bench(arguments.bench),
        pdl=arguments.pdl == "on",
        device_index=arguments.device,
        cache=cache,
        toolchain=resolve_toolchain(cache, compiled_for(space.arch, gpu_arch(arguments.device))),
        jobs=arguments.jobs,
        on_done=on_done,
    ) as runner:
        fingerprint = runner.fingerprint()
        shapes = counted(len(wanted), "shape")
        note(f"GPU: {fingerprint.gpu}, driver {fingerprint.driver}, {shapes}, PDL {arguments.pdl or 'off'}")
        if records is not None:
            runner.record_to(records, {"argv": sys.argv[1:]})
        yield Opened("gpu", runner, wanted, fingerprint)


@contextmanager
def open_gpu_families(
    arguments: argparse.Namespace, families: Sequence[str], records: Path, on_done: Callable[[Measurement], None]
) -> Iterator[ByFamily]:
    """This machine's GPU for several kernel families, by one worker; records go to a directory for each.

    Raises:
        WorkerError: The GPU's worker does not start.
    """
    from cudal2.bench.worker import Worker
    from cudal2.build.cache import resolve_toolchain
    from cudal2.runners.local import LocalRunner
    from cudal2.runners.plan import ByFamily
    from cudal2.settings import load_bench
    from cudal2.space.space import SearchSpace

    settings, cache = load_bench(arguments.bench), shared.build_cache(arguments)
    arch = compiled_for(arguments.arch, gpu_arch(arguments.device))
    toolchain = resolve_toolchain(cache, arch)
    with ExitStack() as stack:
        worker = stack.enter_context(Worker(arguments.device, settings.deadline_s))
        runners = {}
        for family in families:
            runner = LocalRunner(
                SearchSpace(arguments.arch, family=family),
                settings=settings,
                pdl=arguments.pdl == "on",
                reference=arguments.reference == "on",
                cache=cache,
                toolchain=toolchain,
                jobs=arguments.jobs,
                worker=worker,
                on_done=on_done,
            )
            runners[family] = stack.enter_context(runner)
            runner.record_to(records / family, {"argv": sys.argv[1:]})
        yield ByFamily(runners)


def compiled_for(wanted: Arch, gpu: Arch) -> Arch:
    """The GPU's own architecture: kernels for an older one run there too, within the older one's limits.

    Raises:
        UsageError: The GPU is older than the architecture asked for.
    """
    if wanted.capability > gpu.capability:
        raise UsageError(f"--arch {wanted.name}: this GPU is {gpu.name}; say --arch {gpu.name}")
    return gpu
