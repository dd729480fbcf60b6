"""Choices of a table taken over for another accumulator, layout of B or type of operands."""

import dataclasses

from test_table import HEADER, LARGE, SMALL, entry, lost

from cudal2.cli.arguments import config
from cudal2.cli.main import main
from cudal2.table import KernelTable


def test_choices_go_over_to_the_other_layout_where_they_are_legal_and_give_way_to_what_is_measured(tmp_path, capsys):
    narrow = dataclasses.replace(SMALL, tile_n=32)
    thin = config("64x8x64_s2_wgmma4_k1_l128")
    rows = [entry("1024_1024_1024", LARGE), entry("64_64_64", narrow), entry("64_60_64"), entry("64_128_64", thin)]
    table = KernelTable(HEADER, [*rows, lost("8192_64_64")])
    moved = table.for_operands(layout="nn")
    assert [found.mnk for found in moved.entries] == ["64_64_64", "1024_1024_1024", "8192_64_64"], (
        "8 columns are no box, and 60 have no map: their copy would take time that nobody measured"
    )
    assert {found.evidence for found in moved.entries} == {"transferred"} and moved.header.layout == "nn"
    table.save(tmp_path / "tn.json")
    measured = KernelTable(moved.header, [entry("64_64_64", SMALL, median_us=9.0, evidence="searched")])
    measured.save(tmp_path / "nn.json")
    assert (
        main(["table", "transfer", str(tmp_path / "tn.json"), "--layout", "nn", "--out", str(tmp_path / "nn.json")])
        == 0
    )
    assert "3 shapes (1 searched, 2 transferred)" in capsys.readouterr().err
    assert KernelTable.load(tmp_path / "nn.json").lookup(64, 64, 64).config == SMALL
    assert (
        main(["table", "transfer", str(tmp_path / "tn.json"), "--layout", "tn", "--out", str(tmp_path / "x.json")]) == 2
    )
    assert "give another --acc" in capsys.readouterr().err and not (tmp_path / "x.json").exists()


def test_a_library_s_choice_goes_over_where_rows_of_the_operands_are_as_wide():
    alike, b_whole, b_narrower = "64_65_33", "64_64_33", "64_65_36"
    table = KernelTable(HEADER, [lost(mnk) for mnk in (alike, b_whole, b_narrower, "64_128_64")])
    moved = table.for_operands(layout="nn")
    assert [found.mnk for found in moved.entries] == [alike, "64_128_64"], "there it runs other routines"
    assert len(table.for_operands(dtype="bf16").entries) == 4


def test_choices_go_over_to_the_other_accumulator(tmp_path, run):
    KernelTable(HEADER, [entry("1024_1024_1024", LARGE), lost("8192_64_64")]).save(tmp_path / "fp32.json")
    code, _, err = run("table", "transfer", tmp_path / "fp32.json", "--acc", "fp16", "--out", tmp_path / "fp16.json")
    assert code == 0 and "2 shapes (2 transferred)" in err
    moved = KernelTable.load(tmp_path / "fp16.json")
    assert moved.header.acc == "fp16" and moved.lookup(1024, 1024, 1024).config == LARGE
    code, _, err = run(
        "table", "transfer", tmp_path / "fp32.json", "--acc", "fp16", "--dtype", "bf16", "--out", tmp_path / "no.json"
    )
    assert code == 2 and "no tensor core adds products of bf16 in fp16" in err


def test_choices_made_for_bf16_go_over_to_an_accumulator_that_bf16_lacks(tmp_path, run):
    header = dataclasses.replace(HEADER, dtype="bf16")
    KernelTable(header, [entry("1024_1024_1024", LARGE)]).save(tmp_path / "bf16.json")
    operands = ("--acc", "fp16", "--layout", "nn", "--dtype", "fp16")
    code, _, err = run("table", "transfer", tmp_path / "bf16.json", *operands, "--out", tmp_path / "fp16.json")
    assert code == 0 and "1 shape (1 transferred)" in err
    assert KernelTable.load(tmp_path / "fp16.json").header.problem(1, 1, 1).signature == ("fp16", "nn", "fp16")
