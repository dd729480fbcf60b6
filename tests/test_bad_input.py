"""Hostile input of every kind to every command that takes it: one line, the documented code, no traceback."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cudal2.cli import main as cli
from cudal2.cli.arguments import config
from cudal2.errors import UsageError, first_line
from cudal2.problem import Problem
from cudal2.settings import load_bench, load_guards, load_shapes, load_space, load_train
from cudal2.space.config import KernelConfig, Sm90WsConfig
from cudal2.space.space import SearchSpace

SCRIPTS = Path(__file__).parents[1] / "scripts"
CONFIG = Sm90WsConfig(128, 128, 64, 4, "coop", 2, 1, 1, 1, "tma", 1, "m", 1, False)
MANY_DIGITS = "9" * 5_000
#: 9 ** 9 characters once written out.
BOMB = "\n".join(
    [
        "shapes:",
        "- a: &a [x, x, x, x, x, x, x, x, x]",
        *(
            f"  {name}: &{name} [{', '.join(['*' + before] * 9)}]"
            for before, name in zip("abcdefgh", "bcdefghi", strict=True)
        ),
    ]
)


@pytest.fixture
def fails(capsys: pytest.CaptureFixture[str]):
    """Runs a command that must fail, and checks how."""

    def call(code: int, *arguments: str | Path) -> str:
        assert cli.main([str(argument) for argument in arguments]) == code
        captured = capsys.readouterr()
        errors = [line for line in captured.err.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1 and captured.err.splitlines()[-1] == errors[0], captured.err
        return errors[0]

    return call


@pytest.mark.parametrize(
    "mnk", ["", "_", "0_1_1", "-1_2_3", "1e3_2_3", f"{MANY_DIGITS}_1_1", "٣_٣_٣", "²_1_1", "64_64_64\n", "64x64x64"]
)
@pytest.mark.parametrize("command", [("space",), ("render",), ("table", "lookup"), ("eval",)])
def test_no_such_shape(fails, command: tuple[str, ...], mnk: str) -> None:
    assert len(fails(2, *command, f"--mnk={mnk}")) < 300


@pytest.mark.parametrize(
    "flags",
    [
        ("search", "--seed", "-1"),
        ("search", "--seed", str(2**32)),
        ("train", "--seed", "-1"),
        ("train", "--seed", MANY_DIGITS),
        ("train", "--steps", "0"),
        ("train", "--steps", "²"),
        ("train", "--steps", MANY_DIGITS),
        ("search", "--device", "-1"),
        ("search", "--device", MANY_DIGITS),
        ("record", "--minutes", "nan"),
        ("record", "--minutes", "0"),
        ("record", "--minutes", "-1"),
        ("record", "--part", "3/2"),
        ("eval", "--mnk", "8_8_8", "--gpu_device_id", "-1"),
        ("eval", "--mnk", "8_8_8", "--benchmark_seconds", "x"),
        ("space", "--mnk", "8_8_8", "--list", "99999999999999999999"),
    ],
)
def test_numbers_out_of_their_range(fails, flags: tuple[str, ...]) -> None:
    said = fails(2, *flags)
    assert len(said) < 300 and f"argument {flags[-2]}: '" in said, "of several numbers, the one that is meant"


@pytest.mark.parametrize(
    "text",
    [
        "0x0x0_s0_coop0_c0x0_k0_tma_o0",
        "64x7x64_s4_coop1_c1x1_k1_tma_o1",
        "64x32x64_s4_coop7_c1x1_k1_tma_o1",
        f"{MANY_DIGITS}x32x64_s4_coop1_c1x1_k1_tma_o1",
        "٦٤x32x64_s4_coop1_c1x1_k1_tma_o1",
        "{",
        "{" * 100_000,
        json.dumps({**CONFIG.to_dict(), "tile_m": "64"}),
        json.dumps({**CONFIG.to_dict(), "tile_m": True}),
        json.dumps({**CONFIG.to_dict(), "tile_m": 64.0}),
        json.dumps({**CONFIG.to_dict(), "consumers": 0}),
        json.dumps({**CONFIG.to_dict(), "persistent": 1}),
        json.dumps({**CONFIG.to_dict(), "raster": ["m"]}),
        json.dumps({**CONFIG.to_dict(), "family": "sm100"}),
        json.dumps({"tile_m": 64}),
    ],
)
def test_no_such_configuration(fails, text: str) -> None:
    assert len(fails(2, "render", "--config", text)) < 400
    assert len(fails(2, "space", "--mnk", "64_64_64", "--explain", text)) < 400


def test_a_name_stands_for_its_configuration() -> None:
    assert config(CONFIG.name) == CONFIG == config(json.dumps(CONFIG.to_dict()))


@pytest.mark.parametrize("size", [1, 2, 3, 7, 48, 2**31 - 1])
@pytest.mark.parametrize("name", ["tile_m", "tile_n", "tile_k", "consumers", "stages", "split_k", "cluster_m", "group"])
def test_any_value_off_its_axis_is_explained(name: str, size: int) -> None:
    odd = KernelConfig.from_dict({**CONFIG.to_dict(), name: size})
    space = SearchSpace()
    on_axis = size in next(axis.values for axis in space.axes if axis.name == name)
    reasons = space.explain(odd, Problem(256, 256, 256))
    assert on_axis or any(reason.startswith(f"{name} = {size} is not in this space") for reason in reasons)


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        "shapes: &s [*s]",
        "shapes: [null]",
        "shapes: [2020-13-45 99:99:99]",
        f"shapes: [{MANY_DIGITS}]",
        "shapes: [0x" + "f" * 5_000 + "]",
        "shapes: " + "[" * 5_000 + "]" * 5_000,
        "grid: [1.5]",
        "grid: [-1]",
        "grid: [true]",
        "grid: [0x" + "f" * 5_000 + "]",
        f"grid: [{', '.join(map(str, range(1, 400)))}]",
        "!!python/object/apply:os.system ['true']",
        "\0",
    ],
    ids=lambda text: text[:24],
)
def test_no_such_list_of_shapes(tmp_path: Path, text: str) -> None:
    path = tmp_path / "given.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        load_shapes(path)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("value", ["[64]", "{a: 1}", "null", "64.0", ".nan", "'64'", "7"])
def test_no_such_axis_value(tmp_path: Path, value: str) -> None:
    path = tmp_path / "given.yaml"
    for text in (f"axes: {{tile_m: [{value}]}}", f"limits: [{{only: {{tile_m: [{value}]}}}}]"):
        path.write_text(text)
        with pytest.raises(UsageError):
            SearchSpace(settings=load_space(path))


@pytest.mark.parametrize(
    "text",
    [
        *("n_envs: 0", "n_steps: 0", "n_envs: 1\nn_steps: 1", "batch_size: 1", "n_epochs: 0", "hidden: 0", "seed: -1"),
        *("learning_rate: 1e300", "gamma: 5", "gamma: .nan", "seed: 4294967296", "n_envs: 1.5", "steps: -1"),
    ],
)
def test_training_settings_that_cannot_train(tmp_path: Path, text: str) -> None:
    path = tmp_path / "given.yaml"
    path.write_text(text)
    with pytest.raises(UsageError):
        load_train(path)


@pytest.mark.parametrize("text", ["replays: 0", "final_rounds: 0", "deadline_s: 0", "replay_ms: 0", "seed: 1e12"])
def test_bench_settings_that_cannot_measure(tmp_path: Path, text: str) -> None:
    path = tmp_path / "given.yaml"
    path.write_text(text)
    with pytest.raises(UsageError):
        load_bench(path)


@pytest.mark.parametrize("load", [load_bench, load_space, load_shapes, load_train, load_guards])
@pytest.mark.parametrize(
    "text", ["seed: 1\nseed: 2", "axes: {tile_m: [64], tile_m: [128]}", "rules: [{below: 1, below: 2}]"]
)
def test_a_key_given_twice_is_not_half_ignored(tmp_path: Path, load: Callable[[Path], object], text: str) -> None:
    path = tmp_path / "given.yaml"
    path.write_text(text)
    with pytest.raises(UsageError, match="given twice"):
        load(path)


@pytest.mark.parametrize(
    "flags",
    [
        *(("--mode", "server", *flags) for flags in (["--pdl", "on"], ["--entry", "f"], ["--legacy-cuda-l2"])),
        *(("--config", CONFIG.name, *flags) for flags in (["--family", "sm80_mma"], ["--table", "t.json"])),
        ("--family", "sm90_ws", "--table", "t.json"),
    ],
    ids=" ".join,
)
def test_eval_leaves_nothing_out_in_silence(fails, flags: tuple[str, ...]) -> None:
    assert "GPU" not in fails(2, "eval", "--mnk", "256_256_256", *flags)


@pytest.mark.parametrize(
    "command", [("eval", "--base_dir"), ("eval", "--mode=server", "--base_dir"), ("profile", "--out")]
)
def test_a_place_that_cannot_be_written_is_told_before_anything_is_measured(
    fails, tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "file").write_text("")
    message = fails(2, *command, tmp_path / "file" / "below", "--mnk", "256_256_256")
    assert message.endswith(f"choose another {command[-1]}")


@pytest.mark.parametrize(
    "command",
    [
        *("report --html", "report --plot", "report --plots", "report --csv", "search --table", "table make x --out"),
        *("table merge x --out", "table transfer --layout nn --out", "record publish x --out"),
        *("shortlist.py x --out", "sanitize.py --out", "bench_build.py --out"),
    ],
)
def test_a_file_or_folder_that_cannot_be_written_is_told_before_the_work(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: str
) -> None:
    (tmp_path / "file").write_text("")
    name, *rest = command.split()
    wrong = [tmp_path / "file" / "below"] if rest[-1] in ("--plots", "--csv") else [tmp_path, tmp_path / "file" / "x"]
    for place in wrong:
        monkeypatch.setattr(sys, "argv", [name, *rest, str(place)])
        with pytest.raises(SystemExit) as stop:
            if name.endswith(".py"):
                runpy.run_path(str(SCRIPTS / name), run_name="__main__")
            sys.exit(cli.main([name, *rest, str(place)]))
        (said,) = capsys.readouterr().err.splitlines()
        assert stop.value.code == 2 and said.startswith(f"error: argument {rest[-1]}: ")
        assert "is a directory" in said or "cannot write to" in said


def test_a_page_without_markers_is_told_before_the_work(fails, tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("<!-- results:begin -->")
    message = fails(2, "report", "--readme", tmp_path / "page.md", "--finals", tmp_path / "none")
    assert "page.md has no '<!-- results:begin -->' ... " in message


@pytest.mark.parametrize(
    "flags",
    [
        *(("--run", "runs/mine", *flags) for flags in (["--html", "x.html"], ["--json"], ["--finals", "x"])),
        *(("--json", "--losses"), ("--board", "offline/fp32/on"), ("--plot", "x.pdf"), ("--plot", "x")),
    ],
    ids=" ".join,
)
def test_report_leaves_nothing_out_in_silence(fails, flags: tuple[str, ...]) -> None:
    assert "missing" not in fails(2, "report", *flags) and not Path("x.pdf").exists()


def test_an_error_is_one_line_whatever_it_quotes(fails, tmp_path: Path) -> None:
    message = fails(2, "table", "show", "--table", tmp_path / "a\nb\x1b[31m\r.json")
    assert message.isprintable()


@pytest.mark.parametrize(
    ("text", "line"), [("a\nb", "a"), ("\n  \n\t a \nb", "a"), ("", "ValueError"), (" \n", "ValueError")]
)
def test_of_a_foreign_error_the_first_line_that_says_something(text: str, line: str) -> None:
    assert first_line(ValueError(text)) == line


@pytest.mark.parametrize(
    ("redirection", "code"),
    [(">&-", 0), ("2>&-", 0), (">&- 2>&-", 0), ("<&-", 0), ("| true", 0), (">/dev/full", 2), ("2>/dev/full", 0)],
)
def test_streams_that_are_closed_or_full(redirection: str, code: int) -> None:
    command = f"'{sys.executable}' -m cudal2 space --family sm90_small --mnk 64_64_64 --list 1 {redirection}"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == code and "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_an_error_keeps_its_code_and_stays_off_stdout_without_a_stderr() -> None:
    for redirection in ("2>&-", "2>/dev/full"):
        command = f"'{sys.executable}' -m cudal2 space --mnk wrong {redirection}"
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (2, "")
