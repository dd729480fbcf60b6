"""A configuration on another shape than it was chosen for: legal, deterministic, and what follows from K follows it."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from pathlib import Path

import pytest
from fabricated_recording import FINGERPRINT

from cudal2.arch import SM90
from cudal2.errors import NothingValidError
from cudal2.problem import Problem
from cudal2.records.measurement import Measurement, Status
from cudal2.settings import SpaceSettings, load_shapes
from cudal2.space.config import KernelConfig, Sm80MmaConfig, Sm90SmallConfig, Sm90WsConfig
from cudal2.space.families import FAMILIES
from cudal2.space.refit import log_waste, off_sectors, refit, suited, transposed
from cudal2.space.space import SearchSpace
from cudal2.space.waves import waves_of
from cudal2.table import Header

ROOT = Path(__file__).parent.parent
SPACES = {name: SearchSpace(family=name) for name in FAMILIES}
SPLIT = Sm90WsConfig(64, 64, 64, 4, "coop", 1, 1, 1, 4, "direct", 1, "m", 1, False)
WAVES = Sm90WsConfig(128, 256, 64, 4, "coop", 2, 2, 1, 1, "tma", 1, "n", 8, True)
SMALL = Sm90SmallConfig(64, 32, 64, 2, "wgmma", 4, 1, 64)
MMA = Sm80MmaConfig(64, 64, 32, 3, 2, 2, "swizzle", 2, "plain", "direct", 2, 2, "m", 1)


def moved(config: KernelConfig, source: str, problem: str) -> KernelConfig | None:
    return refit(config, Problem.parse(source), Problem.parse(problem), SPACES[config.family])


@pytest.mark.parametrize(
    ("config", "source"),
    [(SPLIT, "64_512_4096"), (WAVES, "8192_8192_1024"), (SMALL, "128_128_128"), (MMA, "300_300_301")],
    ids=lambda value: value if isinstance(value, str) else value.family,
)
def test_it_is_legal_wherever_it_goes_and_itself_at_home(config: KernelConfig, source: str) -> None:
    assert moved(config, source, source) == config
    served = 0
    for mnk in [*load_shapes("judge96").shapes[::5], *load_shapes("sm80_odd").shapes]:
        found = moved(config, source, mnk)
        assert found == moved(config, source, mnk)
        served += found is not None
        assert found is None or SPACES[config.family].explain(found, Problem.parse(mnk)) == []
    assert served >= 10


def test_a_split_of_k_keeps_the_number_of_ctas() -> None:
    assert moved(SPLIT, "64_512_4096", "64_1024_4096").split_k == 2
    assert moved(SPLIT, "64_512_4096", "64_256_4096").split_k == 8
    assert moved(replace(SPLIT, split_k=1), "64_512_4096", "64_256_4096").split_k == 1


def test_a_ring_that_was_as_deep_as_k_is_so_again_and_a_shallow_one_stays() -> None:
    full = replace(SPLIT, split_k=1, stages=4)
    assert moved(full, "64_512_256", "64_512_512").stages == 8
    assert moved(full, "64_512_256", "64_512_128").stages == 2
    assert moved(full, "64_512_1024", "64_512_512").stages == 4


def test_a_prefetch_of_all_of_k_stays_one() -> None:
    whole = replace(SPLIT, split_k=1, stages=2, l2_prefetch=2)
    assert moved(whole, "64_512_128", "64_512_1024").l2_prefetch == 64
    assert moved(whole, "64_512_512", "64_512_1024").l2_prefetch == 2
    assert moved(replace(whole, l2_prefetch=64), "64_512_512", "64_512_128").l2_prefetch == 2


def test_a_that_stays_is_all_of_a_or_none() -> None:
    kept = Sm90WsConfig(128, 128, 64, 6, "pingpong", 2, 1, 1, 1, "tma", 1, "m", 1, True, resident_a=2)
    assert moved(kept, "4096_12288_128", "4096_12000_128") == kept
    deeper, shorter = (moved(kept, "4096_12288_128", mnk) for mnk in ("4096_12000_208", "4096_12000_64"))
    assert deeper == replace(kept, resident_a=4) and shorter == replace(kept, resident_a=1)
    shared = replace(kept, schedule="coop")
    one_wave, long = (moved(shared, "4096_12288_128", mnk) for mnk in ("1024_1024_128", "4096_12000_1024"))
    assert isinstance(one_wave, Sm90WsConfig) and isinstance(long, Sm90WsConfig)
    assert one_wave.resident_a == long.resident_a == 0 and not one_wave.persistent


def test_a_last_wave_is_shared_out_where_there_is_one_and_may_be() -> None:
    streams = Sm90WsConfig(128, 128, 64, 6, "pingpong", 2, 1, 1, 1, "tma", 1, "m", 8, True, stream_k=True)
    assert moved(streams, "8192_8192_8192", "8192_8192_4096") == streams
    for full_or_short in ("4096_4096_4096", "8192_8192_512", "8448_8192_8192"):
        found = moved(streams, "8192_8192_8192", full_or_short)
        assert isinstance(found, Sm90WsConfig) and not found.stream_k, full_or_short
    # What the last wave is taken for does not hide that a tile wastes, where it cannot be shared out.
    wide = replace(streams, tile_n=256, schedule="coop", stages=4)
    for source, target in (("8192_7168_8192", "1024_2048_8192"), ("8192_7168_8192", "3072_3072_512")):
        assert moved(wide, source, target) == moved(replace(wide, stream_k=False), source, target)
    waste = [log_waste(replace(streams, stream_k=shared), Problem(8192, 8192, 8192), SM90) for shared in (False, True)]
    assert waste == [pytest.approx(math.log(32 * 132 / 4096)), pytest.approx(math.log(31.125 * 132 / 4096))]


@pytest.mark.parametrize(
    ("tiles", "shared_out"),
    # None; eight parts of each at most; four; two, of which the second is shared by as many, or by fewer clusters.
    [(264, 2.0), (268, 2.125), (297, 2.25), (330, 2.5), (352, 2 + 2 / 3), (363, 2.75)],
)
def test_the_busiest_cluster_of_a_shared_last_wave_has_this_much_of_a_tile(tiles: int, shared_out: float) -> None:
    assert float(waves_of(tiles, 132, True)) == pytest.approx(shared_out)
    assert float(waves_of(tiles, 132, False)) == (2.0 if tiles == 264 else 3.0)


def test_whole_waves_waste_nothing_and_a_tile_more_wastes_a_wave() -> None:
    tile = replace(SPLIT, split_k=1, stages=2)
    assert log_waste(tile, Problem(64, 64 * 132, 256), SM90) == pytest.approx(0.0)
    assert log_waste(tile, Problem(64, 64 * 133, 256), SM90) == pytest.approx(0.685, abs=0.01)


def test_the_transposed_product_by_the_other_operand_is_the_same_work() -> None:
    problem = Problem(512, 128, 1024)
    turned = transposed(problem, WAVES)
    assert turned is not None and turned[0] == Problem(128, 512, 1024) and turned[1].swap_ab
    assert transposed(*turned) == (problem, WAVES)
    assert log_waste(WAVES, problem, SM90) == log_waste(turned[1], turned[0], SM90)
    assert transposed(problem, SMALL) is None and transposed(replace(problem, layout="nn"), WAVES) is None


def test_what_a_neighbour_costs_is_read_out_of_the_shape_s_own_records() -> None:
    spec = importlib.util.spec_from_file_location("neighbours", ROOT / "scripts" / "neighbours.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    one, other, alone = Problem(512, 512, 512), Problem(512, 512, 1024), Problem(512, 4096, 512)
    deep, wide = replace(SPLIT, split_k=1, stages=8), replace(SPLIT, split_k=1, stages=8, tile_n=128)
    behind = {one: {deep: 0.0, wide: 0.2}, other: {wide: 0.0, replace(deep, stages=12): 0.1}, alone: {wide: 0.0}}
    header = Header.from_fingerprint(FINGERPRINT, "fp32", "tn")
    found = script.regrets(behind, header, [one, other])
    assert found == {one: pytest.approx(math.expm1(0.2)), other: pytest.approx(math.expm1(0.1))}
    assert script.regrets({one: {deep: 0.0}, alone: {wide: 0.0}}, header, [one]) == {one: None}


def test_what_a_table_would_serve_stands_beside_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    spec = importlib.util.spec_from_file_location("neighbours", ROOT / "scripts" / "neighbours.py")
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    one, other = Problem(512, 512, 512), Problem(512, 512, 1024)
    deep, wide = replace(SPLIT, split_k=1, stages=8), replace(SPLIT, split_k=1, stages=8, tile_n=128)
    rows = [
        Measurement(problem, "sm90_ws", config, Status.CORRECT, times_us=(us,) * 3, ref_times_us=(2.0,) * 3, pdl=True)
        for problem, config, us in ((one, deep, 1.0), (one, wide, 1.6), (other, deep, 2.5))
    ]
    beside = script.log_beside(rows)
    assert beside == {
        one: {deep: pytest.approx(math.log(0.5)), wide: pytest.approx(math.log(0.8))},
        other: {deep: pytest.approx(math.log(1.25))},
    }
    assert script.nearest(wide, beside[one]) == beside[one][wide] and script.nearest(None, beside[one]) == 0.0
    assert script.nearest(replace(wide, stages=6), beside[one]) == beside[one][wide]
    assert script.nearest(MMA, beside[one]) is None and script.nearest(replace(deep, padded=True), beside[one]) is None
    script.show_beside(beside, {one: wide, other: None})
    said = capsys.readouterr().out.splitlines()[-1]
    assert (
        said == "2 of 2 shapes: 1.118x cuBLASLt, the best known 1.414x; ahead on 1, behind on 0; 1 library, 1 measured"
    )
    with pytest.raises(NothingValidError):
        script.log_beside([])


def test_a_k_tile_of_sm80_mma_is_no_deeper_than_k() -> None:
    deep = replace(MMA, tile_k=64, stages=2, copy_bytes=4, fragments=1)
    found = moved(deep, "891_136_50", "900_130_38")
    assert isinstance(found, Sm80MmaConfig) and (found.tile_k, found.tile_m) == (32, 64)
    assert moved(deep, "891_136_50", "900_130_50") is not None
    kept = moved(deep, "891_136_50", "900_130_58")
    assert kept is not None and kept.tile_k == 64


def test_a_tile_that_hardly_covers_the_shape_gives_way_on_the_side_that_is_free() -> None:
    swapped = replace(SPLIT, swap_ab=True, split_k=1)
    found = moved(swapped, "64_16384_1024", "72_16384_1024")
    assert found is not None and (found.tile_m, found.tile_n) == (80, 64)
    assert moved(swapped, "64_16384_1024", "128_16384_1024").tile_m == 64
    assert moved(swapped, "64_4096_1024", "72_4096_1024").tile_m == 64  # one wave either way
    # wgmma's own side is of 64 rows: the other one gives way alone.
    assert moved(replace(SPLIT, split_k=1), "64_16384_1024", "72_16384_1024").tile_m == 64
    assert moved(replace(SPLIT, split_k=1), "16384_64_1024", "16384_88_1024").tile_n in (48, 88)


@pytest.mark.parametrize(
    ("config", "source", "shapes"),
    [(WAVES, "8192_8192_1024", ("8192_8192_{}", "8000_8192_{}")), (SMALL, "128_128_128", ("128_128_{}", "64_128_{}"))],
    ids=["sm90_ws", "sm90_small"],
)
def test_rows_that_leave_the_sectors_of_l2_are_fetched_by_fewer_bytes(
    config: KernelConfig, source: str, shapes: tuple[str, str]
) -> None:
    on, off = shapes[1].format(144), shapes[1].format(136)
    assert moved(config, source, on).l2_promotion == 256
    assert moved(config, source, off).l2_promotion == 128
    # On its own shape it stays, and where it was chosen on such rows.
    home = shapes[0].format(136)
    assert moved(config, home, home) == config
    assert moved(config, home, off).l2_promotion == 256
    fewer = replace(config, l2_promotion=128)
    assert [moved(fewer, source, mnk).l2_promotion for mnk in (source, on, off)] == [128] * 3


def test_rows_of_b_are_of_n_where_it_is_row_major() -> None:
    def promotion(layout: str, source: str, mnk: str) -> int:
        problems = [Problem.parse(name, layout=layout) for name in (source, mnk)]
        return refit(SMALL, *problems, SPACES["sm90_small"]).l2_promotion

    assert promotion("tn", "128_128_128", "128_136_128") == 256
    assert promotion("nn", "128_128_128", "128_136_128") == 128
    assert promotion("nn", "128_128_128", "128_144_128") == 256
    assert promotion("nn", "128_128_128", "136_128_136") == 128, "A's"
    turned = refit(SMALL, Problem(128, 136, 128), Problem(128, 136, 128, layout="nn"), SPACES["sm90_small"])
    assert turned is not None and turned.l2_promotion == 128


@pytest.mark.parametrize("config", [WAVES, SMALL], ids=lambda config: config.family)
def test_a_space_that_holds_one_promotion_keeps_it(config: KernelConfig) -> None:
    held = SearchSpace(settings=SpaceSettings(axes={"l2_promotion": (256,)}, family=config.family))
    found = refit(config, Problem(4096, 4096, 1024), Problem(4096, 4096, 1032), held)
    assert found is not None and found.l2_promotion == 256


def test_where_tma_cannot_store_the_rows_of_c_registers_do() -> None:
    hinted = replace(WAVES, store_hint="evict_first")
    found = moved(hinted, "8192_8192_1024", "8192_8191_1024")
    assert found is not None and (found.epilogue, found.store_hint) == ("shifted", "normal")
    assert (found.tile_m, found.tile_n, found.schedule) == (WAVES.tile_m, WAVES.tile_n, WAVES.schedule)
    assert moved(hinted, "8192_8192_1024", "8191_8192_1024").epilogue == "tma"
    assert moved(found, "8192_8191_1024", "8192_8192_1024").epilogue == "tma", "no row is shifted there"
    light = replace(SPLIT, split_k=1, epilogue="shifted")
    assert moved(light, "512_511_512", "512_512_512").epilogue == "direct"
    assert moved(replace(light, tile_n=88), "512_511_512", "512_512_512").epilogue == "tma"


def test_rows_of_c_decide_how_sm80_mma_stages_them() -> None:
    staged = replace(MMA, epilogue="wide", copy_bytes=16)
    large, small, aligned = Problem(1000, 301, 304), Problem(300, 301, 304), Problem(1000, 304, 304)
    direct = replace(staged, epilogue="direct")
    for config in (staged, direct):
        assert suited(config, large) == replace(staged, epilogue="shifted")
        assert suited(config, small) == direct, "two barriers cost more than narrow stores of a small C"
        assert suited(config, aligned) == config
    assert suited(suited(staged, large), aligned) == staged
    found = moved(replace(staged, epilogue="shifted", copy_bytes=2), "300_301_301", "320_304_301")
    assert isinstance(found, Sm80MmaConfig) and found.epilogue == "wide"


def test_swapped_operands_are_turned_where_tma_cannot_store_the_rows_of_c() -> None:
    swapped = replace(WAVES, swap_ab=True, tile_m=176, tile_n=128)
    turned = moved(swapped, "8192_8192_1024", "8192_8191_1024")
    assert turned is not None and (turned.tile_m, turned.tile_n, turned.swap_ab) == (128, 176, False)
    assert turned.epilogue == "shifted"
    flat = moved(replace(SPLIT, swap_ab=True, split_k=1, tile_m=16), "16_16384_1024", "16_16383_1024")
    assert flat is not None and (flat.tile_m, flat.swap_ab, flat.epilogue) == (16, True, "direct"), "C has 16 rows"
    split = moved(replace(SPLIT, swap_ab=True), "64_4096_4096", "64_4095_4096")
    assert split is not None and (split.swap_ab, split.epilogue) == (True, "direct"), "sums are stored in pairs"


def test_a_swapped_kernel_that_is_turned_for_row_major_b_has_whole_boxes() -> None:
    row_major = replace(WAVES, cluster_m=1, swap_ab=True, tile_m=152, tile_n=128, stages=5, schedule="pingpong")
    source, odd = Problem(8192, 2048, 6000, layout="nn"), Problem(8192, 2044, 6000, layout="nn")
    space = SPACES["sm90_ws"]
    assert not space.explain(row_major, source)
    kept = refit(row_major, source, odd, space)
    assert kept is not None and (kept.tile_m, kept.tile_n, kept.swap_ab) == (128, 128, False), "152 columns are none"
    assert not space.explain(kept, odd)


def test_a_split_that_goes_leaves_a_kernel_that_is_stored_whole() -> None:
    split = replace(SPLIT, swap_ab=True)
    whole = moved(split, "128_512_8192", "2048_2047_8192")
    assert whole is not None and (whole.split_k, whole.swap_ab, whole.epilogue) == (1, False, "shifted")


def test_what_was_chosen_on_a_shape_stays_as_it_is_there() -> None:
    odd = Problem(8192, 8191, 1024)
    for config in (
        replace(WAVES, epilogue="direct"),
        replace(WAVES, swap_ab=True, tile_m=176, tile_n=128, epilogue="direct"),
    ):
        assert not SPACES["sm90_ws"].explain(config, odd)
        assert refit(config, odd, odd, SPACES["sm90_ws"]) == config


def test_store_buffers_go_with_the_boxes() -> None:
    assert suited(replace(WAVES, store_buffers=3), Problem(8192, 8191, 1024)).store_buffers == 2


def test_operands_are_copied_first_where_tma_cannot_read_their_rows_and_nowhere_else() -> None:
    ahead = replace(WAVES, l2_prefetch=2)
    odd = moved(ahead, "8192_8192_1024", "8192_8192_1021")
    assert odd == replace(WAVES, padded=True), "nothing of a copy can be fetched before"
    assert moved(odd, "8192_8192_1021", "8192_8192_1024") == WAVES
    assert moved(odd, "8192_8192_1021", "8192_8192_1020") == odd, "however wide the rows are"
    assert moved(WAVES, "8192_8192_1024", "8192_8191_1021") == replace(WAVES, padded=True, epilogue="shifted")
    assert suited(WAVES, Problem(64, 60, 64)).padded is False
    assert suited(WAVES, Problem(64, 60, 64, layout="nn")).padded is True
    # The same shape with B row-major, as tables of another layout take their choices over.
    row_major = refit(WAVES, Problem(8192, 8188, 1024), Problem(8192, 8188, 1024, layout="nn"), SPACES["sm90_ws"])
    assert row_major == replace(WAVES, padded=True, epilogue="shifted")
    assert moved(WAVES, "8192_8192_1024", "20000_20000_8001") is None, "no room for the copies"
    assert moved(SMALL, "128_128_128", "128_128_127") is None, "a family without copies"


def test_copies_are_on_the_sectors_of_l2() -> None:
    assert moved(WAVES, "8192_8192_1024", "8192_8192_1021").l2_promotion == 256
    assert moved(replace(WAVES, padded=True), "8192_8192_1021", "8192_8192_1032").l2_promotion == 128
    odd, half = Problem(512, 512, 511), Problem(512, 520, 511, layout="nn")
    assert off_sectors(odd) and not off_sectors(odd, padded=True)
    assert off_sectors(half, padded=True), "rows of B are read where they are"
    assert refit(WAVES, Problem(8192, 8192, 1024, layout="nn"), replace(half, m=8192, n=8200), SPACES["sm90_ws"]) == (
        replace(WAVES, padded=True, l2_promotion=128)
    )


def test_a_kernel_of_sm80_mma_begins_to_split_a_long_k_alone() -> None:
    space = SearchSpace(family="sm80_mma")
    whole = Sm80MmaConfig(32, 32, 64, 3, 2, 2, "swizzle", 1, "plain", "direct", 2, 1, "m", 1)
    source = Problem(512, 512, 151)
    split = refit(whole, source, Problem(64, 64, 2001), space)
    assert split is not None and split.split_k == 16, "four tiles for 256 CTAs"
    short = refit(whole, source, Problem(64, 64, 151), space)
    assert short is not None and short.split_k == 1, "three K tiles are one slice of two at most"
    sliced = replace(whole, split_k=3, stages=2)
    kept = refit(sliced, Problem(64, 64, 151), Problem(60, 60, 151), space)
    assert kept is not None and kept.split_k == 3, "what was chosen with one K tile a slice stays so"


def test_few_rows_or_columns_that_were_one_tile_stay_one() -> None:
    rows = Sm90WsConfig(16, 64, 128, 8, "coop", 1, 1, 1, 1, "direct", 1, "m", 1, False, swap_ab=True)
    for m, tile in ((8, 16), (16, 16), (17, 32), (32, 32), (40, 48), (64, 64)):
        assert moved(rows, "16_4096_4096", f"{m}_4096_4096").tile_m == tile
    assert moved(rows, "64_4096_4096", "60_4096_4096").tile_m == 16, "they were four tiles there"
    columns = Sm90WsConfig(64, 16, 128, 8, "coop", 1, 1, 1, 1, "direct", 1, "m", 1, False)
    assert moved(columns, "4096_16_4096", "4096_32_4096").tile_n == 32


def test_tiles_taken_over_to_row_major_b_are_whole_boxes() -> None:
    space = SearchSpace(family="sm90_ws")
    config = Sm90WsConfig(128, 112, 64, 6, "pingpong", 2, 1, 1, 1, "tma", 1, "m", 4, True)
    source, problem = Problem(4096, 4096, 4096), Problem(4096, 4096, 4096, layout="nn")
    found = refit(config, source, problem, space)
    assert found is not None and found.tile_n == 128
    for kept in (replace(config, tile_n=96), replace(config, tile_m=112, tile_n=128, swap_ab=True)):
        same = refit(kept, source, problem, space)
        assert same is not None and same.tile_n == kept.tile_n
    own = refit(config, problem, Problem(4096, 4080, 4096, layout="nn"), space)
    assert own is not None and own.tile_n == 112, "somebody chose it there"
