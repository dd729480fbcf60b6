"""YAML settings: the shipped files load, and every mistake names the file, the key and what is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from cudal2.errors import UsageError
from cudal2.paths import configs_dir
from cudal2.settings import (
    BenchSettings,
    GuardRule,
    GuardSettings,
    Limit,
    SpaceSettings,
    TrainSettings,
    load_bench,
    load_guards,
    load_shapes,
    load_space,
    load_train,
)


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "given.yaml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    "path", sorted(configs_dir().rglob("*.yaml")), ids=lambda path: f"{path.parent.name}/{path.stem}"
)
def test_every_shipped_file_loads_by_name(path: Path) -> None:
    load: dict[str, Callable[[str], object]] = {
        "spaces": load_space,
        "shapes": load_shapes,
        "bench": load_bench,
        "train": load_train,
        "guards": load_guards,
    }
    assert load[path.parent.name](path.stem)


def test_the_shipped_defaults_are_the_defaults_of_the_code_and_complete() -> None:
    for kind, loaded, path in (
        (BenchSettings, load_bench("offline"), "bench/offline.yaml"),
        (TrainSettings, load_train("ppo"), "train/ppo.yaml"),
    ):
        assert loaded == kind()
        keys = yaml.safe_load((configs_dir() / path).read_text(encoding="utf-8"))
        assert set(keys) == {item.name for item in fields(kind)}


def test_a_float_in_scientific_notation_is_a_number(tmp_path: Path) -> None:
    settings = load_train(written(tmp_path, "learning_rate: 3e-4\nsteps: 10"))
    assert settings == TrainSettings(learning_rate=3e-4, steps=10)
    assert isinstance(load_bench(written(tmp_path, "replay_ms: 3")).replay_ms, float)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("replay: 3", r"given.yaml: unknown key 'replay'; known keys: replay_ms, replays, selection_rounds"),
        ("replays: many", r"replays = 'many': give a whole number"),
        ("replays: 2.5", r"replays = 2.5: give a whole number"),
        ("replays: true", r"replays = True: give a whole number"),
        ("replay_ms: -1", r"replay_ms = -1: give a number that is not negative"),
        ("replay_ms: .nan", r"replay_ms = nan: give a number"),
        ("replays: [1]", r"replays = a list: give a whole number"),
        ("- 1", r"the top level is a list; write 'key: value' lines"),
        ("a: [", r"given.yaml is not valid YAML: .*expected"),
    ],
)
def test_bad_bench_settings(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load_bench(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_an_empty_file_keeps_the_defaults(tmp_path: Path) -> None:
    assert load_bench(written(tmp_path, "# nothing\n")) == BenchSettings()
    assert load_space(written(tmp_path, "")) == SpaceSettings(name="given")


@pytest.mark.parametrize("name", ["nowhere", "nowhere.yaml"])
def test_a_missing_file_lists_the_shipped_ones(name: str) -> None:
    with pytest.raises(UsageError, match=rf"no settings file {name}: .*grid, .*record32, .*smoke"):
        load_shapes(name)


def test_a_directory_or_binary_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "given.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not valid YAML"):
        load_shapes(path)


def test_space_settings(tmp_path: Path) -> None:
    text = """
axes: {raster: [m, n], persistent: [false]}
limits:
  - {when: {tile_m: [64]}, only: {stages: [2, 4]}, flops_above: 1e9}
  - {only: {group: [1]}}
"""
    assert load_space(written(tmp_path, text)) == SpaceSettings(
        axes={"raster": ("m", "n"), "persistent": (False,)},
        limits=(Limit({"tile_m": (64,)}, {"stages": (2, 4)}, 1e9), Limit({}, {"group": (1,)})),
        name="given",
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("axis: {}", "unknown key 'axis'; known keys: axes, limits"),
        ("axes: {tile_m: 64}", "axes take a list of values each"),
        ("axes: {tile_m: []}", "axes take a list of values each"),
        ("axes: [tile_m]", "axes take a list of values each"),
        ("limits: {when: 1}", "'limits' is not a list"),
        ("limits: [{when: {tile_m: [64]}}]", "a limit is a mapping with 'only'"),
        ("limits: [{only: {tile_m: [64]}, unless: {}}]", "unknown key 'unless'; known keys: when, only, flops_above"),
        ("limits: [{only: {tile_m: [64]}, flops_above: big}]", "flops_above = 'big': give a number"),
    ],
)
def test_bad_space_settings(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_space(written(tmp_path, text))


def test_shapes_keep_their_order_and_lose_repeats(tmp_path: Path) -> None:
    shapes = load_shapes(written(tmp_path, 'shapes: ["64_64_64", "8_8_16", "64_64_64"]'))
    assert shapes.shapes == ("64_64_64", "8_8_16")
    assert [problem.mnk for problem in shapes.problems("fp16", "nn")] == ["64_64_64", "8_8_16"]
    assert {(problem.acc, problem.layout) for problem in shapes.problems("fp16", "nn")} == {("fp16", "nn")}


def test_a_grid_stands_for_every_triple(tmp_path: Path) -> None:
    assert len(load_shapes("grid").shapes) == 1000
    shapes = load_shapes(written(tmp_path, 'shapes: ["8_8_16"]\ngrid: [64, 128]')).shapes
    assert shapes[0] == "8_8_16"
    assert len(shapes) == 9
    assert "64_128_128" in shapes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shapes: [64_4096_64]", r"shape 64409664 is not text; quote it"),
        ('shapes: ["64x64"]', "'64x64' is not M_N_K"),
        ('shapes: ["0_8_8"]', "m = 0"),
        ("grid: [64, big]", "'big' is no size of a grid"),
        ("shapes: 64", "'shapes' is not a list"),
        ("grid: 64", "'grid' is not a list"),
        ("{}", "no shapes; give 'shapes"),
    ],
)
def test_bad_shapes(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_shapes(written(tmp_path, text))


def test_settings_cannot_be_changed_in_place() -> None:
    axes: Any = load_space("sm90_record").axes
    with pytest.raises(TypeError):
        axes["tile_m"] = (512,)


def test_guard_rules(tmp_path: Path) -> None:
    text = "rules: [{metric: l2_hit_rate, below: 0.8, action: cublaslt_auto, reason: cold}]"
    rule = GuardRule("l2_hit_rate", "cublaslt_auto", "cold", below=0.8)
    assert load_guards(written(tmp_path, text)) == GuardSettings((rule,), "given")
    assert rule.takes(0.79) and not rule.takes(0.8) and rule.condition == "l2_hit_rate below 0.8"
    above = GuardRule("registers", "cublaslt_auto", "many", above=200)
    assert above.takes(201) and not above.takes(200) and above.condition == "registers above 200"
    assert load_guards("none") == GuardSettings() and load_guards(written(tmp_path, "rules: []")).rules == ()


def test_the_default_guards_are_those_documented() -> None:
    speed, hits = load_guards("default").rules
    assert (speed.metric, speed.below, hits.metric, hits.below) == ("speedup", 1.0, "l2_hit_rate", 0.8)
    assert {rule.action for rule in (speed, hits)} == {"cublaslt_auto"}


RULE = "metric: speedup, below: 1, action: cublaslt_auto, reason: slow"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rule: []", "unknown key 'rule'; known keys: rules"),
        ("rules: {metric: speedup}", "'rules' is not a list"),
        ("rules: [speedup]", "a rule is a mapping with metric, below or above, action and reason"),
        (f"rules: [{{{RULE}, when: 1}}]", "unknown key 'when'; known keys: metric, below, above, action, reason"),
        (f"rules: [{{{RULE}, above: 2}}]", "a rule has one bound"),
        ("rules: [{metric: speedup, action: cublaslt_auto, reason: slow}]", "a rule has one bound"),
        (f"rules: [{{{RULE.replace('below: 1', 'below: -1')}}}]", "below = -1: give a number that is not negative"),
        (f"rules: [{{{RULE.replace('below: 1', 'below: fast')}}}]", "below = 'fast': give a number"),
        (f"rules: [{{{RULE.replace('cublaslt_auto', 'torch')}}}]", "action 'torch' is unknown; use cublaslt_auto"),
        (f"rules: [{{{RULE.replace('slow', '')}}}]", "a rule's reason is a NoneType: give a line of text"),
        (f"rules: [{{{RULE.replace('slow', '3')}}}]", "a rule's reason is 3: give a line of text"),
        (f"rules: [{{{RULE.replace('slow', chr(34) + 'a' + chr(92) + 'nb' + chr(34))}}}]", "give a line of text"),
    ],
)
def test_bad_guard_rules(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load_guards(written(tmp_path, text))
    assert "\n" not in str(caught.value)


def test_unknown_guards_list_the_shipped_ones() -> None:
    with pytest.raises(UsageError, match=r"no settings file strict: .*default"):
        load_guards("strict")


@pytest.mark.parametrize("load", [load_space, load_shapes, load_bench, load_train, load_guards])
def test_a_file_that_is_there_is_not_called_missing(load: Callable[[Path], object], tmp_path: Path) -> None:
    for given in (tmp_path / "a.json", tmp_path / "a", tmp_path, Path("/dev/null")):
        if given.parent == tmp_path:
            given.write_text("{}")
        with pytest.raises(UsageError, match=f"^{given} is no .yaml file: give a .yaml file or one of "):
            load(given)
    with pytest.raises(UsageError, match=f"^no settings file {tmp_path}/b.json: "):
        load(tmp_path / "b.json")
