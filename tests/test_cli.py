"""The commands as a user meets them: help, data on stdout, one line and a code for every mistake."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from cudal2.cli import doctor, output
from cudal2.cli import main as cli
from cudal2.cli.arguments import config
from cudal2.cli.backend import gpu_problem
from cudal2.errors import UsageError
from cudal2.records.recording import bundled_recording
from cudal2.settings import load_shapes, load_space
from cudal2.space.axes import SM90_WS_AXES
from cudal2.space.config import Sm90WsConfig

ROOT = Path(__file__).parents[1]
COMMANDS = ["space", "render", "build", "record", "search", "train", "table", "eval", "profile", "report", "doctor"]
CONFIG = Sm90WsConfig(128, 128, 64, 4, "coop", 2, 1, 1, 1, "tma", 1, "m", 1, False)

no_gpu_here = pytest.mark.skipif(gpu_problem() is None, reason="this machine has a GPU")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    text = capsys.readouterr().out
    assert stop.value.code == 0
    assert "usage: cudal2 " + command in text and "examples:" in text and len(text.splitlines()) > 8


def test_the_root_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    text = capsys.readouterr().out
    assert all(command in text for command in COMMANDS) and "exit codes" in text


def examples() -> list[str]:
    """Every one-line example of every command's help, without the remark behind it."""
    lines = [line for module in cli.COMMANDS for line in module._EPILOG.splitlines()]
    return [re.split(r"\s{3,}", line.strip())[0] for line in lines if line.startswith("  cudal2 ")]


def readme_commands() -> list[str]:
    """Every command line of the README's shell blocks that this package answers."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [line.split("#")[0].strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines = [
        line.replace("./eval_one_file.sh", "python -m cudal2 eval").replace("cudal2.train", "cudal2 train")
        for line in lines
    ]
    return [line.removeprefix("python -m ") for line in lines if line.startswith("python -m cudal2")]


@pytest.mark.parametrize("example", [*examples(), *readme_commands()])
def test_the_examples_in_help_and_readme_are_right(example: str) -> None:
    arguments = cli.parser().parse_args(shlex.split(example)[1:])
    if getattr(arguments, "space", None):
        load_space(arguments.space)
    if getattr(arguments, "shapes_file", None):
        load_shapes(arguments.shapes_file)
    named = getattr(arguments, "config", None) or []
    assert all(config(name) for name in ([named] if isinstance(named, str) else named))


BAD_INPUT = {
    "no command": ([], 2, "COMMAND"),
    "unknown command": (["tune"], 2, "tune"),
    "unknown flag": (["space", "--mnk", "64_64_64", "--frobnicate"], 2, "--frobnicate"),
    "abbreviated flag": (["space", "--mn", "64_64_64"], 2, "unrecognized arguments: --mn "),
    "space without a shape": (["space"], 2, "--mnk"),
    "explain nothing": (["space", "--mnk", "64_64_64", "--explain", ""], 2, "no configuration name"),
    "explain another version's family": (
        ["space", "--mnk", "64_64_64", "--explain", '{"family": "sm91"}'],
        2,
        "'sm91' is no kernel family",
    ),
    "malformed mnk": (["space", "--mnk", "64x64x64"], 2, "64_4096_64"),
    "two sizes": (["space", "--mnk", "64_64"], 2, "64_4096_64"),
    "zero size": (["space", "--mnk", "0_64_64"], 2, "from 1 to"),
    "negative size": (["space", "--mnk=-1_64_64"], 2, "64_4096_64"),
    "huge size": (["space", "--mnk", "64_64_99999999999"], 2, "from 1 to"),
    "mnk as a flag": (["space", "--mnk", "-1_64_64"], 2, "--mnk"),
    "a family that does not run there": (
        ["space", "--arch", "sm80", "--family", "sm90_ws", "--mnk", "64_64_64"],
        2,
        "choose sm80_mma",
    ),
    "a space of another family": (
        ["space", "--space", "sm90_record", "--family", "sm80_mma", "--mnk", "64_64_64"],
        2,
        "is of family sm90_ws",
    ),
    "unknown architecture": (["space", "--arch", "sm12", "--mnk", "64_64_64"], 2, "sm90"),
    "unknown flag, and whose help to read": (["table", "show", "--fast"], 2, "--fast (see cudal2 table show --help)"),
    "nothing legal to list": (
        ["space", "--family", "sm90_small", "--mnk", "64_64_65", "--list", "3"],
        3,
        "another family has some: --family sm90_ws or sm80_mma",
    ),
    "nothing legal": (
        ["space", "--family", "sm90_small", "--mnk", "64_64_65"],
        3,
        "is legal for 64_64_65 fp32 tn: see the rules above; another",
    ),
    "nothing legal to render, in the words of what was asked": (
        ["render", "--mnk", "64_65_64", "--layout", "nn", "--family", "sm90_small"],
        3,
        "`cudal2 space --arch sm90 --mnk 64_65_64 --acc fp32 --layout nn --dtype fp16 --family sm90_small` says why",
    ),
    "nothing legal to build": (
        ["build", "--mnk", "64_64_65", "--space", "sm90_record"],
        3,
        "the full space has some: --family sm90_ws or sm80_mma",
    ),
    "unknown space": (["space", "--mnk", "64_64_64", "--space", "nowhere"], 2, "nowhere"),
    "render without a shape": (["render"], 2, "--mnk"),
    "render nonsense": (["render", "--config", "fast"], 2, "fast"),
    "render half a configuration": (["render", "--config", '{"tile_m": 64}'], 2, "missing"),
    "render broken JSON": (["render", "--config", "{"], 2, "JSON"),
    "build nothing": (["build"], 2, "--shapes-file"),
    "build with no jobs": (["build", "--mnk", "64_64_64", "--jobs", "0"], 2, "above zero"),
    "missing shapes file": (["build", "--shapes-file", "absent.yaml"], 2, "absent.yaml"),
    "missing recording": (["search", "--recording", "absent.parquet"], 2, "absent.parquet"),
    "replay and gpu": (["search", "--backend", "gpu", "--recording", "a.parquet"], 2, "--recording"),
    "policy without a run": (["search", "--strategy", "policy", "--backend", "replay"], 2, "--run-dir"),
    "missing table": (["table", "show", "--table", "absent.json"], 2, "absent.json"),
    "training of no shape": (["train", "--shapes", "64"], 2, "64_4096_64"),
}


@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_one_line_and_a_code(name: str, run) -> None:
    arguments, wanted_code, wanted_text = BAD_INPUT[name]
    code, _, stderr = run(*arguments)
    lines = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert code == wanted_code
    assert len(lines) == 1 and stderr.splitlines()[-1] == lines[0] and wanted_text in lines[0]


@no_gpu_here
@pytest.mark.parametrize("command", [["search"], ["train"]])
def test_a_missing_gpu_is_said_and_so_is_what_to_do(command: list[str], run) -> None:
    code, _, stderr = run(*command, "--backend", "gpu", "--shapes", "64_64_64")
    assert code == 2 and "needs a GPU" in stderr and "--backend replay" in stderr


def test_space_prints_what_each_rule_removes(run) -> None:
    code, stdout, _ = run("space", "--arch", "sm90", "--mnk", "64_4096_64")
    rows = {
        line.rsplit(None, 1)[0].strip(): int(line.rsplit(None, 1)[1].replace(",", ""))
        for line in stdout.splitlines()[1:]
    }
    total, legal = rows.pop("(all configurations)"), rows.pop("(legal)")
    assert code == 0 and legal > 0 and total - sum(rows.values()) == legal
    assert {"shared_memory", "accumulator_registers"} <= set(rows)


def test_space_json_is_one_value_and_agrees_with_the_list(run) -> None:
    _, stdout, _ = run("space", "--mnk", "64_4096_64", "--json")
    legal = json.loads(stdout)["legal"]
    _, listed, _ = run("space", "--mnk", "64_4096_64", "--list", str(legal + 1))
    names = listed.splitlines()
    assert len(set(names)) == legal
    assert run("space", "--mnk", "64_4096_64", "--explain", names[0])[:2] == (0, "legal\n")


def test_an_illegal_configuration_is_explained(run) -> None:
    code, stdout, stderr = run("space", "--mnk", "64_64_64", "--explain", "256x256x128_s12_coop1_c1x1_k1_tma_o1_m1")
    assert code == 2 and "shared_memory" in stdout and "illegal" in stderr


def test_render_prints_the_source_and_nothing_else(run) -> None:
    code, stdout, _ = run("render", "--config", CONFIG.name)
    assert code == 0 and '#include "cudal2/sm90_ws.cuh"' in stdout and "128" in stdout


def test_render_to_a_place_that_does_not_exist(run, tmp_path: Path) -> None:
    code, _, stderr = run("render", "--config", CONFIG.name, "--out", tmp_path / "absent" / "kernel.cu")
    assert code == 2 and "No such file or directory" in stderr


@pytest.mark.parametrize("text", [CONFIG.name, json.dumps(CONFIG.to_dict())])
def test_a_configuration_reads_back(text: str) -> None:
    assert config(text) == CONFIG


def test_a_build_name_gets_the_run_time_defaults() -> None:
    read = config(CONFIG.build_name)
    assert read.build_name == CONFIG.build_name and (read.raster, read.group, read.persistent) == ("m", 8, True)


def test_a_wrong_name_says_where_right_ones_are() -> None:
    with pytest.raises(UsageError, match="--list"):
        config("128x128")


def test_build_reports_and_then_finds_its_kernels(run, tmp_path: Path) -> None:
    pytest.importorskip("cuda.core")
    arguments = [
        "build",
        "--mnk",
        "256_256_256",
        "--config",
        CONFIG.name,
        "--jobs",
        "1",
        "--cache-dir",
        tmp_path,
        "--json",
    ]
    code, stdout, _ = run(*arguments)
    first = json.loads(stdout)
    assert code == 0 and first["usable"] == 1 and not first["failed"]
    cubin = next(tmp_path.rglob("kernel.cubin"))
    written = cubin.stat().st_mtime_ns
    assert json.loads(run(*arguments)[1])["usable"] == 1
    assert cubin.stat().st_mtime_ns == written


def test_build_where_nothing_can_be_written(run, tmp_path: Path) -> None:
    pytest.importorskip("cuda.core")
    (tmp_path / "file").write_text("")
    code, _, stderr = run("build", "--config", CONFIG.name, "--jobs", "1", "--cache-dir", tmp_path / "file")
    assert code == 2 and stderr.splitlines()[-1].startswith("error: ")


def test_doctor_names_a_fix_for_everything_missing(run) -> None:
    checks = json.loads(run("doctor", "--json")[1])
    assert {"GPU", "NVRTC and headers", "build cache", "recording", "kernel table"} <= {
        check["name"] for check in checks
    }
    assert all(check["fix"] for check in checks if not check["ok"])


def test_doctor_asked_for_one_job_speaks_of_that_job(run, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [doctor.Check("a", ("replay",), False, "gone", "get a"), doctor.Check("b", ("table",), True, "1")]
    found += [doctor.Check("c", ("gpu",), False, "gone", "get c")]
    monkeypatch.setattr(doctor, "examine", lambda arch: found)
    code, stdout, stderr = run("doctor", "--need", "replay", "--need", "table")
    assert code == 2 and "c" not in [line.split()[1] for line in stdout.splitlines()]
    assert stderr.splitlines() == ["a: get a", "error: missing for replay: a; the lines above say how to fix each"]
    assert run("doctor", "--need", "table")[0] == 0
    for job in ("gpu", "server", "foreign", "profile"):
        assert f"error: missing for {job}: c; " in run("doctor", "--need", job, "--need", "table")[2]


@no_gpu_here
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "command",
    ["judge.py {} --out out", "judge_server.py --out out", "bench_repeat.py", "bench_judge.py", "bench_measure.py"],
)
def test_scripts_that_measure_say_at_once_that_there_is_no_gpu(command: str, tmp_path: Path) -> None:
    script, *arguments = command.format(bundled_recording()).split()
    path = Path(__file__).parents[1] / "scripts" / script
    ran = subprocess.run([sys.executable, path, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 2 and not ran.stdout
    (said,) = ran.stderr.splitlines()
    assert said.startswith("error: this needs a GPU: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "command",
    [
        *("bench_build.py --kernels 0", "bench_build.py --jobs -1", "bench_measure.py --candidates 0"),
        *("bench_measure.py --device -1", "bench_replay.py --steps 0", "bench_search.py --folds x"),
    ],
)
def test_scripts_refuse_numbers_that_count_nothing(command: str) -> None:
    script, *arguments = command.split()
    path = Path(__file__).parents[1] / "scripts" / script
    ran = subprocess.run([sys.executable, path, *arguments], capture_output=True, text=True, check=False)
    (said,) = ran.stderr.splitlines()
    flag, value = arguments
    assert ran.returncode == 2 and not ran.stdout and said.startswith(f"error: argument {flag}: '{value}' is not ")


@no_gpu_here
@pytest.mark.parametrize("job", ["gpu", "server", "foreign", "profile"])
def test_doctor_fails_for_a_job_that_cannot_run(run, job) -> None:
    code, stdout, stderr = run("doctor", "--need", job)
    assert code == 2 and "GPU" in stderr.splitlines()[-1] and "MISSING  GPU " in stdout
    assert f"error: missing for {job}: " in stderr


def test_doctor_sees_an_unwritable_cache(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CUDAL2_CACHE_DIR", str(tmp_path / "file" / "cache"))
    checks = {check["name"]: check for check in json.loads(run("doctor", "--json")[1])}
    assert not checks["build cache"]["ok"] and "CUDAL2_CACHE_DIR" in checks["build cache"]["fix"]


def test_space_shows_the_axes_that_a_narrowing_leaves(run) -> None:
    code, stdout, _ = run("space", "--mnk", "64_4096_64", "--space", "sm90_wide_splits", "--axes")
    lines = stdout.splitlines()
    assert code == 0 and len(lines) == 1 + len(SM90_WS_AXES)
    assert lines[1].split()[:3] == ["tile_m", "128,", "256"] and "rows of C per CTA tile" in lines[1]
    assert sum("run time" in line for line in lines) == 5


def test_the_axes_need_no_shape_and_all_of_space_is_one_json_value(run) -> None:
    axes = {axis["axis"]: axis for axis in json.loads(run("space", "--axes", "--json")[1])}
    assert list(axes) == [axis.name for axis in SM90_WS_AXES]
    assert axes["l2_prefetch"]["values"] == [0, 2, 64] and not axes["l2_prefetch"]["compile_time"]
    shape = ["space", "--mnk", "64_4096_64", "--family", "sm90_small", "--json"]
    names = json.loads(run(*shape, "--list", "2")[1])
    assert len(names) == 2
    said = json.loads(run(*shape, "--explain", names[0])[1])
    assert said == {"config": names[0], "mnk": "64_4096_64", "legal": True, "reasons": []}
    code, stdout, _ = run(*shape, "--explain", "64x8x64_s1_mma4_k1")
    assert code == 2 and "mma.sync needs 16 rows" in json.loads(stdout)["reasons"][0]


def test_a_table_says_where_its_choices_are_from(run) -> None:
    _, _, stderr = run("table", "lookup", "--mnk", "64_4096_64", "--dtype", "bf16")
    assert "h200_fp32_tn.json: sm90_132sm_141gb_bf16_tn, " in stderr and "shapes (" in stderr
    _, _, stderr = run("table", "show", "--table", str(ROOT / "cudal2/data/tables/a100_fp32_tn.json"))
    assert stderr.rstrip().endswith("6 shapes (6 transferred; 6 without a time of cuBLASLt), tuned on NVIDIA H200")


def test_a_missing_extra_names_the_command(run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "cudal2.records.recording", raising=False)
    monkeypatch.delitem(sys.modules, "cudal2.records.parquet", raising=False)
    code, _, stderr = run("search", "--backend", "replay")
    assert code == 2 and f"'pyarrow': pip install -e '{ROOT}[records]'" in stderr


@pytest.mark.parametrize("command", [["space", "--mnk", "64_64_64"], ["train"], ["table", "show"]])
def test_a_machine_without_the_core_packages_is_told(command: list[str]) -> None:
    code = "import sys; sys.modules.update(numpy=None, yaml=None); from cudal2.cli.main import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", code, *command], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.splitlines()[-1].endswith(f"pip install -e '{ROOT}'")


def test_an_installed_package_is_completed_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(output, "__file__", str(tmp_path / "cudal2" / "cli" / "output.py"))
    assert output.pip_install("build") == "pip install 'cudal2[build]'"


def test_ctrl_c_is_130(run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.space, "run", interrupted)
    code, _, stderr = run("space", "--mnk", "64_64_64")
    assert code == 130 and len(stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments", ["space --mnk 64_4096_64 --list 1", "space --mnk 64_4096_64 --list 3000", "--help"]
)
def test_a_reader_that_leaves_is_no_error(arguments: str) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "cudal2", *arguments.split()]
    result = subprocess.run(command, cwd=ROOT, stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write_end)
    assert (result.returncode, result.stderr) == (0, "")
