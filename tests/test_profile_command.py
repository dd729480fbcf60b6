"""``cudal2 profile`` without a GPU: what it asks of the tool, what it keeps, what it says when something is missing."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import fake_ncu
import pytest
from fabricated_recording import FINGERPRINT
from test_eval_command import FakeRunner

import cudal2.runners.local as local
from cudal2.arch import SM90
from cudal2.bench.profile import counters, ncu
from cudal2.build.artifact import BuiltKernel
from cudal2.cli import main as cli
from cudal2.cli import profile as command
from cudal2.errors import WorkerError
from cudal2.problem import Problem
from cudal2.records.counters import ProfileBook
from cudal2.settings import BenchSettings
from cudal2.space.config import KernelConfig, Sm90WsConfig
from cudal2.table import Entry, Header, KernelTable

SHAPE = "512_512_512"
PROBLEM = Problem.parse(SHAPE)
FIRST = Sm90WsConfig(64, 64, 64, 4, "coop", 1, 1, 1, 1, "tma", 1, "m", 1, False)
SECOND = Sm90WsConfig(128, 128, 64, 4, "coop", 2, 1, 1, 1, "tma", 1, "m", 1, False)
RAW = fake_ncu.RAW
#: The real table less some of its rows: three kernels of ours, then one of cuBLASLt's.
ONE_KERNEL = f"grep -v '^\"[123]\"' {RAW}"


def built_kernel(config: KernelConfig) -> BuiltKernel:
    return BuiltKernel(config.name, "", Path("none.cubin"), 168, 0, 0, 384, 0.0, Path("none.log"))


class Runner(FakeRunner):
    """A GPU that is not there, with compilers that have nothing to do."""

    def build(self, work):
        assert all(isinstance(config, KernelConfig) and isinstance(problem, Problem) for config, problem in work)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A GPU that is not there, and a folder on the path for a tool that is not either."""
    monkeypatch.setattr(command, "require_gpu", lambda device: None)
    monkeypatch.setattr(command, "gpu_arch", lambda device: SM90)
    monkeypatch.setattr(command, "built", lambda configs, problem, runner: [(c, built_kernel(c)) for c in configs])
    monkeypatch.setattr(local, "LocalRunner", Runner)
    monkeypatch.setattr(ncu, "INSTALLED", (tmp_path / "none", tmp_path / "none"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    return tmp_path


def call(machine: Path, *arguments: str) -> int:
    return cli.main(["profile", "--mnk", SHAPE, "--out", str(machine / "out"), *arguments])


def entry(mnk: str, config: KernelConfig | None) -> Entry:
    problem, reason = Problem.parse(mnk), "" if config else "ours took 4 us"
    baseline = None if config else "cublaslt_auto"
    return Entry(problem.m, problem.n, problem.k, config, baseline, 3.0, 3.0, "searched", reason=reason)


def table(machine: Path, config: KernelConfig | None, *others: tuple[str, KernelConfig | None]) -> str:
    entries = [entry(mnk, served) for mnk, served in ((SHAPE, config), *others)]
    KernelTable(Header.from_fingerprint(FINGERPRINT, "fp32", "tn"), entries).save(machine / "table.json")
    return str(machine / "table.json")


def test_several_configurations_and_the_baseline_are_one_run_of_the_tool(machine, capsys):
    runs, request = machine / "runs", machine / "request"
    split_k = f'grep \'^"3"\' {RAW} | sed \'s/nvjet_sm90/splitKreduce/; s/"12,192"/"900"/g\''
    body = f'echo run >>{runs}; for last; do :; done; cp "$last" {request}; grep -v \'^"2"\' {RAW}; {split_k}'
    fake_ncu.install(machine / "path", body)
    assert call(machine, "--config", FIRST.name, "--config", SECOND.name, "--baseline", "cublaslt") == 0
    assert runs.read_text() == "run\n"
    asked = pickle.loads(request.read_bytes())
    assert [config for config, _ in asked.work[0].candidates] == [FIRST, SECOND] and asked.baseline
    book = ProfileBook.load(machine / "out")
    assert book.get(PROBLEM, FIRST).l2_hit_rate == 0.9656 and book.get(PROBLEM, SECOND).l2_hit_rate == 0.9662
    vendor = next(profile for profile in book.profiles() if profile.config is None)
    assert (vendor.contestant, vendor.kernels, vendor.kernel[:5]) == ("cublaslt_heuristic_tn", 2, "nvjet")
    assert (vendor.tool, vendor.cache_control, vendor.clock_control) == ("2025.3.1.0", "all", "none")
    assert book.fingerprint == FINGERPRINT
    out = capsys.readouterr().out
    assert FIRST.name in out and "96.6%" in out


def test_several_shapes_are_one_run_too_and_each_row_finds_its_shape(machine, capsys):
    shapes = ["--shapes", SHAPE, "1024_512_512"]
    fake_ncu.install(machine / "path", f"grep -v '^\"1\"' {RAW}; grep '^\"1\"' {RAW}; grep '^\"3\"' {RAW}")
    arguments = ["profile", *shapes, "--config", FIRST.name, "--out", str(machine / "out"), "--baseline", "cublaslt"]
    assert cli.main(arguments) == 2
    assert "profiled 5 kernels" in capsys.readouterr().err, "two of ours come one after the other"
    fake_ncu.install(machine / "path", f"grep -v '^\"[12]\"' {RAW}; grep '^\"1\"' {RAW}; grep '^\"3\"' {RAW}")
    assert cli.main(arguments) == 0
    book = ProfileBook.load(machine / "out")
    assert [(profile.problem.mnk, profile.kernel[:5]) for profile in book.profiles()] == [
        (SHAPE, "cudal"), (SHAPE, "nvjet"), ("1024_512_512", "cudal"), ("1024_512_512", "nvjet"),
    ]  # fmt: skip
    assert book.get(Problem.parse("1024_512_512"), FIRST).l2_hit_rate == 0.9662


def test_of_several_shapes_those_the_library_serves_are_left_out(machine, capsys):
    fake_ncu.install(machine / "path", ONE_KERNEL)
    given = table(machine, FIRST, ("1024_512_512", None))
    assert (
        cli.main(["profile", "--shapes", SHAPE, "1024_512_512", "--table", given, "--out", str(machine / "out")]) == 0
    )
    assert "1024_512_512: the table has cublaslt_auto" in capsys.readouterr().err
    assert [profile.problem for profile in ProfileBook.load(machine / "out").profiles()] == [PROBLEM]


def test_the_table_names_the_configuration_by_default(machine, capsys):
    fake_ncu.install(machine / "path", ONE_KERNEL)
    assert call(machine, "--table", table(machine, FIRST), "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert KernelConfig.from_dict(row["config"]) == FIRST
    assert row["counters"]["issue_rate"] is None and row["counters"]["registers"] == 168


def test_where_the_table_has_the_library_there_is_nothing_of_ours_to_profile(machine, capsys):
    fake_ncu.install(machine / "path", f"grep -v '^\"[012]\"' {RAW}")
    assert call(machine, "--table", table(machine, None)) == 3
    said = capsys.readouterr().err
    assert f"{SHAPE}: the table has cublaslt_auto" in said and "give --config, or --baseline with one shape" in said
    assert not (machine / "out").exists()
    assert call(machine, "--table", table(machine, None), "--baseline", "cublaslt") == 0


def test_a_configuration_named_twice_is_profiled_once(machine):
    fake_ncu.install(machine / "path", ONE_KERNEL)
    assert call(machine, "--config", FIRST.name, "--config", json.dumps(FIRST.to_dict())) == 0


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (None, "install Nsight Compute"),
        ("echo '==ERROR== ERR_NVGPUCTRPERM - no'; exit 1", "NVreg_RestrictProfilingToAdminUsers=0"),
        ("echo rubbish", "gave no counters (exit code 0): rubbish"),
        (f"cat {RAW}", "profiled 4 kernels (cudal2_gemm, cudal2_gemm, cudal2_gemm, nvjet"),
        (f"grep -v '^\"[012]\"' {RAW}", "profiled 1 kernels (nvjet"),
    ],
)
def test_every_failure_is_one_line_and_leaves_nothing_behind(machine, capsys, body, message):
    if body is not None:
        fake_ncu.install(machine / "path", body)
    assert call(machine, "--config", FIRST.name) == 2
    captured = capsys.readouterr()
    errors = [line for line in captured.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and message in errors[0] and captured.out == ""
    assert not (machine / "out").exists()


def test_a_hang_ends_at_the_deadline(machine):
    tool = ncu.Ncu(fake_ncu.install(machine / "path", "sleep 600"), "2025.3.1.0")
    request = counters.LaunchRequest((counters.Work(PROBLEM, ((FIRST, built_kernel(FIRST)),)),), BenchSettings())
    with pytest.raises(WorkerError, match=r"no answer within 0\.3 s and was killed"):
        counters.profile(request, tool, deadline_s=0.3)


@pytest.mark.parametrize(
    "arguments",
    [["--config", "nonsense"], ["--baseline", "torch"], ["--mnk", "1_2"], ["--layout", "tt"], ["--device", "x"]],
)
def test_bad_usage_is_refused_before_anything_runs(machine, arguments):
    assert call(machine, *arguments) == 2


def test_an_illegal_configuration_is_refused_without_a_gpu(capsys):
    assert cli.main(["profile", "--mnk", "64_64_60", "--config", SECOND.name]) == 2
    assert "is illegal for 64_64_60" in capsys.readouterr().err


def test_doctor_finds_the_tool_or_says_what_to_install(machine, capsys):
    def seen():
        cli.main(["doctor", "--need", "profile", "--json"])
        return next(check for check in json.loads(capsys.readouterr().out) if check["name"] == "Nsight Compute")

    assert not seen()["ok"] and "install Nsight Compute" in seen()["fix"]
    fake_ncu.install(machine / "path")
    assert seen() == {"name": "Nsight Compute", "jobs": ["profile"], "ok": True, "found": "2025.3.1.0", "fix": ""}


def test_a_tool_that_prints_without_end_is_quoted_briefly(machine, capsys):
    fake_ncu.install(machine / "path", "head -c 300000 /dev/zero | tr '\\0' x")
    assert call(machine, "--config", FIRST.name) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert "xxx" in line and len(line) < 500
