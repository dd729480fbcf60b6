"""Arguments that several commands share, and how their text becomes the library's types."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from cudal2.arch import ARCHS, Arch
from cudal2.bench.baselines import contestants
from cudal2.cli.output import writable
from cudal2.errors import NothingValidError, UsageError
from cudal2.problem import Acc, Dtype, Layout, Problem, require_accumulator
from cudal2.space.config import (
    CONFIGS,
    KernelConfig,
    Sm80MmaConfig,
    Sm90CollectiveConfig,
    Sm90SmallConfig,
    Sm90WsConfig,
)

if TYPE_CHECKING:
    from cudal2.build.cache import BuildCache
    from cudal2.space.space import SearchSpace

_TILE_NAME = r"(?P<tile_m>\d+)x(?P<tile_n>\d+)x(?P<tile_k>\d+)_s(?P<stages>\d+)_"
#: How names read, by family; the run-time part may be missing.
NAMES = {
    Sm90WsConfig.family: re.compile(
        _TILE_NAME + r"(?P<schedule>coop|pingpong)(?P<consumers>\d+)_c(?P<cluster_m>\d+)x(?P<cluster_n>\d+)"
        r"_k(?P<split_k>\d+)_(?P<epilogue>tma|direct|shifted)_o(?P<ctas_per_sm>\d+)(?P<swap_ab>(?:_swap)?)"
        r"(?:_(?P<split_via>workspace))?(?P<stream_k>(?:_stream_k)?)(?:_a(?P<resident_a>\d+))?"
        r"(?:_r(?P<producer_registers>\d+))?"
        r"(?:_(?P<store_hint>evict_first))?(?:_b(?P<store_buffers>\d+))?(?P<padded>(?:_padded)?)"
        r"(?:_(?P<raster>[mn])(?P<group>\d+)(?P<persistent>p?)(?:f(?P<l2_prefetch>\d+))?"
        r"(?:l(?P<l2_promotion>\d+))?)?",
        re.ASCII,
    ),
    Sm90SmallConfig.family: re.compile(
        _TILE_NAME + r"(?P<variant>wgmma|mma)(?P<warps>\d+)_k(?P<split_k>\d+)"
        r"(?:_(?=[fl])(?:f(?P<l2_prefetch>\d+))?(?:l(?P<l2_promotion>\d+))?)?",
        re.ASCII,
    ),
    Sm80MmaConfig.family: re.compile(
        _TILE_NAME + r"w(?P<warps_m>\d+)x(?P<warps_n>\d+)_(?P<smem_layout>swizzle|pad)_f(?P<fragments>\d+)"
        r"_(?P<prefetch>plain|staggered)_(?P<epilogue>direct|wide|shifted)_b(?P<copy_bytes>\d+)_o(?P<ctas_per_sm>\d+)"
        r"(?:_k(?P<split_k>\d+))?(?:_(?P<raster>[mn])(?P<group>\d+))?",
        re.ASCII,
    ),
    Sm90CollectiveConfig.family: re.compile(
        _TILE_NAME + r"(?P<schedule>warpspecialized|pingpong|cooperative)_c(?P<cluster_m>\d+)x(?P<cluster_n>\d+)"
        r"_(?P<epilogue>tma|nosmem)_(?P<scheduler>persistent|stream_k)"
        r"(?:_k(?P<split_k>\d+)_(?P<raster>heuristic|m|n)(?P<max_swizzle>\d+))?",
        re.ASCII,
    ),
}
#: Parts of a name that are there or not.
_FLAGS = frozenset({"padded", "persistent", "stream_k", "swap_ab"})
#: Longer than any name, and short enough that Python reads its numbers.
_NAME_CHARS = 200
_COUNT = re.compile(r"[0-9]{1,10}")
_INDEX = re.compile(r"[0-9]{1,4}")


class Parser(argparse.ArgumentParser):
    """An argument parser whose mistakes are one line, like every other error."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        # Module docstrings mark names up; a terminal does not.
        kwargs["description"] = (kwargs.get("description") or "").replace("``", "")
        super().__init__(*args, **kwargs)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Refuses what it does not know here, so that the message names the help of the command at hand."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """Raises instead of printing the whole usage."""
        raise UsageError(f"{message} (see {self.prog} --help)")


def arch(text: str) -> Arch:
    """``--arch``: one of the architectures this version has kernels for."""
    if text in ARCHS:
        return ARCHS[text]
    raise UsageError(f"--arch {text}: unknown; use one of {', '.join(ARCHS)}")


def add_optional(parser: argparse.ArgumentParser) -> None:
    """``--with``: contestants beside the required ones."""
    parser.add_argument(
        "--with", dest="optional", type=contestants.parse, default=(), metavar="NAMES",
        help=f"also judge these, with commas between them: {', '.join(contestants.OPTIONAL)}",
    )  # fmt: skip


def positive(text: str) -> int:
    """A whole number above zero."""
    if not _COUNT.fullmatch(text) or int(text) == 0:
        raise argparse.ArgumentTypeError(
            f"'{text[:80]}' is not a whole number above zero and below ten thousand million"
        )
    return int(text)


def index(text: str) -> int:
    """``--device``: a whole number from zero."""
    if not _INDEX.fullmatch(text):
        raise argparse.ArgumentTypeError(f"'{text[:80]}' is not the number of a GPU: give 0, 1, ...")
    return int(text)


def seed(text: str) -> int:
    """``--seed``: what every generator takes."""
    if not _COUNT.fullmatch(text) or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"'{text[:80]}' is not a seed: give a whole number from 0 to {2**32 - 1}")
    return int(text)


def minutes(text: str) -> float:
    """``--minutes``: a length of time."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"'{text[:80]}' is not a number of minutes above zero")
    return value


def part(text: str) -> tuple[int, int]:
    """``--part``: I/N, from 1."""
    found = re.fullmatch(r"([0-9]{1,4})/([0-9]{1,4})", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError(f"'{text[:80]}' is not a part: give I/N with I from 1 to N, for example 1/2")
    return int(found[1]), int(found[2])


def out_file(text: str) -> Path:
    """A file to write, refused before the work whose result it could not hold."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a directory: name a file")
    if not writable(path.parent):
        raise argparse.ArgumentTypeError(f"cannot write to {path.parent}: name a file elsewhere")
    return path


def out_folder(text: str) -> Path:
    """A folder to write into, made when something is; refused as a file is by :func:`out_file`."""
    if not writable(Path(text)):
        raise argparse.ArgumentTypeError(f"cannot write to {text}: name another folder")
    return Path(text)


def add_arch(parser: argparse.ArgumentParser) -> None:
    """``--arch``."""
    parser.add_argument(
        "--arch",
        type=arch,
        default="sm90",
        metavar="NAME",
        help=f"GPU architecture: {', '.join(ARCHS)} (default: the first)",
    )


def add_dtype(parser: argparse.ArgumentParser) -> None:
    """``--dtype``."""
    parser.add_argument(
        "--dtype", choices=("fp16", "bf16"), default="fp16", help="type of A, B and C (default fp16; bf16: --acc fp32)"
    )


def add_kind(parser: argparse.ArgumentParser) -> None:
    """``--acc``, ``--layout`` and ``--dtype``; read back by :func:`signature`."""
    parser.add_argument("--acc", choices=("fp32", "fp16"), default="fp32", help="accumulator (default fp32)")
    parser.add_argument("--layout", choices=("tn", "nn"), default="tn", help="B as [N,K] (tn, default) or [K,N] (nn)")
    add_dtype(parser)


def signature(arguments: argparse.Namespace) -> tuple[Acc, Layout, Dtype]:
    """What :func:`add_kind` asks for.

    Raises:
        UsageError: No hardware has the accumulator for the type.
    """
    require_accumulator(arguments.acc, arguments.dtype)
    return arguments.acc, arguments.layout, arguments.dtype


def add_shapes(parser: argparse.ArgumentParser) -> None:
    """``--mnk``, ``--shapes`` or ``--shapes-file``; read back by :func:`problems`."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--mnk", metavar="M_N_K", help="one shape, for example 64_4096_64")
    group.add_argument("--shapes", nargs="+", metavar="M_N_K", help="several shapes")
    group.add_argument(
        "--shapes-file", metavar="FILE", help="YAML list of shapes, or the name of one in configs/shapes"
    )


def add_plan(parser: argparse.ArgumentParser) -> None:
    """``--plan``: what `scripts/shortlist.py` writes."""
    parser.add_argument("--plan", type=Path, metavar="FILE", help="a sweep plan: shapes with their configurations")


def plan_alone(arguments: argparse.Namespace, *more: str) -> None:
    """Nothing that a plan says itself may stand beside it.

    Args:
        arguments: With those of :func:`add_shapes`, :func:`add_kind` and :func:`add_space`.
        more: The command's own of this sort.

    Raises:
        UsageError: Something does; the message names it.
    """
    defaults = {"acc": "fp32", "layout": "tn", "dtype": "fp16", "seed": 0}
    names = ("mnk", "shapes", "shapes_file", "acc", "layout", "dtype", "family", "space", "limit", *more)
    given = [name for name in names if getattr(arguments, name) not in (None, "", defaults.get(name))]
    if given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise UsageError(f"--plan names shapes and configurations and their order: leave out {options}")


def add_family(parser: argparse.ArgumentParser) -> None:
    """``--family``."""
    parser.add_argument(
        "--family", choices=tuple(CONFIGS), default="", help="kernel family (default: the first of the architecture)"
    )


def add_space(parser: argparse.ArgumentParser) -> None:
    """``--space`` and ``--family``; read back by :func:`search_space`."""
    add_family(parser)
    parser.add_argument(
        "--space", metavar="FILE", help="YAML that narrows the space, or the name of one in configs/spaces"
    )


def add_cache(parser: argparse.ArgumentParser) -> None:
    """``--cache-dir``; read back by :func:`build_cache`."""
    parser.add_argument(
        "--cache-dir",
        type=Path,
        metavar="DIR",
        help="build cache (default: in $CUDAL2_CACHE_DIR, else in the user's cache directory)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON and nothing else on stdout")


def chosen_shapes(arguments: argparse.Namespace) -> list[str]:
    """The ``M_N_K`` texts asked for; empty if none were."""
    from cudal2.settings import load_shapes

    if arguments.mnk:
        return [arguments.mnk]
    if arguments.shapes:
        return [text for given in arguments.shapes for text in given.split(",") if text]
    return list(load_shapes(arguments.shapes_file).shapes) if arguments.shapes_file else []


def problems(arguments: argparse.Namespace) -> list[Problem]:
    """The problems asked for, in order, each once.

    Raises:
        UsageError: None was given, or one is malformed.
    """
    shapes = chosen_shapes(arguments)
    if not shapes:
        raise UsageError("no shape given: use --mnk, --shapes or --shapes-file")
    return list(dict.fromkeys(Problem.parse(text, *signature(arguments)) for text in shapes))


def search_space(arguments: argparse.Namespace, default: str | None = None) -> SearchSpace:
    """The space of ``--arch`` and ``--family``, narrowed by ``--space``."""
    from cudal2.settings import load_space
    from cudal2.space.space import SearchSpace

    chosen = arguments.space or default
    return SearchSpace(arguments.arch, load_space(chosen) if chosen else None, arguments.family)


def space_of(arguments: argparse.Namespace, family: str, what: str) -> SearchSpace:
    """As :func:`search_space`, of the family of something that was named.

    Raises:
        UsageError: ``--family`` asks for another one, or it does not run on ``--arch``.
    """
    if arguments.family not in ("", family):
        raise UsageError(f"{what} is of kernel family {family}: leave out --family {arguments.family}")
    return search_space(argparse.Namespace(**{**vars(arguments), "family": family}))


def family(arguments: argparse.Namespace) -> str:
    """The kernel family that ``--arch``, ``--family`` and ``--space`` come to."""
    return search_space(arguments).family.name


def nothing_legal(arguments: argparse.Namespace, problem: Problem, advice: str = "") -> NothingValidError:
    """The error for a shape that the space has no configuration for; it names families that have some.

    Args:
        arguments: What :func:`search_space` was made of.
        problem: The shape.
        advice: What to do; by default the command that says what each rule removes.
    """
    from cudal2.space.families import FAMILIES
    from cudal2.space.space import SearchSpace

    space = search_space(arguments)
    others = [one for one in FAMILIES.values() if one.runs_on(arguments.arch)]
    others = [one for one in others if arguments.space or one is not space.family]
    able = [one.name for one in others if any(SearchSpace(arguments.arch, None, one.name).enumerate(problem))]
    where = "the full space" if arguments.space else "another family"
    kind = f"--acc {problem.acc} --layout {problem.layout} --dtype {problem.dtype}"
    narrowed = f" --space {arguments.space}" if arguments.space else f" --family {space.family.name}"
    command = f"cudal2 space --arch {arguments.arch.name} --mnk {problem.mnk} {kind}{narrowed}"
    return NothingValidError(
        f"no configuration of {space.family.name} is legal for {problem.mnk} {problem.precision} {problem.layout}: "
        + (advice or f"`{command}` says why")
        + (f"; {where} has some: --family {' or '.join(able)}" if able else "")
    )


def build_cache(arguments: argparse.Namespace) -> BuildCache:
    """The build cache asked for."""
    from cudal2.build.cache import BuildCache

    return BuildCache(arguments.cache_dir / "build" if arguments.cache_dir else None)


def config(text: str) -> KernelConfig:
    """A configuration from its name or its JSON form.

    Raises:
        UsageError: Neither, or a value is on no axis of the full space.
    """
    if text.lstrip().startswith("{"):
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"the configuration is not valid JSON: {error}") from None
        return _on_axes(KernelConfig.from_dict(values))
    for kind, pattern in NAMES.items():
        match = pattern.fullmatch(text) if len(text) <= _NAME_CHARS else None
        if match is not None:
            return _on_axes(KernelConfig.from_dict(_fields(kind, match)))
    raise UsageError(
        f"'{text[:80]}' is no configuration name; `cudal2 space --names` says how they read, `--mnk M_N_K --list 5` "
        "prints some"
    )


def _fields(kind: str, match: re.Match[str]) -> dict[str, Any]:
    """A configuration's fields from the groups of its name; what the name leaves out has its default."""
    defaults = {field.name: field.default for field in dataclasses.fields(CONFIGS[kind])}
    fields = {name: default for name, default in defaults.items() if default is not dataclasses.MISSING}
    fields["family"] = kind
    for name, value in match.groupdict().items():
        if value is not None:
            fields[name] = bool(value) if name in _FLAGS else int(value) if value.isdigit() else value
    return fields


def _on_axes(config: KernelConfig) -> KernelConfig:
    """The configuration, if the template can be asked for it at all."""
    from cudal2.space.families import family_of

    for axis in family_of(config).axes:
        axis.index(getattr(config, axis.name))
    return config
