"""Prints the shape lists that a rule chooses: looks at sizes and floors only, never at a measurement.

python scripts/choose_shapes.py judge96 > configs/shapes/judge96.yaml
python scripts/choose_shapes.py repeat24 > configs/shapes/repeat24.yaml
"""

from __future__ import annotations

import hashlib
import math
import sys
from collections import Counter
from collections.abc import Sequence

from cudal2.cli.main import guarded, guarded_imports

with guarded_imports():
    from cudal2.cli import arguments as shared
    from cudal2.floor import CLASS_NAMES, floor_class, floor_us
    from cudal2.problem import Problem
    from cudal2.settings import load_shapes

SEED = 0
#: The largest of record32 has a floor of 2.8 ms; tuning the libraries on a shape takes hundreds of its runs.
LONGEST_US = 3_000.0
ADDED = 64
#: log2 FLOPs within which a shape counts as near its step, and the less frequent class of floor decides.
NEAR = 0.4

JUDGE96 = f"""\
# The 96 shapes that finals are judged on: record32, then {ADDED} more grid shapes, by scripts/choose_shapes.py:
# - {ADDED} even steps in log2 FLOPs, from the smallest grid shape to the largest with a floor (cudal2/floor.py) of at
#   most {LONGEST_US / 1e3:g} ms
# - at each step, of the grid shapes not yet chosen within {NEAR} of it, one of the class of floor that is least
#   represented so far; of those the nearest; of equally near ones the first by the SHA-256 of "{SEED} M_N_K";
#   where none is within {NEAR}, the nearest
# - no measurement is looked at
"""
REPEAT24 = """\
# The 24 shapes on which complete runs are compared (scripts/bench_repeat.py): record32 without every fourth shape, by
# scripts/choose_shapes.py; no measurement is looked at.
"""


def judge96() -> list[Problem]:
    """``record32``, then the added shapes in order of their steps."""
    chosen = list(load_shapes("record32").problems())
    pool = [problem for problem in load_shapes("grid").problems() if bound_us(problem) <= LONGEST_US]
    low, high = (pick(work(problem) for problem in pool) for pick in (min, max))
    left = sorted(
        set(pool) - set(chosen), key=lambda problem: hashlib.sha256(f"{SEED} {problem.mnk}".encode()).digest()
    )
    for step in range(ADDED):
        target = low + (high - low) * (step + 0.5) / ADDED
        frequency = Counter(kind(problem) for problem in chosen)
        best = min(left, key=lambda problem: preference(problem, target, frequency))
        left.remove(best)
        chosen.append(best)
    return chosen


def preference(problem: Problem, target: float, frequency: Counter[str]) -> tuple[float, int, float]:
    """Lower is better."""
    distance = abs(work(problem) - target)
    return distance if distance > NEAR else 0.0, frequency[kind(problem)], distance


def repeat24() -> list[Problem]:
    """Three of every four of ``record32``."""
    return [problem for index, problem in enumerate(load_shapes("record32").problems()) if index % 4 != 3]


def work(problem: Problem) -> float:
    """log2 FLOPs."""
    return math.log2(problem.flops)


def bound_us(problem: Problem) -> float:
    """The sustained floor."""
    return floor_us(problem.m, problem.n, problem.k)


def kind(problem: Problem) -> str:
    """Class of floor."""
    return floor_class(problem.m, problem.n, problem.k)


def text(comment: str, problems: Sequence[Problem]) -> str:
    """The YAML file: how it was chosen, what it amounts to, the shapes."""
    frequency = Counter(kind(problem) for problem in problems)
    classes = ", ".join(f"{frequency[name]} {name}" for name in CLASS_NAMES)
    total_ms = math.fsum(bound_us(problem) for problem in problems) / 1e3
    summary = f"# Floors: {classes}; {total_ms:.1f} ms for one pass over all at their floors.\n"
    return f"{comment}{summary}shapes:\n" + "".join(f'  - "{problem.mnk}"\n' for problem in problems)


LISTS = {"judge96": (JUDGE96, judge96), "repeat24": (REPEAT24, repeat24)}


def main() -> None:
    """Prints one list."""
    parser = shared.Parser(description=__doc__)
    parser.add_argument("name", choices=tuple(LISTS), help="which list")
    comment, choose = LISTS[parser.parse_args().name]
    print(text(comment, choose()), end="")


if __name__ == "__main__":
    sys.exit(guarded(main))
