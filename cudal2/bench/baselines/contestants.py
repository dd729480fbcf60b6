"""Optional contestants: libraries that are not required, chosen by name, and what each needs to be installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cudal2.errors import EnvironmentProblemError, UsageError, first_line
from cudal2.problem import Dtype

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
        ahead: What is worth compiling before that for operands of a type; ``None`` if nothing is left to compile.
        load: Imports what takes long to import.
    """

    module: str
    package: str
    choose: Callable[[AutoTuner, BothLayouts], Sequence[Baseline]]
    ahead: Callable[[Dtype], Ahead | None] = lambda dtype: None
    load: Callable[[], object] = lambda: None


@dataclass(frozen=True)
class Ahead:
    """What a contestant can have compiled before anything is chosen, in any number of processes at once.

    Attributes:
        compile: Importable; takes a worker's session and one of the items, and leaves the result in a cache on disk.
        items: What there is to compile, plain values.
        finished: Remembers that it is done, for other processes and runs.
    """

    compile: Callable[[Any, Any], None]
    items: tuple[Any, ...]
    finished: Callable[[], None]


def _quack_ahead(dtype: Dtype) -> Ahead | None:
    from cudal2.bench.baselines import quack

    return quack.ahead(dtype)


def _load_quack() -> None:
    from cudal2.bench.baselines import quack
    from cudal2.bench.baselines.baseline import NotSupportedError

    with suppress(NotSupportedError):  # said when it is chosen
        quack.load()


def _quack(tuner: AutoTuner, buffers: BothLayouts) -> Sequence[Baseline]:
    from cudal2.bench.baselines import quack

    return quack.choose(tuner)


def _triton(tuner: AutoTuner, buffers: BothLayouts) -> Sequence[Baseline]:
    from cudal2.bench.baselines import inductor

    return inductor.choose(buffers.sets.problem, buffers.sets.a(0).device)


OPTIONAL = {
    "quack": OptionalContestant("quack", "quack-kernels", _quack, _quack_ahead, _load_quack),
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
