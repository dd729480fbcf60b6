"""Corners of the families under compute-sanitizer; the tool itself is a stand-in, and nothing is launched."""

from __future__ import annotations

import importlib.util
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import fake_sanitizer
import numpy as np
import pytest
from fabricated_recording import FINGERPRINT

from cudal2.bench.sanitize import launcher, tool
from cudal2.bench.sanitize.checks import Checked, check_cases
from cudal2.bench.sanitize.launcher import Case
from cudal2.bench.sanitize.tool import Finding, Sanitizer, read_report
from cudal2.build.artifact import BuiltKernel
from cudal2.errors import EnvironmentProblemError, RecordError, UsageError, WorkerError
from cudal2.problem import Problem
from cudal2.settings import SpaceSettings
from cudal2.space.config import KernelConfig, Sm90WsConfig
from cudal2.space.covering import covering
from cudal2.space.families import FAMILIES
from cudal2.space.space import SearchSpace

ROOT = Path(__file__).parents[1]
_SPEC = importlib.util.spec_from_file_location("sanitize", ROOT / "scripts" / "sanitize.py")
assert _SPEC is not None and _SPEC.loader is not None
script = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(script)
_plan = script.plan

FIRST = Sm90WsConfig(64, 64, 64, 4, "coop", 1, 1, 1, 1, "tma", 1, "m", 1, False)
CONFIGS = [replace(FIRST, stages=stages) for stages in (2, 3, 4, 5)]
SECONDS = 60.0


def built(config: KernelConfig) -> BuiltKernel:
    return BuiltKernel(config.build_name, "", Path(__file__), 168, 0, 0, 384, 0.0, Path("none.log"))


def cases(configs=CONFIGS) -> list[Case]:
    return [Case(Problem(64, 64, 512), config, built(config)) for config in configs]


def playing(folder: Path, **played: tuple[str, str]) -> Sanitizer:
    """A tool that plays something at the configurations of these stages: ``s2=("die", "")``."""
    named = {replace(FIRST, stages=int(name[1:])).build_name: what for name, what in played.items()}
    return Sanitizer(fake_sanitizer.install(folder, named), "2025.3.1.0")


def check(folder: Path, name: str = "memcheck", seconds: float = SECONDS, silence_s: float = 30.0, jobs=1, **played):
    return check_cases(name, cases(), playing(folder, **played), seconds, silence_s, jobs=jobs)


def row(one: Checked) -> dict:
    return script.row_of(one.tool, one.case.problem, one.case.config, one)


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without the tool."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr(tool, "INSTALLED", (tmp_path / "cuda",))
    return tmp_path


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cover_holds_every_value_of_every_axis_legally(family):
    space = SearchSpace(family=family)
    problems = [Problem.parse(mnk) for mnk in script.SHAPES]
    chosen, never = covering(space, problems, 2)
    assert not never and len(chosen) < 70
    assert not [config for problem, config in chosen if space.explain(config, problem)]
    for axis in space.axes:
        assert {getattr(config, axis.name) for _, config in chosen} == set(axis.values), axis.name
    taken = Counter(problem for problem, _ in chosen)
    assert not any(space.legal_count(problem) for problem in problems if taken[problem] < 2)
    assert len(set(chosen)) == len(chosen)
    again = [covering(space, problems[2:4], 2) for _ in range(2)]
    assert again[0] == again[1], "the same each time"


def test_a_value_that_no_shape_allows_is_named():
    _, never = covering(SearchSpace(), [Problem(64, 64, 64)])
    assert ("split_k", 2) in never and ("tile_k", 64) not in never


def test_the_launcher_judges_by_sums_that_fp16_holds_exactly():
    for mnk in script.SHAPES:
        problem = Problem.parse(mnk, "fp16", "tn")
        a, b, expected = launcher._operands(problem)
        assert (a.shape, b.shape) == ((problem.m, problem.k), (problem.n, problem.k))
        assert float(expected.max()) <= 2048
        assert np.array_equal(expected.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64).T)


def test_what_is_printed_after_a_case_is_about_it():
    text = (
        "========= COMPUTE-SANITIZER\ncudal2 case 0\ncudal2 done 0\n"
        f"cudal2 case 1\n{fake_sanitizer.MEMCHECK}cudal2 done 1 3 of 9 elements are wrong\n"
        f"cudal2 case 2\n{fake_sanitizer.RACECHECK}"
        "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)\n"
    )
    reports, before, counted = read_report(text)
    assert (reports[0].findings, reports[0].verdict) == ((), "")
    assert reports[1].findings == (Finding("Invalid __global__ write of size 16 bytes", "at cudal2_gemm+0x2b0", 2),)
    assert reports[1].verdict == "3 of 9 elements are wrong"
    (race,) = reports[2].findings
    assert race.text == "Error: Race reported between Write access at cudal2_gemm+*" and race.count == 1
    assert race.where == "and Read access at cudal2_gemm+0xe0 [4 hazards]"
    assert reports[2].verdict is None and before.findings == () and counted == 1


@pytest.mark.parametrize(
    "line",
    [
        "========= Barrier error detected. Divergent thread(s) in block",
        "========= Warning: Detected overflow of tracked cuda::barrier structures. Results might be incorrect.",
        "========= Potential invalid __shared__ read of size 4 bytes",
        "========= Something that no version has said so far",
    ],
)
def test_any_line_that_is_no_housekeeping_counts(line):
    reports, _, _ = read_report(f"cudal2 case 0\n{line}\n=========     at f+0x10\ncudal2 done 0\n")
    assert [finding.where for finding in reports[0].findings] == ["at f+0x10"]


def test_clean_cases_take_one_process(tmp_path):
    checked = check(tmp_path)
    assert [one.case.config for one in checked] == CONFIGS
    assert all(one.ran and not one.findings for one in checked)
    (asked,) = fake_sanitizer.asked(tmp_path)
    assert asked[:2] == ["--tool", "memcheck"] and asked[asked.index("--print-limit") + 1] == "0"
    assert asked[-4:-2] == ["-m", "cudal2.bench.sanitize.launcher"] and asked[-1] == "0"


def test_a_report_and_a_wrong_result_are_findings_of_their_case(tmp_path):
    seen = []
    sanitizer = playing(tmp_path, s3=("report", fake_sanitizer.MEMCHECK), s4=("wrong", ""))
    checked = check_cases("memcheck", cases(), sanitizer, SECONDS, on_checked=seen.append)
    assert [len(one.findings) for one in checked] == [0, 1, 1, 0] and seen == checked
    assert checked[2].findings[0].text == "7 of 9 elements are wrong"


def test_a_case_that_ends_the_process_costs_itself_alone(tmp_path):
    checked = check(tmp_path, s2=("die", fake_sanitizer.MEMCHECK), s4=("die", ""))
    assert [bool(one.findings) for one in checked] == [True, False, True, False]
    assert checked[0].findings[1].text == "the process ended with exit code 9"
    assert checked[2].findings[0].text == "the process ended with exit code 9"
    assert len(fake_sanitizer.asked(tmp_path)) == 3


def test_a_hang_is_a_finding_and_the_rest_goes_on(tmp_path):
    checked = check(tmp_path, silence_s=3.0, s3=("hang", ""))
    assert [one.ran for one in checked] == [True] * 4
    assert [one.findings[0].text if one.findings else "" for one in checked] == [
        "", "no answer within 3 s: it hangs", "", "",
    ]  # fmt: skip


def test_what_there_was_no_time_for_is_not_called_clean(tmp_path):
    checked = check(tmp_path, seconds=2.0, s4=("hang", ""))
    assert [one.ran for one in checked] == [True, True, False, False]
    assert not any(one.findings for one in checked)
    assert [one.ran for one in check(tmp_path, seconds=0.0)] == [False] * 4


def test_ctrl_c_keeps_what_was_checked_by_then(tmp_path):
    seen: list[Checked] = []
    sanitizer = playing(tmp_path, s3=("report", fake_sanitizer.MEMCHECK), s4=("interrupt", ""))
    with pytest.raises(KeyboardInterrupt):
        check_cases("memcheck", cases(), sanitizer, SECONDS, on_checked=seen.append)
    assert [(one.case.config.stages, len(one.findings)) for one in seen] == [(2, 0), (3, 1)]


def test_processes_side_by_side_share_the_cases_in_order(tmp_path):
    checked = check(tmp_path, jobs=2, s4=("report", fake_sanitizer.MEMCHECK))
    assert [(one.case.config.stages, one.ran, len(one.findings)) for one in checked] == [
        (2, True, 0), (3, True, 0), (4, True, 1), (5, True, 0),
    ]  # fmt: skip
    asked = fake_sanitizer.asked(tmp_path)
    assert [call[call.index("--port") + 1] for call in sorted(asked)] == ["49152", "49162"]


def test_a_hang_costs_the_other_processes_nothing(tmp_path):
    checked = check(tmp_path, jobs=2, silence_s=3.0, s2=("hang", ""), s5=("die", ""))
    assert [one.findings[0].text if one.findings else "" for one in checked] == [
        "no answer within 3 s: it hangs", "", "", "the process ended with exit code 9",
    ]  # fmt: skip
    assert all(one.ran for one in checked) and len(fake_sanitizer.asked(tmp_path)) == 3


def test_ctrl_c_and_our_own_errors_stop_every_process(tmp_path):
    seen: list[Checked] = []
    sanitizer = playing(tmp_path, s3=("interrupt", ""), s4=("hang", ""))
    with pytest.raises(KeyboardInterrupt):
        check_cases("memcheck", cases(), sanitizer, SECONDS, on_checked=seen.append, jobs=2)
    assert {one.case.config.stages for one in seen} <= {2}
    path = tmp_path / "other" / "tool"
    path.parent.mkdir()
    path.write_text(f"#!/bin/sh\nmkdir {path.parent}/first 2>/dev/null && sleep 600\necho 'no such device'; exit 1\n")
    path.chmod(0o755)
    with pytest.raises(WorkerError, match="no such device"):
        check_cases("memcheck", cases(), Sanitizer(path, "1"), SECONDS, jobs=2)


LARGE = Sm90WsConfig(64, 64, 64, 2, "coop", 1, 2, 1, 8, "direct", 1, "m", 1, False)
PORTABLE = replace(LARGE, split_k=4)
MISSING_INIT = fake_sanitizer.SYNCCHECK.replace("Missing wait", "Missing init")


@pytest.mark.parametrize(
    ("name", "config", "played", "excused"),
    [
        ("synccheck", LARGE, ("fault", fake_sanitizer.SYNCCHECK), True),
        ("synccheck", LARGE, ("fault", ""), True),
        ("synccheck", LARGE, ("fault", MISSING_INIT + fake_sanitizer.SYNCCHECK), True),
        ("synccheck", PORTABLE, ("fault", MISSING_INIT), False),
        ("synccheck", CONFIGS[0], ("report", MISSING_INIT), False),
        ("racecheck", LARGE, ("fault", MISSING_INIT), False),
        ("synccheck", PORTABLE, ("fault", fake_sanitizer.SYNCCHECK), False),
        (
            "synccheck",
            LARGE,
            ("report", fake_sanitizer.SYNCCHECK.replace("Missing wait", "Invalid arguments")),
            False,
        ),
        ("synccheck", LARGE, ("fault", fake_sanitizer.MEMCHECK), False),
        ("synccheck", LARGE, ("wrong", ""), False),
        ("synccheck", LARGE, ("die", ""), False),
        ("memcheck", LARGE, ("fault", ""), False),
        ("synccheck", LARGE, ("clean", ""), False),
    ],
)
def test_what_the_tool_is_not_up_to_is_neither_a_finding_nor_clean(name, config, played, excused, tmp_path):
    path = fake_sanitizer.install(tmp_path, {config.build_name: played})
    checked = check_cases(name, cases([config, FIRST]), Sanitizer(path, "1"), SECONDS)
    assert [one.ran for one in checked] == [True, True] and not checked[1].findings
    assert bool(checked[0].limit) == excused and bool(checked[0].findings) == (played[0] != "clean")
    outcomes = [script.outcome(row(one)) for one in checked]
    assert outcomes == ["not applicable" if excused else "clean" if played[0] == "clean" else "found", "clean"]


def test_a_tool_that_never_reaches_a_kernel_is_our_error(tmp_path):
    path = fake_sanitizer.install(tmp_path, before="========= Error: No attachable process found.\n")
    with pytest.raises(WorkerError, match=r"racecheck failed before the first kernel.*No attachable process"):
        check_cases("racecheck", cases(), Sanitizer(path, "1"), SECONDS)
    path.write_text("#!/bin/sh\necho 'ModuleNotFoundError: no cuda'; exit 1\n")
    with pytest.raises(WorkerError, match=r"exit code 1.*ModuleNotFoundError"):
        check_cases("racecheck", cases(), Sanitizer(path, "1"), SECONDS)
    with pytest.raises(EnvironmentProblemError, match="cannot start"):
        check_cases("memcheck", cases(), Sanitizer(tmp_path / "nowhere", "1"), SECONDS)


def test_a_count_that_no_report_explains_is_our_error(tmp_path):
    path = tmp_path / "tool"
    path.write_text("#!/bin/sh\necho 'cudal2 case 0'; echo 'cudal2 done 0'; echo '========= ERROR SUMMARY: 5 errors'\n")
    path.chmod(0o755)
    with pytest.raises(WorkerError, match="counts 5 errors"):
        check_cases("synccheck", cases(CONFIGS[:1]), Sanitizer(path, "1"), SECONDS)


def test_it_is_found_where_toolkits_put_it(places, monkeypatch):
    with pytest.raises(EnvironmentProblemError, match=r"compute-sanitizer is not in PATH.*CUDA toolkit"):
        Sanitizer.locate()
    inside = fake_sanitizer.install(places / "cuda" / "compute-sanitizer")
    assert Sanitizer.locate() == Sanitizer(inside, "2025.3.1.0")
    toolkit = fake_sanitizer.install(places / "home" / "bin")
    monkeypatch.setenv("CUDA_HOME", str(places / "home"))
    assert Sanitizer.locate().path == toolkit
    fake_sanitizer.install(places / "path", version="something else")
    with pytest.raises(EnvironmentProblemError, match="does not answer as compute-sanitizer does"):
        Sanitizer.locate()


@cache
def planned(*families: str):
    """The script's plan of four values of each axis: the covers of whole spaces take seconds, and change nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script, "SearchSpace", few)
        return _plan(families)


def few(arch, family: str) -> SearchSpace:
    """The lower and the upper end of each axis."""
    values = {axis.name: (*axis.values[:2], *axis.values[2:][-2:]) for axis in FAMILIES[family].axes}
    return SearchSpace(arch, SpaceSettings(values, name="few", family=family))


@pytest.fixture
def machine(places: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A GPU that is not there, and compilers that have nothing to do."""
    monkeypatch.setattr(script, "require_gpu", lambda device: None)
    monkeypatch.setattr(script, "environment", lambda arguments, families: FINGERPRINT.to_dict())
    monkeypatch.setattr(script, "plan", lambda families: planned(*families))
    monkeypatch.setattr(script, "build", lambda arguments, corners: [Case(p, c, built(c)) for p, c in corners])
    return places


def run(monkeypatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["sanitize.py", *map(str, arguments)])
    return script.guarded(script.main)


def page(folder: Path) -> Path:
    path = folder / "page.md"
    path.write_text(f"above\n{script.BEGIN}\nold\n{script.END}\nbelow\n")
    return path


def test_a_run_is_kept_and_shown(machine, monkeypatch, capsys):
    fake_sanitizer.install(machine / "path")
    out = machine / "record.json"
    assert run(monkeypatch, "--families", "sm80_mma", "--tools", "memcheck", "racecheck", "--out", out) == 0
    shown = capsys.readouterr().out
    record = script.read(out)
    assert record["sanitizer"] == "2025.3.1.0" and record["environment"]["gpu"] == "fabricated for tests"
    tools = [case["tool"] for case in record["cases"]]
    assert tools.count("memcheck") == tools.count("racecheck") >= 60
    kinds = {(case["acc"], case["layout"]) for case in record["cases"]}
    assert len(kinds) == 4
    assert "Nothing was found." in shown and f"| `sm80_mma` | memcheck | {tools.count('memcheck')} |" in shown
    readme = page(machine)
    assert run(monkeypatch, "--from", out, "--readme", readme) == 0
    assert readme.read_text() == f"above\n{script.BEGIN}\n{shown.strip()}\n{script.END}\nbelow\n"


def test_a_limit_keeps_the_first_of_each_family(machine, monkeypatch, capsys):
    fake_sanitizer.install(machine / "path")
    out = machine / "record.json"
    families = ("sm80_mma", "sm90_small")
    assert run(monkeypatch, "--families", *families, "--tools", "memcheck", "--limit", "3", "--out", out) == 0
    corners, _ = planned(*families)
    of_each = ([config.name for _, config in corners if config.family == family][:3] for family in families)
    record = script.read(out)
    found = [case["config"] for case in record["cases"] if case["ran"]]
    assert sorted(found) == sorted(name for names in of_each for name in names)
    assert len(record["cases"]) == len(corners), "what is beyond the limit is not run, and said to be"


def test_a_finding_is_exit_code_1_one_line_and_a_row(machine, monkeypatch, capsys):
    corners, _ = planned("sm80_mma")
    config = corners[3][1]
    fake_sanitizer.install(machine / "path", {config.build_name: ("report", fake_sanitizer.RACECHECK)})
    assert run(monkeypatch, "--families", "sm80_mma", "--tools", "racecheck") == 1
    captured = capsys.readouterr()
    assert f"racecheck: {config.name} on " in captured.err and "1 x Error: Race reported between" in captured.err
    assert "- `sm80_mma`, racecheck, " in captured.out and config.name in captured.out


def test_a_limit_of_the_tool_is_shown_and_no_failure(machine, monkeypatch, capsys):
    corners, _ = planned("sm90_ws")
    cluster_size = FAMILIES["sm90_ws"].geometry.cluster_size
    config = next(config for _, config in corners if cluster_size(config) > 8)
    fake_sanitizer.install(machine / "path", {config.build_name: ("fault", fake_sanitizer.SYNCCHECK)})
    assert run(monkeypatch, "--families", "sm90_ws", "--tools", "synccheck") == 0
    captured = capsys.readouterr()
    assert " | 0 | 1 | 0 |\n\n- `sm90_ws`, synccheck, 1 configuration: Barrier error" in captured.out
    assert (
        "Not applicable: synccheck mixes up" in captured.out and "(not applicable: synccheck mixes up" in captured.err
    )


def test_an_interrupted_run_leaves_a_record(machine, monkeypatch, capsys):
    corners, _ = planned("sm80_mma")
    fake_sanitizer.install(machine / "path", {corners[5][1].build_name: ("interrupt", "")})
    out = machine / "record.json"
    assert run(monkeypatch, "--families", "sm80_mma", "--tools", "memcheck", "racecheck", "--out", out) == 130
    record = script.read(out)
    first = next(at for at, (_, config) in enumerate(corners) if config.build_name == corners[5][1].build_name)
    assert [case["ran"] for case in record["cases"]] == [at < first for at in range(2 * len(corners))]
    assert run(monkeypatch, "--from", out) == 0
    assert f"| `sm80_mma` | racecheck | {len(corners)} | 0 | 0 | 0 | {len(corners)} |" in capsys.readouterr().out


def test_the_same_command_goes_on_with_what_is_missing(machine, monkeypatch, capsys):
    corners, _ = planned("sm80_mma")
    found = corners[0][1]
    played = {found.build_name: ("report", fake_sanitizer.MEMCHECK), corners[5][1].build_name: ("interrupt", "")}
    fake_sanitizer.install(machine / "path", played)
    command = ("--families", "sm80_mma", "--tools", "memcheck", "--out", machine / "record.json")
    assert run(monkeypatch, *command) == 130
    before = script.read(machine / "record.json")["cases"]
    assert {case["ran"] for case in before} == {True, False}

    fake_sanitizer.install(machine / "path", {found.build_name: ("report", fake_sanitizer.MEMCHECK)})
    capsys.readouterr()
    assert run(monkeypatch, *command, "--jobs", "3") == 1, "what was found before is still found"
    ran = sum(case["ran"] for case in before)
    said = capsys.readouterr().err
    assert f"memcheck: {len(before) - ran} of {len(before) - ran} configurations in " in said
    assert f" s, {ran} known" in said
    after = script.read(machine / "record.json")["cases"]
    assert all(case["ran"] and case["cubin"] for case in after)
    assert [one for one, other in zip(after, before, strict=True) if other["ran"]] == [c for c in before if c["ran"]]


@pytest.mark.parametrize("other", ["kernels", "tool", "driver", "older record"])
def test_what_was_checked_of_other_kernels_or_otherwise_is_checked_anew(other, machine, monkeypatch, capsys):
    fake_sanitizer.install(machine / "path")
    out = machine / "record.json"
    command = ("--families", "sm80_mma", "--tools", "memcheck", "--limit", "2", "--out", out)
    assert run(monkeypatch, *command) == 0
    if other == "kernels":
        monkeypatch.setattr(script, "digest", lambda cubin: "f" * 16)
    elif other == "tool":
        fake_sanitizer.install(machine / "path", version="Version 2026.1.0.0 (build 1)")
    elif other == "driver":
        monkeypatch.setattr(script, "environment", lambda *_: {**FINGERPRINT.to_dict(), "driver": "999"})
    else:
        record = script.read(out)
        record["cases"] = [{key: value for key, value in case.items() if key != "cubin"} for case in record["cases"]]
        out.write_text(script.text_of(record))
    capsys.readouterr()
    assert run(monkeypatch, *command) == 0
    assert "memcheck: 2 of 2 configurations in " in (said := capsys.readouterr().err) and " s, 0 known" in said
    assert ("all is checked anew" in said) == (other in ("tool", "driver"))
    assert run(monkeypatch, *command) == 0
    assert "memcheck: 0 of 0 configurations in 0 s, 2 known" in capsys.readouterr().err


def test_records_of_several_runs_are_shown_one_after_the_other(machine, monkeypatch, capsys):
    fake_sanitizer.install(machine / "path")
    outs = {family: machine / f"{family}.json" for family in ("sm80_mma", "sm90_collective")}
    for family, out in outs.items():
        assert run(monkeypatch, "--families", family, "--tools", "memcheck", "--limit", "1", "--out", out) == 0
    capsys.readouterr()
    assert run(monkeypatch, "--from", *outs.values()) == 0
    shown = capsys.readouterr().out
    assert all(f"| `{family}` | memcheck | " in shown for family in outs)
    assert shown.count("compute-sanitizer 2025.3.1.0 on ") == 2


def test_time_is_shared_by_how_slow_tools_are_and_doubtful_cases_come_last(monkeypatch):
    turns = {}
    monkeypatch.setattr(
        script, "check_cases", lambda tool, ordered, *given, **named: turns.update({tool: (ordered, given[1])})
    )
    arguments = SimpleNamespace(minutes=10.0, tools=script.DEFAULT_TOOLS, device=0, jobs=1)
    mixed = cases([LARGE, FIRST, PORTABLE])
    script.check(arguments, Sanitizer(Path("none"), "1"), mixed, {}, [])
    assert list(turns) == ["memcheck", "synccheck", "racecheck"]
    seconds = [turn[1] for turn in turns.values()]
    assert seconds[0] == pytest.approx(60.0, abs=1.0) and seconds[2] == pytest.approx(600.0, abs=5.0)
    assert [case.config for case in turns["synccheck"][0]] == [FIRST, PORTABLE, LARGE]
    assert turns["racecheck"][0] == mixed


def test_bad_input_is_one_line(machine, monkeypatch, capsys):
    assert run(monkeypatch) == EnvironmentProblemError.exit_code
    assert run(monkeypatch, "--from", machine / "none.json") == RecordError.exit_code
    (machine / "bad.json").write_text("[]")
    assert run(monkeypatch, "--from", machine / "bad.json") == RecordError.exit_code
    assert run(monkeypatch, "--tools", "leakcheck") == UsageError.exit_code
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 4 and "install it with the CUDA toolkit" in errors[0]


def test_a_short_budget_reaches_every_family_and_kind():
    corners, _ = planned(*FAMILIES)
    kinds = 4 * len(FAMILIES)
    assert len({(config.family, p.acc, p.layout) for p, config in corners[:kinds]}) == kinds


def test_the_page_has_the_place_and_says_what_ships():
    text = (ROOT / "kernels" / "README.md").read_text()
    assert text.count(script.BEGIN) == text.count(script.END) == 1
    records = sorted((ROOT / "cudal2" / "data" / "sanitizer").glob("*.json"))
    assert records and "\n\n".join(script.summary(script.read(path)) for path in records) in text


def test_a_row_not_run_is_counted_apart():
    case = cases()[0]
    rows = [Checked("memcheck", case), Checked("memcheck", case, ran=False)]
    record = {
        "sanitizer": "1", "environment": FINGERPRINT.to_dict(), "utc": "2000-01-01T00:00:00", "never_legal": [],
        "cases": [row(one) for one in rows],
    }  # fmt: skip
    assert "| `sm90_ws` | memcheck | 2 | 1 | 0 | 0 | 1 |" in script.summary(record)
