"""bf16 beside fp16: figures, tables and recordings of the two never meet, and every command takes ``--dtype``."""

from __future__ import annotations

import argparse
import json
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from fabricated_finals import CONFIG, final_rows
from fabricated_recording import FINGERPRINT, SPACE, made_up_row

from cudal2.bench.judge.evaluate import Evaluation, reproduce_command, write
from cudal2.bench.rounds import RoundLimits
from cudal2.cli import arguments, foreign
from cudal2.cli.main import main, parser
from cudal2.errors import RecordError, TableError, UsageError
from cudal2.launch.plan import plan_launch
from cudal2.problem import Problem
from cudal2.records.finals import group_finals
from cudal2.records.measurement import Measurement
from cudal2.records.recording import Recording
from cudal2.records.shards import RecordLog, read_shards
from cudal2.report.board import boards
from cudal2.report.notes import lead
from cudal2.report.readme import results_markdown
from cudal2.report.spread import check_comparable
from cudal2.runtime.kernels import DeviceKernels
from cudal2.settings import BenchSettings
from cudal2.space.space import SearchSpace
from cudal2.table import Entry, Header, KernelTable

NAME = "128x128x64_s4_coop2_c1x1_k1_tma_o1_m1"
FP16 = final_rows("64_64_64", 1.0, {"cublaslt_auto_tn": 2.0})
HEADER = Header.from_fingerprint(FINGERPRINT, "fp32", "tn")


def in_bf16(rows: list[Measurement]) -> list[Measurement]:
    return [replace(row, problem=replace(row.problem, dtype="bf16")) for row in rows]


def entry(mnk: str) -> Entry:
    sizes = Problem.parse(mnk)
    return Entry(sizes.m, sizes.n, sizes.k, replace(CONFIG, group=1, persistent=False), None, 4.0, 5.0, "final")


def tables(folder: Path) -> None:
    entries = [entry("1024_1024_1024"), entry("64_64_64")]
    KernelTable(HEADER, entries).save(folder / "fp16.json")


def test_a_shape_has_a_final_of_each_type_on_leaderboards_of_their_own() -> None:
    bf16 = in_bf16(final_rows("64_64_64", 3.0, {"cublaslt_auto_tn": 2.0}))
    found = {board.key: board for board in boards([*FP16, *bf16])}
    assert list(found) == ["offline/bf16/off", "offline/fp32/off"]
    ratios = {key: board.standings[0].overall.geomean for key, board in found.items()}
    assert ratios == {"offline/bf16/off": pytest.approx(2 / 3), "offline/fp32/off": pytest.approx(2.0)}
    assert found["offline/bf16/off"].title == "Offline, bf16 operands, fp32 accumulation, our PDL off"
    assert found["offline/fp32/off"].title == "Offline, fp32 accumulation, our PDL off"


def test_no_speed_up_is_given_across_the_types() -> None:
    with pytest.raises(RecordError, match="operands fp16 against bf16"):
        check_comparable(FP16[0], in_bf16(FP16)[1])


def test_a_torch_that_may_sum_in_bf16_is_not_compared() -> None:
    ours, other = in_bf16(FP16)
    narrow = replace(other, detail="torch 2.11 allow_bf16_reduced_precision_reduction=True")
    with pytest.raises(RecordError, match="fp32 sums against allow_bf16_reduced_precision_reduction=True"):
        check_comparable(ours, narrow)


def test_the_reports_say_which_type(tmp_path: Path) -> None:
    with RecordLog(tmp_path, FINGERPRINT) as log:
        log.append([*FP16, *in_bf16(FP16)])
    shards = read_shards(tmp_path)
    assert "C = A B, fp16 or bf16 in and out" in lead(shards, boards(shards.measurements))
    assert "C = A B, fp16 in and out" in lead(shards, boards(FP16))
    made = [KernelTable(replace(HEADER, dtype=dtype), [entry("64_64_64")]) for dtype in ("fp16", "bf16")]
    text = results_markdown(shards, made)
    bf16, fp16 = text.split("### Offline, ")[1:]
    assert bf16.startswith("bf16 operands, fp32 accumulation") and "_bf16_tn` serves" in bf16
    assert fp16.startswith("fp32 accumulation") and "_fp32_tn` serves" in fp16 and "_bf16_tn`" not in fp16


def test_records_keep_the_type_and_a_table_is_made_of_one(tmp_path: Path) -> None:
    with RecordLog(tmp_path, FINGERPRINT) as log:
        log.append([*FP16, *in_bf16(final_rows("128_64_64", 1.0, {"cublaslt_auto_tn": 2.0}))])
    rows = read_shards(tmp_path).measurements
    assert {row.problem.dtype for row in rows} == {"fp16", "bf16"}
    for dtype, mnk in (("fp16", "64_64_64"), ("bf16", "128_64_64")):
        table = KernelTable.from_measurements(rows, FINGERPRINT, dtype=dtype)
        assert [one.mnk for one in table.entries] == [mnk] and table.header.dtype == dtype


def test_a_recording_of_both_answers_for_each(tmp_path: Path) -> None:
    space = SearchSpace(settings=SPACE)
    problems = [Problem(128, 256, 512, dtype=dtype) for dtype in ("fp16", "bf16")]
    rows = [made_up_row(problem, config) for problem in problems for config in space.enumerate(problem)]
    slower = [replace(row, times_us=tuple(2 * time for time in row.times_us)) for row in rows[len(rows) // 2 :]]
    Recording.publish([*rows[: len(rows) // 2], *slower], tmp_path / "both.parquet", [FINGERPRINT], space)
    loaded = Recording.load(tmp_path / "both.parquet")
    fp16, bf16 = (loaded.measurement(problem, int(loaded.recorded(problem)[0])) for problem in problems)
    assert (fp16.problem, bf16.problem) == tuple(problems)
    assert not fp16.ok or bf16.median_us == pytest.approx(2 * fp16.median_us, rel=1e-6)
    with pytest.raises(RecordError, match=r"\(bf16 nn\) was not recorded; .*problems of bf16 tn, fp32 tn"):
        loaded.problem_index(Problem(128, 256, 512, layout="nn", dtype="bf16"))


def test_tables_of_the_two_types_do_not_mix(tmp_path: Path) -> None:
    fp16, bf16 = (KernelTable(replace(HEADER, dtype=dtype), [entry("64_64_64")]) for dtype in ("fp16", "bf16"))
    assert (fp16.header.kind, bf16.header.kind) == ("sm90_132sm_141gb_fp32_tn", "sm90_132sm_141gb_bf16_tn")
    with pytest.raises(TableError, match="is for sm90_132sm_141gb_bf16_tn, not for sm90_132sm_141gb_fp32_tn"):
        fp16.merge(bf16)
    bf16.save(tmp_path / "bf16.json")
    assert KernelTable.load(tmp_path / "bf16.json", HEADER.device, dtype="bf16").header == bf16.header
    with pytest.raises(TableError, match="is for sm90_132sm_141gb_bf16_tn"):
        KernelTable.load(tmp_path / "bf16.json", HEADER.device)


def test_without_a_bf16_table_the_choices_made_for_fp16_serve_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tables(tmp_path)
    monkeypatch.setenv("CUDAL2_TABLE_PATH", str(tmp_path))
    with caplog.at_level(logging.WARNING):
        found = KernelTable.load(None, HEADER.device, dtype="bf16")
    assert f"no bf16 table for tn: the choices of {tmp_path / 'fp16.json'}, made for fp16" in caplog.text
    assert found.header.dtype == "bf16" and {one.evidence for one in found.entries} == {"transferred"}
    best = found.best(1024, 1024, 1024)
    assert best is not None and best.config == entry("1024_1024_1024").config
    KernelTable(replace(HEADER, dtype="bf16"), [entry("64_64_64")]).save(tmp_path / "bf16.json")
    assert KernelTable.load(None, HEADER.device, dtype="bf16").path == tmp_path / "bf16.json"
    assert KernelTable.load(None, HEADER.device).path == tmp_path / "fp16.json"
    with pytest.raises(UsageError, match="no tensor core adds products of bf16 in fp16"):
        KernelTable.load(None, HEADER.device, "fp16", dtype="bf16")


def test_hgemm_loads_a_kernel_of_the_type_of_its_operands() -> None:
    table, loads = KernelTable(HEADER, [entry("512_512_512")]), []

    def load(config: object, problem: Problem) -> SimpleNamespace:
        loads.append(problem.dtype)
        return SimpleNamespace(plan=plan_launch)

    kernels = DeviceKernels(HEADER.device, load)
    problems = [Problem(512, 512, 512, dtype=dtype) for dtype in ("fp16", "bf16", "fp16")]
    routes = [kernels.route(problem, table.for_operands(dtype=problem.dtype)) for problem in problems]
    assert loads == ["fp16", "bf16"]
    assert routes[0].kernel is routes[2].kernel is not routes[1].kernel
    assert [route.plan.a and route.plan.a.dtype for route in routes] == ["fp16", "bf16", "fp16"]


def test_table_transfer_takes_it_to_the_other_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables(tmp_path)
    source, made = str(tmp_path / "fp16.json"), str(tmp_path / "bf16.json")
    assert main(["table", "transfer", source, "--dtype", "bf16", "--out", made]) == 0
    assert KernelTable.load(made).header.kind == "sm90_132sm_141gb_bf16_tn"
    assert main(["table", "transfer", source, "--dtype", "fp16", "--out", made]) == 2
    assert "is for fp32, tn and fp16 already" in capsys.readouterr().err


def test_render_says_the_type_and_names_the_kernel_by_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["render", "--config", NAME, "--dtype", "bf16"]) == 0
    text = capsys.readouterr()
    assert "kBf16 = true" in text.out and "bf16, fp32 accumulator" in text.err
    assert main(["space", "--mnk", "64_64_64", "--dtype", "bf16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dtype"] == "bf16"


@pytest.mark.parametrize(
    "line",
    [
        ["render", "--config", NAME],
        ["space", "--mnk", "64_64_64"],
        ["build", "--config", NAME],
        ["search", "--mnk", "64_64_64", "--backend", "replay"],
        ["record", "--mnk", "64_64_64", "--out", "runs/none"],
        ["train", "--mnk", "64_64_64", "--backend", "replay", "--run-dir", "runs/none"],
        ["profile", "--mnk", "64_64_64"],
        ["table", "show"],
        ["eval", "--mnk", "64_64_64"],
    ],
    ids=lambda line: line[0],
)
def test_fp16_accumulation_of_bf16_is_one_line_with_the_reason(
    line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*line, "--dtype", "bf16", "--acc", "fp16"]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert "no tensor core adds products of bf16 in fp16: give bf16 an fp32 accumulator" in said[-1]


def test_replay_without_a_bf16_recording_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["search", "--backend", "replay", "--dtype", "bf16", "--budget", "1"]) == 2
    assert "no bf16 recording of sm90_ws ships with this package" in capsys.readouterr().err


def test_cuda_l2_s_kernels_are_fp16_alone(tmp_path: Path) -> None:
    given = parser().parse_args(
        ["eval", "--mnk", "64_64_64", "--dtype", "bf16", "--source", str(tmp_path / "k.cu"), "--legacy-cuda-l2"]
    )
    problem = Problem.parse(given.mnk, given.acc_precise, given.layout, given.dtype)
    with pytest.raises(UsageError, match="CUDA-L2's kernels take fp16 tensors alone: leave out --dtype bf16"):
        foreign.build(given, problem, BenchSettings())


def test_an_evaluation_of_bf16_is_written_and_repeated_as_such(tmp_path: Path) -> None:
    rows = tuple(in_bf16(FP16))
    evaluation = Evaluation(rows[0].problem, rows, (), BenchSettings(), RoundLimits(9))
    assert group_finals(rows)[0].key == "offline/bf16/off"
    command = reproduce_command(evaluation, [])
    assert "--dtype bf16" in command
    paths = write(evaluation, tmp_path, {}, command)
    assert {path.name for path in paths} == {"64_64_64_bf16_offline.json", "64_64_64_bf16_offline_pdl_off.csv"}
    assert json.loads(paths[0].read_text())["problem"]["dtype"] == "bf16"


def test_problems_of_the_command_line_have_the_type() -> None:
    given = argparse.Namespace(mnk="64_64_64", shapes=None, shapes_file=None, acc="fp32", layout="nn", dtype="bf16")
    assert arguments.problems(given) == [Problem(64, 64, 64, "fp32", "nn", "bf16")]
