"""Optional contestants: libraries that are not required, chosen by name, and what each needs to be installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cudal2.errors import EnvironmentProblemError, UsageError, first_line

if TYPE_CHECKING:
    from cudal2.bench.baselines.autotune import AutoTuner
    from cudal2.bench.baselines.baseline import Baseline, BothLayouts


@dataclass(frozen=True)
class OptionalContestant:
    """A library that competes when asked for.

    Attributes:
        module: What must be importable.
        package: What pip calls it.
        choose: Prepares its calls, the best ones where it has several, with whatever compiling that takes; they are
            plain values that another process can bind as well. Empty, with a warning, if it has nothing here.
    """

    module: str
    package: str
    choose: Callable[[AutoTuner, BothLayouts], Sequence[Baseline]]


def _quack(tuner: AutoTuner, buffers: BothLayouts) -> Sequence[Baseline]:
    from cudal2.bench.baselines import quack

    return quack.choose(tuner)


def _triton(tuner: AutoTuner, buffers: BothLayouts) -> Sequence[Baseline]:
    from cudal2.bench.baselines import inductor

    return inductor.choose(buffers.sets.problem, buffers.sets.a(0).device)


OPTIONAL = {
    "quack": OptionalContestant("quack", "quack-kernels", _quack),
    "triton": OptionalContestant("triton", "triton", _triton),
}


def parse(text: str) -> tuple[str, ...]:
    """``--with``: names with commas between them, each once, in the order given.

    Raises:
        UsageError: There is no such contestant.
    """
    names = tuple(dict.fromkeys(name for name in text.lower().split(",") if name))
    unknown = [name for name in names if name not in OPTIONAL]
    if unknown:
        raise UsageError(f"--with {unknown[0][:80]}: unknown; use {' or '.join(OPTIONAL)}, or both with a comma")
    return names


def require(names: Sequence[str]) -> None:
    """Checks that what was asked for is installed; imports nothing.

    Raises:
        EnvironmentProblemError: A package is missing.
    """
    for name in names:
        if importlib.util.find_spec(OPTIONAL[name].module) is None:
            raise EnvironmentProblemError(f"--with {name} needs a package: run `pip install {OPTIONAL[name].package}`")


def choose(names: Sequence[str], tuner: AutoTuner, buffers: BothLayouts) -> list[Baseline]:
    """Everything the named contestants enter, ready to be bound here or in another process."""
    return [call for name in names for call in OPTIONAL[name].choose(tuner, buffers)]


@contextmanager
def reasons(what: str) -> Iterator[None]:
    """Around a compiler written in Python, which raises assertions, type errors and errors of its own.

    Raises:
        NotSupportedError: Whatever it raised, in one line: it costs that contestant and nobody else.
    """
    from cudal2.bench.baselines.baseline import NotSupportedError

    try:
        yield
    except NotSupportedError:
        raise
    except Exception as error:
        raise NotSupportedError(f"{what}: {first_line(error)}") from error
