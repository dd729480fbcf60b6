"""YAML settings read into frozen dataclasses: search subspaces, shape lists, measuring, training, a table's guards.

An unknown key is an error that lists the known ones, so that a misspelt setting never passes silently.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import yaml

from cudal2.errors import UsageError
from cudal2.paths import configs_dir
from cudal2.problem import Acc, Dtype, Layout, Problem

Settings = TypeVar("Settings")

#: Least and most where zero, or anything at all, would break what the setting is for.
_BOUNDS: dict[str, tuple[float, float]] = {
    **dict.fromkeys(
        ("replays", "final_rounds", "heuristic_results", "n_envs", "n_steps", "n_epochs", "hidden"), (1, 1e6)
    ),
    **dict.fromkeys(("selection_rounds", "finalists", "final_parts"), (1, 1_000)),
    "final_processes": (1, 100),
    **dict.fromkeys(("presoak_s", "warm_s", "search_soak_s"), (0.0, 3_600.0)),
    **dict.fromkeys(("replay_ms", "final_replay_ms", "deadline_s"), (1e-3, 1e6)),
    **dict.fromkeys(("learning_rate", "gamma", "gae_lambda"), (0.0, 1.0)),
    "batch_size": (2, 1e6),
    "seed": (0, 2**32 - 1),
}
#: What a guard rule can do to an entry.
GUARD_ACTIONS = ("cublaslt_auto",)
#: Cubed, more shapes than anyone measures, and few enough to list in a second.
_MAX_GRID_SIZES = 50


@dataclass(frozen=True)
class Limit:
    """Where every axis of ``when`` has one of its values, the axes of ``only`` are held to theirs.

    Attributes:
        when: Axis name to the values that bring the limit into force; empty for always.
        only: Axis name to the values that stay.
        flops_above: The limit holds for problems of more FLOPs than this.
    """

    when: Mapping[str, tuple[Any, ...]]
    only: Mapping[str, tuple[Any, ...]]
    flops_above: float = 0.0


@dataclass(frozen=True)
class SpaceSettings:
    """A narrowing of the full space; it can take values away, never add them.

    Attributes:
        axes: Axis name to the values kept; an axis that is not named keeps all.
        limits: Further conditional narrowings.
        name: What messages call the subspace.
        family: The kernel family it narrows; empty for the first choice of the architecture.
    """

    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: MappingProxyType({}))
    limits: tuple[Limit, ...] = ()
    name: str = "full"
    family: str = ""


@dataclass(frozen=True)
class ShapeList:
    """Shapes to work on, as ``M_N_K`` texts in file order."""

    shapes: tuple[str, ...]
    name: str = ""

    def problems(self, acc: Acc = "fp32", layout: Layout = "tn", dtype: Dtype = "fp16") -> tuple[Problem, ...]:
        """The shapes as problems of one accumulator, layout and type."""
        return tuple(Problem.parse(shape, acc, layout, dtype) for shape in self.shapes)


@dataclass(frozen=True)
class BenchSettings:
    """How candidates are timed and checked.

    Attributes:
        replay_ms: Device time of one graph replay while searching, at least.
        replays: Replays per measurement while searching.
        selection_rounds: Shuffled rounds, of ``replay_ms`` each, in which the contestants of a final are selected.
        finalists: Configurations of ours that go on from the selection, per PDL column.
        final_replay_ms: Device time of each contestant in a round of a final figure, at least.
        final_parts: Replays that it is split into, each in an order of its own.
        final_processes: Fresh processes, one after the other, that a final figure is measured in.
        final_rounds: Shuffled rounds of a final figure in each of them.
        presoak_s: Untimed rounds before a figure's, in each process, for shapes whose floor is above 100 us.
        warm_s: The same for floors of 5 to 100 us.
        search_soak_s: Untimed replays before those that a search step or any choice rests on, for floors above 100 us.
        l2_multiple: Reuse distance of every buffer, in L2 sizes.
        deadline_s: Wall time one candidate may take before its worker is killed.
        quarantine_fraction: A time under this fraction of the hardware floor is set aside.
        seed: Seed of operands and shuffles.
        workspace_bytes: Workspace the cuBLASLt baselines may use.
        heuristic_results: Most cuBLASLt algorithms asked for, per layout.
        enumerated_results: Most further algorithm configurations of cuBLASLt that are timed, per layout.
        enumeration_s: Wall time after which no further one is begun, per layout.
    """

    replay_ms: float = 2.0
    replays: int = 5
    selection_rounds: int = 7
    finalists: int = 1
    final_replay_ms: float = 20.0
    final_parts: int = 4
    final_processes: int = 2
    final_rounds: int = 3
    presoak_s: float = 2.0
    warm_s: float = 0.3
    search_soak_s: float = 0.25
    l2_multiple: float = 3.0
    deadline_s: float = 10.0
    quarantine_fraction: float = 0.9
    seed: int = 0
    workspace_bytes: int = 64 * 2**20
    heuristic_results: int = 100
    enumerated_results: int = 48
    enumeration_s: float = 2.0


@dataclass(frozen=True)
class TrainSettings:
    """Stable-Baselines3 PPO hyperparameters and the length of a run.

    Attributes:
        steps: Environment steps, one measurement each.
        n_envs: Logical environments stepped as one batch.
        n_steps: Steps per environment and rollout.
        batch_size: Minibatch size.
        n_epochs: Passes over a rollout.
        learning_rate: Adam step size.
        clip_range: PPO ratio clip.
        ent_coef: Weight of the entropy bonus.
        vf_coef: Weight of the value loss.
        gamma: Discount.
        gae_lambda: Bias-variance factor of the advantage estimate.
        max_grad_norm: Gradient clip.
        hidden: Width of the two hidden layers.
        checkpoint_every: Environment steps between checkpoints.
        seed: Seed of the policy, the environments and the shape order.
    """

    steps: int = 50_000
    n_envs: int = 128
    n_steps: int = 8
    batch_size: int = 256
    n_epochs: int = 6
    learning_rate: float = 5e-4
    clip_range: float = 0.2
    ent_coef: float = 0.01
    vf_coef: float = 0.5
    gamma: float = 1.0
    gae_lambda: float = 0.95
    max_grad_norm: float = 0.5
    hidden: int = 256
    checkpoint_every: int = 10_240
    seed: int = 0


@dataclass(frozen=True)
class GuardRule:
    """Takes an entry out of a kernel table whose metric is past a bound.

    Attributes:
        metric: ``speedup``, of what would serve instead; or a counter's name.
        action: Baseline that serves the shape instead.
        reason: What the entry then says.
        below: It is taken under this value; exactly one of the two bounds is given.
        above: It is taken over this value.
    """

    metric: str
    action: str
    reason: str
    below: float | None = None
    above: float | None = None

    def takes(self, value: float) -> bool:
        """Whether a value is past the bound."""
        return value < self.below if self.below is not None else value > (self.above or 0.0)

    @property
    def condition(self) -> str:
        """For example ``l2_hit_rate below 0.8``."""
        return (
            f"{self.metric} below {self.below:g}" if self.below is not None else f"{self.metric} above {self.above:g}"
        )


@dataclass(frozen=True)
class GuardSettings:
    """Guard rules of a kernel table, in order; none by default."""

    rules: tuple[GuardRule, ...] = ()
    name: str = "none"


def load_space(path_or_name: str | Path) -> SpaceSettings:
    """Reads ``configs/spaces/NAME.yaml`` or a file.

    Raises:
        UsageError: The file is missing or malformed, or a key is unknown.
    """
    path, values = _read("spaces", path_or_name)
    _check_keys(path, values, ("axes", "limits", "family"))
    limits = _list(path, values, "limits")
    family = values.get("family", "")
    if not isinstance(family, str):
        raise UsageError(f"{path}: 'family' is the name of a kernel family, not {str(family)[:40]}")
    return SpaceSettings(
        _choices(path, values.get("axes") or {}), tuple(_limit(path, limit) for limit in limits), path.stem, family
    )


def load_shapes(path_or_name: str | Path) -> ShapeList:
    """Reads ``configs/shapes/NAME.yaml`` or a file: ``shapes`` lists them, ``grid`` means every triple of its sizes.

    Raises:
        UsageError: The file is missing or malformed, or a shape is not M_N_K.
    """
    path, values = _read("shapes", path_or_name)
    _check_keys(path, values, ("shapes", "grid"))
    sizes = _list(path, values, "grid")
    if len(sizes) > _MAX_GRID_SIZES:
        raise UsageError(
            f"{path}: a grid of {len(sizes)} sizes is {len(sizes) ** 3:,} shapes: name at most {_MAX_GRID_SIZES}"
        )
    for size in sizes:
        if type(size) is not int or not 0 < size < 2**31:
            raise UsageError(f"{path}: {_short(size)} is no size of a grid: give whole numbers above zero")
    grid = itertools.product(sizes, repeat=3)
    shapes = [*_list(path, values, "shapes"), *("_".join(map(str, triple)) for triple in grid)]
    if not shapes:
        raise UsageError(f"{path}: no shapes; give 'shapes: [64_4096_64, ...]' or 'grid: [64, 128, ...]'")
    # YAML 1.1 reads an unquoted 64_4096_64 as the integer 64409664.
    for shape in shapes:
        if not isinstance(shape, str):
            raise UsageError(f'{path}: shape {_short(shape)} is not text; quote it, for example "64_4096_64"')
    unique = tuple(dict.fromkeys(Problem.parse(shape).mnk for shape in shapes))
    return ShapeList(unique, path.stem)


def load_bench(path_or_name: str | Path) -> BenchSettings:
    """Reads ``configs/bench/NAME.yaml`` or a file.

    Raises:
        UsageError: The file is missing or malformed, or a key is unknown.
    """
    return _typed(BenchSettings, *_read("bench", path_or_name))


def load_train(path_or_name: str | Path) -> TrainSettings:
    """Reads ``configs/train/NAME.yaml`` or a file.

    Raises:
        UsageError: The file is missing or malformed, or a key is unknown.
    """
    path, values = _read("train", path_or_name)
    settings = _typed(TrainSettings, path, values)
    if settings.n_envs * settings.n_steps < 2:
        raise UsageError(f"{path}: n_envs x n_steps = 1: a rollout takes at least 2 steps")
    return settings


def load_guards(path_or_name: str | Path) -> GuardSettings:
    """Reads ``configs/guards/NAME.yaml`` or a file; the name ``none`` means no rule.

    Raises:
        UsageError: The file is missing or malformed, or a key is unknown.
    """
    if path_or_name == "none":
        return GuardSettings()
    path, values = _read("guards", path_or_name)
    _check_keys(path, values, ("rules",))
    return GuardSettings(tuple(_guard_rule(path, rule) for rule in _list(path, values, "rules")), path.stem)


def _guard_rule(path: Path, values: Any) -> GuardRule:
    if not isinstance(values, dict):
        raise UsageError(f"{path}: a rule is a mapping with metric, below or above, action and reason")
    _check_keys(path, values, ("metric", "below", "above", "action", "reason"))
    texts = {key: _line(path, f"a rule's {key}", values.get(key)) for key in ("metric", "action", "reason")}
    if texts["action"] not in GUARD_ACTIONS:
        raise UsageError(f"{path}: action {_short(texts['action'])} is unknown; use {', '.join(GUARD_ACTIONS)}")
    bounds = {key: _number(path, key, values[key], float) for key in ("below", "above") if key in values}
    if len(bounds) != 1:
        raise UsageError(f"{path}: a rule has one bound: give below or above")
    return GuardRule(texts["metric"], texts["action"], texts["reason"], bounds.get("below"), bounds.get("above"))


def _line(path: Path, what: str, text: Any) -> str:
    if not isinstance(text, str) or not text.isprintable() or not text.strip():
        raise UsageError(f"{path}: {what} is {_short(text)}: give a line of text")
    return text


def _read(kind: str, path_or_name: str | Path) -> tuple[Path, dict[str, Any]]:
    path = Path(path_or_name)
    if path.suffix not in (".yaml", ".yml"):
        path = configs_dir() / kind / f"{path_or_name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in (configs_dir() / kind).glob("*.yaml")))
        wrong = "{} is no .yaml file" if Path(path_or_name).exists() else "no settings file {}"
        raise UsageError(f"{wrong.format(path_or_name)}: give a .yaml file or one of {known}")
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if values is None:
        return path, {}
    if not isinstance(values, dict):
        raise UsageError(f"{path}: the top level is a {type(values).__name__}; write 'key: value' lines")
    return path, values


class _Loader(yaml.SafeLoader):
    """Refuses a key that is given twice; the format's own loaders silently take the last."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        if isinstance(node, yaml.MappingNode):
            keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            if twice := [key for key, times in keys.items() if times > 1]:
                raise yaml.YAMLError(f"key {_short(twice[0])} is given twice")
        return dict(super().construct_mapping(node, deep))


def _short(value: Any) -> str:
    """A value as messages show it; YAML aliases give a short file collections whose text fills the memory."""
    if isinstance(value, int) and abs(value) >= 10**18:
        return "a huge number"  # Python refuses to write out the longest ones
    return repr(value)[:40] if isinstance(value, (str, int, float, date)) else f"a {type(value).__name__}"


def _check_keys(path: Path, values: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in values:
        if key not in known:
            raise UsageError(f"{path}: unknown key {_short(key)}; known keys: {', '.join(known)}")


def _list(path: Path, values: Mapping[str, Any], key: str) -> list[Any]:
    items = values.get(key) or []
    if not isinstance(items, list):
        raise UsageError(f"{path}: '{key}' is not a list")
    return items


def _choices(path: Path, values: Any) -> Mapping[str, tuple[Any, ...]]:
    if not isinstance(values, dict) or not all(isinstance(choice, list) and choice for choice in values.values()):
        raise UsageError(f"{path}: axes take a list of values each, for example 'tile_k: [64, 128]'")
    if not all(isinstance(value, (str, int)) for choice in values.values() for value in choice):
        raise UsageError(f"{path}: the values of an axis are whole numbers, words, true or false")
    return MappingProxyType({str(name): tuple(choice) for name, choice in values.items()})


def _limit(path: Path, values: Any) -> Limit:
    if not isinstance(values, dict) or "only" not in values:
        raise UsageError(
            f"{path}: a limit is a mapping with 'only' and usually 'when', each with lists of values by axis"
        )
    _check_keys(path, values, ("when", "only", "flops_above"))
    flops_above = _number(path, "flops_above", values.get("flops_above", 0.0), float)
    return Limit(_choices(path, values.get("when", {})), _choices(path, values["only"]), flops_above)


def _typed(kind: type[Settings], path: Path, values: dict[str, Any]) -> Settings:
    defaults = {item.name: item.default for item in fields(kind)}  # type: ignore[arg-type]
    _check_keys(path, values, tuple(defaults))
    return kind(**{key: _number(path, key, value, type(defaults[key])) for key, value in values.items()})


def _number(path: Path, key: str, value: Any, kind: type) -> Any:
    # YAML 1.1 reads 5e-4 as text; a float setting takes it all the same.
    try:
        number = kind(value) if not isinstance(value, bool) else None
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or (kind is int and number != value) or not 0 <= number < math.inf:
        raise UsageError(
            f"{path}: {key} = {_short(value)}: give a {'whole ' if kind is int else ''}number that is not negative"
        )
    least, most = _BOUNDS.get(key, (0, math.inf))
    if not least <= number <= most:
        raise UsageError(f"{path}: {key} = {_short(value)}: give a number from {least:g} to {most:.10g}")
    return number
