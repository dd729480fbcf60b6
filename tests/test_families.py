"""The kernel families through everything that is generic over them: names, records, replay, tables, search."""

from __future__ import annotations

import copy
import pickle
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from fabricated_recording import FINGERPRINT

from cudal2.arch import ARCHS, SM80, SM86, SM90
from cudal2.bench.judge.evaluate import table_configs
from cudal2.build.artifact import BuiltKernel
from cudal2.cli import arguments as shared
from cudal2.cli.main import main
from cudal2.errors import NothingValidError, RecordError, UsageError
from cudal2.paths import data_dir
from cudal2.problem import Problem
from cudal2.records.measurement import Measurement, Status
from cudal2.records.recording import Recording, bundled_recording, read_records
from cudal2.runners.replay import ReplayRunner
from cudal2.search.analytic import columns_of
from cudal2.search.base import Budget, search
from cudal2.search.strategies import STRATEGIES
from cudal2.settings import SpaceSettings, load_space
from cudal2.space.config import CONFIGS, KernelConfig, Sm80MmaConfig, Sm90SmallConfig, Sm90WsConfig
from cudal2.space.defaults import default_configs, fallback_config
from cudal2.space.estimate import predict_us
from cudal2.space.families import FAMILIES, family_of, family_on
from cudal2.space.space import SearchSpace
from cudal2.table import Device, Entry, Header, KernelTable, tuned_elsewhere

MMA = Sm80MmaConfig(64, 64, 32, 3, 2, 2, "swizzle", 2, "plain", "wide", 16, 2, "m", 1)
WS = Sm90WsConfig(64, 64, 64, 2, "coop", 1, 1, 1, 1, "tma", 1, "m", 1, False)
SMALL = Sm90SmallConfig(64, 32, 64, 4, "wgmma", 4, 1, 64)
ODD = Problem(123, 456, 789)
SPACE = SpaceSettings(
    axes={
        "tile_m": (32, 64),
        "tile_n": (64, 128),
        "tile_k": (32,),
        "warps_m": (2,),
        "warps_n": (2,),
        "stages": (2, 3),
        "fragments": (2,),
        "prefetch": ("plain",),
        "ctas_per_sm": (1,),
        "group": (1, 4),
    },
    name="tiny",
    family="sm80_mma",
)


@pytest.mark.parametrize("config", [MMA, WS, SMALL, replace(SMALL, l2_prefetch=0)], ids=lambda config: config.family)
def test_a_configuration_survives_its_json_and_its_name(config: KernelConfig) -> None:
    again = KernelConfig.from_dict(config.to_dict())
    assert again == config and type(again) is type(config)
    assert shared.config(config.name) == config
    assert type(shared.config(config.build_name)) is type(config)
    assert family_of(config).config is type(config)


@pytest.mark.parametrize("config", [WS, replace(WS, persistent=True), SMALL], ids=lambda config: config.name)
def test_names_tell_what_is_fetched_apart_and_read_back(config: KernelConfig) -> None:
    fetched = [(prefetch, promotion) for prefetch in (0, 64) for promotion in (256, 128)]
    every = [replace(config, l2_prefetch=ahead, l2_promotion=promotion) for ahead, promotion in fetched]
    assert [shared.config(one.name) for one in every] == every
    assert len({one.name for one in every}) == 4 and len({one.build_name for one in every}) == 1
    tails = ["", "l128", "f64", "f64l128"]
    head = every[0].name if config.family == "sm90_ws" else f"{config.build_name}_"
    assert [one.name for one in every] == [f"{head}{tail}".removesuffix("_") for tail in tails]
    for tail in ("l", "l128l128", "l128f64", "_l128f64", "f64_l128", "f64l", "l-128", "l+128", "l\u0661\u0662\u0668"):
        with pytest.raises(UsageError, match="no configuration name"):
            shared.config(f"{head}{tail}")
    for tail in ("l0", "l64", "l129", "l512", "f64l64"):
        with pytest.raises(
            UsageError, match=r"l2_promotion = .*(can be no value|is not on the axis: choose one of 256)"
        ):
            shared.config(f"{head}{tail}")


def test_a_small_kernel_s_name_ends_in_no_underscore() -> None:
    with pytest.raises(UsageError, match="no configuration name"):
        shared.config(f"{SMALL.build_name}_")


@pytest.mark.parametrize("kind", CONFIGS.values(), ids=lambda kind: kind.family)
def test_rows_older_than_a_field_had_its_default(kind: type[KernelConfig]) -> None:
    """Every field of an axis that was added, alone and with the others; no field that was there from the first."""
    space = SearchSpace(SM90, family=kind.family)
    values = space.from_flat(0).to_dict()
    for names in (*({name} for name in kind.added), kind.added):
        row = {name: value for name, value in values.items() if name not in names}
        read = KernelConfig.from_dict(row)
        assert read == KernelConfig.from_dict({**values, **{name: kind.added_defaults()[name] for name in names}})
    with pytest.raises(UsageError, match="missing fields"):
        KernelConfig.from_dict({name: value for name, value in values.items() if name != "tile_m"})


@pytest.mark.parametrize("name", ["sm90_swept", "sm90_small_swept"])
def test_shipped_rows_that_lack_the_promotion_had_256_bytes(name: str) -> None:
    path = data_dir() / "searched" / f"h200_{name}_fp32_tn.parquet"
    assert "l2_promotion" not in pyarrow.parquet.read_schema(path).names
    configs = [row.config for row in read_records(path).measurements]
    assert configs and {config.l2_promotion for config in configs if config is not None} == {256}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({**MMA.to_dict(), "family": "sm80_other"}, "sm80_other"),
        ({**MMA.to_dict(), "family": "sm90_ws"}, "warps_m"),
        ({**MMA.to_dict(), "family": []}, "family"),
        ({**MMA.to_dict(), "smem_layout": "tma"}, "smem_layout"),
        ({**MMA.to_dict(), "warps_m": True}, "warps_m"),
        ({**SMALL.to_dict(), "variant": "fma"}, "variant"),
        ({**SMALL.to_dict(), "split_k": 0}, "split_k"),
        ({**SMALL.to_dict(), "l2_prefetch": -1}, "l2_prefetch"),
        ({**SMALL.to_dict(), "l2_promotion": 0}, "l2_promotion"),
        ({**WS.to_dict(), "l2_promotion": "128"}, "l2_promotion"),
    ],
)
def test_a_configuration_of_no_family_is_refused(values: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        KernelConfig.from_dict(values)


def test_a_value_off_the_axis_is_refused_by_the_family() -> None:
    with pytest.raises(UsageError, match="copy_bytes"):
        shared.config(replace(MMA, copy_bytes=32).name)


def test_each_architecture_has_its_first_family() -> None:
    assert {name: family_on(arch).name for name, arch in ARCHS.items()} == {
        "sm90": "sm90_ws",
        "sm80": "sm80_mma",
        "sm86": "sm80_mma",
    }
    with pytest.raises(UsageError, match="does not run on sm80: choose sm80_mma"):
        SearchSpace(SM80, family="sm90_ws")
    with pytest.raises(UsageError, match="does not run on sm86: choose sm80_mma"):
        SearchSpace(SM86, family="sm90_small")
    with pytest.raises(UsageError, match="is of family sm80_mma, not sm90_ws"):
        SearchSpace(SM90, SPACE, "sm90_ws")


def test_a_family_survives_pickling_as_itself() -> None:
    for family in FAMILIES.values():
        assert pickle.loads(pickle.dumps(family)) is family
    space = SearchSpace(SM90, SPACE)
    assert copy.deepcopy(space).legal_count(ODD) == space.legal_count(ODD)


def test_a_space_knows_its_own_family_only() -> None:
    space = SearchSpace(family="sm80_mma")
    assert space.explain(MMA, Problem(512, 512, 512)) == []
    assert space.explain(WS, Problem(512, 512, 512))[0].startswith("family: sm90_ws is not sm80_mma")
    with pytest.raises(UsageError, match="this space holds sm80_mma"):
        space.flat(WS)
    for flat in space.legal_flat(ODD)[::5_000]:
        assert space.flat(space.from_flat(int(flat))) == flat


def test_the_settings_name_a_family() -> None:
    assert load_space("sm80").family == load_space("sm80_record").family == "sm80_mma"
    assert SearchSpace(SM90, load_space("sm80")).family.name == "sm80_mma"
    assert SearchSpace(SM80).digest == SearchSpace(SM80, load_space("sm80")).digest
    for mnk in ("64_64_64", "64_4096_64", "4096_4096_4096", "64_64_16384", "256_16384_128"):
        assert 20 <= SearchSpace(SM90, load_space("sm80_record")).legal_count(Problem.parse(mnk)) <= 400


# Defaults


def test_defaults_are_legal_on_every_kind_of_shape() -> None:
    for mnk in ("64_64_64", "64_4096_64", "16384_16384_16384", "64_64_16384", "1000_104_88"):
        problem = Problem.parse(mnk)
        for family in FAMILIES:
            chosen, space = default_configs(problem, SM90, family), SearchSpace(family=family)
            assert chosen and all(not space.explain(config, problem) for config in chosen)
        assert default_configs(problem, SM90) == default_configs(problem, SM90, "sm90_ws")
        assert fallback_config(problem, SM90) is None, "the table's family can take it"


@pytest.mark.parametrize("mnk", ["123_456_789", "1_1_1", "1_4096_4097", "4097_33_129", "64_64_7", "9000_8999_4001"])
def test_odd_shapes_get_kernels_that_can_take_them(mnk: str) -> None:
    for layout in ("tn", "nn"):
        problem = Problem.parse(mnk, layout=layout)  # type: ignore[arg-type]
        for family in ("sm90_ws", "sm80_mma"):
            chosen, space = default_configs(problem, SM90, family), SearchSpace(family=family)
            assert chosen and all(not space.explain(config, problem) for config in chosen)
        padded = default_configs(problem, SM90)
        assert padded == default_configs(problem, SM90, "sm90_ws")
        assert fallback_config(problem, SM90) in (*padded, *default_configs(problem, SM90, "sm80_mma"))
        with pytest.raises(NothingValidError, match="--config"):
            default_configs(problem, SM90, "sm90_small")
    assert default_configs(Problem.parse(mnk), SM80) and fallback_config(Problem.parse(mnk), SM80) is None


@pytest.mark.parametrize(
    ("mnk", "epilogue"), [("5481_1344_68", "wide"), ("5481_1343_68", "shifted"), ("400_401_68", "direct")]
)
def test_defaults_of_sm80_mma_store_c_as_its_rows_and_size_suggest(mnk: str, epilogue: str) -> None:
    assert {getattr(config, "epilogue", "") for config in default_configs(Problem.parse(mnk), SM80)} == {epilogue}


def test_a_default_of_few_tiles_splits_a_long_k_and_no_other() -> None:
    slices = [config.split_k for config in default_configs(Problem(40, 40, 4001), SM80)]
    assert set(slices) > {1} and slices == sorted(slices, key=lambda split: split > 1), "whole ones come first"
    for mnk in ("4000_4001_4001", "40_40_63"):
        assert {config.split_k for config in default_configs(Problem.parse(mnk), SM80)} == {1}


def test_where_no_kernel_of_the_table_s_family_can_be_the_fallback_is_the_model_s_choice() -> None:
    assert fallback_config(Problem(9000, 8999, 4001), SM90).name.startswith("128x256x64_s4_coop2")
    assert fallback_config(Problem(40, 40, 4001), SM90).split_k > 1
    assert fallback_config(Problem(60, 60, 63), SM90).family == "sm80_mma", "a copy would take longer"
    too_large = fallback_config(Problem(20000, 20000, 8001), SM90)
    assert too_large is not None and too_large.family == "sm80_mma", "no room for the copies"
    assert fallback_config(Problem(2**31 - 1, 1, 1), SM90) is None


# Records and replay


def made_up(problem: Problem, config: KernelConfig) -> Measurement:
    time_us = 1.0 + config.tile_m / problem.m + 0.1 * config.stages
    return Measurement(problem, config.family, config, Status.CORRECT, times_us=(time_us,) * 3, ref_times_us=(2.0,) * 3)


def test_a_recording_of_the_family_is_published_loaded_searched_and_replayed(tmp_path: Path) -> None:
    space, path = SearchSpace(SM90, SPACE), tmp_path / "mma.parquet"
    problems = [ODD, Problem(256, 512, 96)]
    rows = [made_up(problem, config) for problem in problems for config in space.enumerate(problem)]
    Recording.publish(rows, path, [FINGERPRINT], space)
    recording = Recording.load(path)
    assert recording.space.family.name == recording.metadata.family == "sm80_mma"
    assert recording.space.digest == space.digest
    assert sorted(row.config.name for row in read_records(path).measurements if row.config) == sorted(
        row.config.name for row in rows if row.config
    )
    runner = ReplayRunner(recording)
    for problem in problems:
        assert recording.missing(problem) == 0
        best = search("exhaustive", STRATEGIES["exhaustive"], runner, problem, Budget(None), 0).best
        assert best is not None and best.config is not None and best.config.tile_m == 32
        assert search("analytic", STRATEGIES["analytic"], runner, problem, Budget(4), 0).best is not None


def test_one_recording_holds_one_family(tmp_path: Path) -> None:
    problem = Problem(256, 512, 96)
    with pytest.raises(RecordError, match="one kernel family"):
        Recording.from_measurements([made_up(problem, MMA), made_up(problem, WS)], [FINGERPRINT])
    with pytest.raises(RecordError, match="one kernel family"):
        Recording.publish([made_up(problem, WS)], tmp_path / "x.parquet", [FINGERPRINT], SearchSpace(SM90, SPACE))
    alone = Recording.from_measurements([made_up(problem, MMA)], [FINGERPRINT])
    assert alone.space.family.name == "sm80_mma"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_model_and_the_observation_take_any_family(family: str) -> None:
    space, problem = SearchSpace(family=family), Problem(1000, 2000, 3000)
    legal = space.legal_flat(problem)[::97]
    times = predict_us(columns_of(space, legal), problem)
    assert np.isfinite(times).all() and (times > 0).all() and np.unique(times).size > 10


# Tables


def entry(mnk: str, config: KernelConfig) -> Entry:
    m, n, k = map(int, mnk.split("_"))
    return Entry(m, n, k, config, None, 3.0, 4.0, "final")


def test_a_table_serves_each_shape_by_a_family_that_can_take_it() -> None:
    header = Header.from_fingerprint(FINGERPRINT, "fp32", "tn")
    odd = replace(MMA, copy_bytes=2, group=4)
    table = KernelTable(header, [entry("256_512_512", WS), entry("200_300_511", odd), entry("256_256_512", MMA)])
    found = {mnk: table.best(*map(int, mnk.split("_"))) for mnk in ("256_512_512", "200_299_513", "240_500_513")}
    assert {mnk: best.config.family for mnk, best in found.items() if best and best.config} == {
        "256_512_512": "sm90_ws",
        "200_299_513": "sm80_mma",
        "240_500_513": "sm90_ws",
    }, "each element is used often enough to be copied first"
    small = replace(odd, group=2, epilogue="direct")
    assert found["200_299_513"].config == small, "four rows of tiles: a smaller group; few odd rows of C: direct stores"
    text = table.to_text()
    assert '"family": "sm80_mma"' in text and '"family": "sm90_ws"' in text


def test_eval_takes_the_family_that_can_where_the_table_has_nothing() -> None:
    table = KernelTable(Header.from_fingerprint(FINGERPRINT, "fp32", "tn"), [entry("256_512_512", WS)])
    assert table_configs(Problem(256, 512, 512), table, SM90)[0] == [WS]
    assert table_configs(Problem(320, 456, 789), table, SM90)[1].endswith("padded_m1, from the table's 256_512_512")
    configs, why = table_configs(Problem(123, 456, 78901), table, SM90)
    assert len(configs) > 1 and all(config.padded for config in configs)
    assert "the table has nothing near for 123_456_78901" in why
    too_large, _ = table_configs(Problem(20000, 20000, 8001), table, SM90)
    assert {config.family for config in too_large} == {"sm80_mma"}


def test_a_mixed_table_is_read_back(tmp_path: Path) -> None:
    table = KernelTable(
        Header.from_fingerprint(FINGERPRINT, "fp32", "tn"), [entry("256_512_512", WS), entry("1_2_3", MMA)]
    )
    table.save(tmp_path / "t.json")
    assert KernelTable.load(tmp_path / "t.json").entries == table.entries


def test_a_recording_of_a_second_family_is_found_by_its_whole_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cudal2.records.recording.data_dir", lambda: tmp_path)
    (tmp_path / "recordings").mkdir()
    names = [f"h200_{stem}_fp32_tn.parquet" for stem in ("sm80", "sm90", "sm90_small", "sm90_wide", "sm90_collective")]
    for name in names:
        (tmp_path / "recordings" / name).touch()
    found = {family: bundled_recording("fp32", family).name for family in FAMILIES}
    assert found == {
        "sm90_ws": names[1],
        "sm90_small": names[2],
        "sm80_mma": names[0],
        "sm90_collective": names[4],
    }
    (tmp_path / "recordings" / names[2]).unlink()
    with pytest.raises(RecordError, match="of sm90_small ships"):
        bundled_recording("fp32", "sm90_small")


MMA_NAME = "16x16x16_s2_w1x1_swizzle_f1_plain_direct_b16_o1_m1"
WS_NAME = "64x32x64_s2_coop1_c2x1_k1_tma_o1_m1"


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything builds at once."""

    def build_all(requests, *_: object, **__: object):
        none = Path("none")
        return {config.name: BuiltKernel(config.name, "", none, 32, 0, 0, 384, 0.0, none) for config, *_ in requests}

    monkeypatch.setattr("cudal2.build.pool.build_all", build_all)
    monkeypatch.setattr("cudal2.build.cache.resolve_toolchain", lambda *_: None)


@pytest.mark.parametrize(
    "command",
    [("render", "--config"), ("build", "--limit", "1", "--config"), ("space", "--explain")],
    ids=lambda command: command[0],
)
def test_a_named_configuration_is_judged_in_the_space_of_its_own_family(command, capsys, no_compiler) -> None:
    shape = ("--mnk", "64_64_64")
    assert main([*command, MMA_NAME, *shape]) == 0
    assert main([*command, WS_NAME, *shape]) == 0
    capsys.readouterr()
    for flags in (("--arch", "sm80"), ("--family", "sm80_mma")):
        assert main([*command, WS_NAME, *shape, *flags]) == 2
        assert capsys.readouterr().err.splitlines()[-1].startswith("error: ")


def test_a_configuration_that_is_not_built_is_told(capsys, no_compiler) -> None:
    assert main(["build", "--config", MMA_NAME, "--config", f"{WS_NAME}p", "--mnk", "1_8_8"]) == 0
    assert f"{WS_NAME}p is illegal for 1_8_8: persistent_single_wave: " in capsys.readouterr().err
    assert main(["build", "--config", WS_NAME, "--mnk", "1_7_7"]) == 2
    assert main(["build", "--config", WS_NAME, "--config", f"{WS_NAME}p", "--mnk", "1_7_7"]) == 2
    one, *several, error = capsys.readouterr().err.splitlines()
    assert one.startswith(f"error: {WS_NAME} is illegal for 1_7_7: alignment: ") and len(several) == 2
    assert error == "error: no configuration given is legal for any of these shapes: the lines above say why"


@pytest.mark.parametrize("shape", ["64_64_512", ""])
def test_one_illegal_configuration_is_the_same_line_and_code_to_every_command(shape, capsys, no_compiler) -> None:
    """The first is legal for no shape, the second for others than this."""
    never, here = "256x256x128_s12_coop1_c1x1_k1_tma_o1_m1", "128x128x64_s4_coop2_c1x1_k1_tma_o1_m16p"
    for name in (never, here):
        said = []
        for command in (["render", "--config"], ["build", "--config"], ["space", "--explain"]):
            if not shape and command[0] == "space":
                continue
            code = main([*command, name, *(("--mnk", shape) if shape else ())])
            assert code == (2 if shape or name == never else 0)
            said.append([line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")])
        assert all(lines == said[0] for lines in said)
        if shape or name == never:
            (line,) = said[0]
            assert line.startswith(f"error: {name} is illegal for {shape or 'any shape'}: ")
            assert re.search(r"; `cudal2 space --mnk \w+ --explain` gives all \d reasons$", line)


@pytest.mark.parametrize("flags", [("--arch", "sm80"), ("--family", "sm80_mma")], ids=lambda flags: flags[1])
@pytest.mark.parametrize("command", ["search", "train"])
def test_a_recording_of_another_family_is_not_replayed(command, flags, capsys) -> None:
    recording = str(bundled_recording())
    assert main([command, "--backend", "replay", "--recording", recording, *flags]) == 2
    assert "sm90_ws" in capsys.readouterr().err.splitlines()[-1]


# Tables across families and alignments


def mma_entry(mnk: str, config: KernelConfig | None = MMA, median_us: float = 4.0) -> Entry:
    p, baseline = Problem.parse(mnk), None if config else "cublaslt_auto"
    reason = "" if config else "ours took 9 us"
    return Entry(p.m, p.n, p.k, config, baseline, median_us, 8.0, "searched", reason=reason)


def test_kernels_that_cannot_copy_serve_rows_that_tma_cannot_read_if_measured_on_such_alone() -> None:
    narrow = replace(MMA, copy_bytes=2)
    table = KernelTable(
        Header.from_fingerprint(FINGERPRINT, "fp32", "tn"),
        [mma_entry("128_512_800", None), mma_entry("128_512_512", MMA), mma_entry("200_300_401", narrow)],
    )
    found = table.best(123, 456, 789)
    assert found is not None and (found.config, found.mnk) == (narrow, "200_300_401")
    assert found.evidence == "transferred"
    wide = table.best(200, 304, 400)
    assert wide is not None and wide.mnk == "128_512_512"
    assert table.best(200, 301, 402) is not None
    aligned = KernelTable(table.header, [mma_entry("800_800_401", narrow)])
    large = aligned.best(800, 804, 401)
    assert large is not None and large.config == replace(narrow, epilogue="shifted"), "its C begins inside 16 bytes"
    assert aligned.best(800, 808, 401) is not None and aligned.best(300, 300, 401) is not None
    assert table.best(2000, 2000, 2001) is None
    reason = "no measured shape whose choice holds for rows that TMA cannot read is within 4x"
    assert reason in table.explain(2000, 2000, 2001)


@pytest.mark.parametrize(("k", "width"), [(401, 2), (402, 4), (404, 8)])
def test_a_neighbour_of_the_family_copies_as_wide_as_the_shape_s_rows_allow(k: int, width: int) -> None:
    entry = mma_entry("200_300_405", replace(MMA, copy_bytes=2))
    table = KernelTable(Header.from_fingerprint(FINGERPRINT, "fp32", "tn"), [entry])
    found = table.best(210, 300, k)
    assert found is not None and found.config == replace(MMA, copy_bytes=width, epilogue="direct")
    assert not SearchSpace(family="sm80_mma").explain(found.config, Problem(210, 300, k))


def test_a_neighbour_with_wider_rows_says_nothing_of_narrower_ones() -> None:
    table = KernelTable(Header.from_fingerprint(FINGERPRINT, "fp32", "tn"), [mma_entry("200_300_404")])
    assert table.best(210, 300, 412) is not None
    assert table.best(210, 300, 402) is None and table.best(210, 300, 401) is None


def test_tables_of_two_families_merge_without_a_warning_and_keep_both_versions(caplog) -> None:
    ours, theirs = (
        KernelTable(Header.from_fingerprint(replace(FINGERPRINT, generator_version=version), "fp32", "tn"), [entry])
        for version, entry in (("aa", mma_entry("128_512_512", WS)), ("bb", mma_entry("123_456_789")))
    )
    merged = ours.merge(theirs)
    assert merged.header.soft["generator_version"] == "aa+bb" and merged.families == {"sm90_ws", "sm80_mma"}
    assert merged.merge(theirs).header == theirs.merge(merged).header == merged.header and not caplog.text
    assert not merged.header.soft_differences({"generator_version": "bb+aa"})
    other = KernelTable(replace(ours.header, soft={**ours.header.soft, "generator_version": "cc"}), ours.entries)
    ours.merge(other)
    assert "generator_version: measured with aa, here cc" in caplog.text


def elsewhere_rows() -> list[Measurement]:
    """The fastest does not fit an A100, the next is for Hopper alone, and all lose to the library."""
    large = Sm80MmaConfig(128, 128, 64, 6, 2, 2, "swizzle", 2, "plain", "wide", 16, 1, "m", 1)
    problem = Problem(1024, 1024, 1024)
    assert SearchSpace(SM80, family="sm80_mma").explain(large, problem) and not SearchSpace(
        SM90, family="sm80_mma"
    ).explain(large, problem)
    return [
        Measurement(problem, config.family, config, Status.CORRECT, times_us=(time_us,) * 5, ref_times_us=(3.0,) * 5)
        for config, time_us in ((large, 4.0), (WS, 5.0), (MMA, 6.0), (replace(MMA, stages=2), 7.0))
    ]


def test_a_table_for_a_gpu_nobody_had_holds_what_runs_there_and_says_where_it_was_tuned(tmp_path: Path) -> None:
    rows = [row for row in elsewhere_rows() if row.config != WS]
    Recording.publish(rows, tmp_path / "made_up.parquet", [FINGERPRINT])
    out = tmp_path / "a100.json"
    assert main(["table", "make", str(tmp_path / "made_up.parquet"), "--arch", "sm80", "--out", str(out)]) == 0
    table = KernelTable.load(out)
    assert table.header.device == Device.from_memory((8, 0), 108, 79.2)
    assert table.header.soft["gpu"] == f"tuned on {FINGERPRINT.gpu}"
    (entry,) = table.entries
    assert (entry.config, entry.median_us, entry.ref_us, entry.evidence) == (MMA, 6.0, None, "transferred")
    with_hopper = tuned_elsewhere(elsewhere_rows(), FINGERPRINT, SM80)
    assert [one.to_dict() for one in with_hopper.entries] == [one.to_dict() for one in table.entries]
