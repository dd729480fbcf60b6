"""Golden renders; rewrite them after a change of the template on purpose with ``python tests/test_codegen.py``."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import pytest

from cudal2 import codegen
from cudal2.errors import ToolchainError, UsageError
from cudal2.paths import kernels_dir
from cudal2.space.config import Sm80MmaConfig, Sm90CollectiveConfig, Sm90SmallConfig, Sm90WsConfig
from cudal2.space.families import FAMILIES
from cudal2.space.sm90_ws import geometry

GOLDEN = Path(__file__).parent / "golden"
BASE = Sm90WsConfig(
    tile_m=128,
    tile_n=256,
    tile_k=64,
    stages=4,
    schedule="coop",
    consumers=2,
    cluster_m=2,
    cluster_n=1,
    split_k=1,
    epilogue="tma",
    ctas_per_sm=1,
)
SPLIT = dataclasses.replace(BASE, tile_n=64, cluster_m=1, split_k=4, epilogue="direct", persistent=False)
LIGHT = dataclasses.replace(BASE, tile_n=96, schedule="pingpong", tile_m=64, stages=3, cluster_m=1, ctas_per_sm=2)
SHARED = dataclasses.replace(BASE, tile_n=128, schedule="pingpong", cluster_m=1, stream_k=True)
MMA = Sm80MmaConfig(128, 128, 32, 4, 2, 2, "swizzle", 2, "plain", "wide", 16, 2)
ODD = Sm80MmaConfig(16, 96, 16, 3, 1, 2, "pad", 1, "staggered", "direct", 2, 4)
SLICED = Sm80MmaConfig(32, 32, 128, 2, 2, 2, "swizzle", 1, "plain", "direct", 2, 1, split_k=4)
SMALL = Sm90SmallConfig(64, 32, 64, 4, "wgmma", 4, 1)
TINY = Sm90SmallConfig(32, 32, 128, 2, "mma", 4, 8)
COLLECTIVE = Sm90CollectiveConfig(128, 256, 64, cluster_m=2, raster="m", max_swizzle=8)
STREAM_K = Sm90CollectiveConfig(128, 128, 128, stages=3, epilogue="nosmem", scheduler="stream_k", split_k=4)
ONE_TILE = Sm90CollectiveConfig(64, 32, 64, schedule="warpspecialized")
RENDERS = [
    (BASE, "fp32", "tn", "fp16"),
    (SPLIT, "fp32", "tn", "fp16"),
    (SHARED, "fp32", "tn", "fp16"),
    (LIGHT, "fp16", "nn", "fp16"),
    (LIGHT, "fp32", "nn", "bf16"),
    (MMA, "fp32", "tn", "fp16"),
    (ODD, "fp16", "nn", "fp16"),
    (MMA, "fp32", "nn", "bf16"),
    (SLICED, "fp32", "tn", "fp16"),
    (SMALL, "fp32", "tn", "fp16"),
    (TINY, "fp16", "nn", "fp16"),
    (COLLECTIVE, "fp32", "tn", "fp16"),
    (STREAM_K, "fp16", "nn", "fp16"),
    (ONE_TILE, "fp32", "nn", "bf16"),
]


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    return Path(shutil.copytree(kernels_dir(), tmp_path / "kernels"))


@pytest.mark.parametrize("request_", RENDERS, ids=lambda request: "-".join((request[0].build_name, *request[1:])))
def test_render_is_the_golden_one(request_):
    source = codegen.render(*request_)
    assert source.text == (GOLDEN / f"{source.name}.cu").read_text(encoding="utf-8")


@pytest.mark.parametrize("config", [BASE, SMALL, MMA], ids=lambda config: config.family)
def test_no_placeholder_is_left(config):
    assert "$" not in codegen.render(config, "fp32", "tn").text


@pytest.mark.parametrize("change", [{"raster": "n"}, {"group": 1}, {"persistent": False}])
def test_run_time_axes_leave_no_trace(change):
    assert codegen.render(dataclasses.replace(BASE, **change), "fp32", "tn") == codegen.render(BASE, "fp32", "tn")


@pytest.mark.parametrize(
    "change",
    [
        {"tile_m": 256},
        {"tile_n": 128},
        {"tile_k": 128},
        {"stages": 3},
        {"schedule": "pingpong"},
        {"consumers": 1},
        {"cluster_m": 1},
        {"cluster_n": 2},
        {"split_k": 2},
        {"epilogue": "direct"},
        {"ctas_per_sm": 2},
        {"swap_ab": True},
        {"split_k": 2, "split_via": "workspace", "epilogue": "direct"},
        {"producer_registers": 24},
        {"store_hint": "evict_first"},
        {"store_buffers": 4},
        {"resident_a": 2},
        {"stream_k": True},
        {"padded": True},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_compile_time_axis_makes_another_kernel(change):
    other, base = codegen.render(dataclasses.replace(BASE, **change), "fp32", "tn"), codegen.render(BASE, "fp32", "tn")
    assert other.name != base.name
    assert other.digest != base.digest
    assert other.text.splitlines()[1:] != base.text.splitlines()[1:], "only the comment changed"


@pytest.mark.parametrize(
    "change",
    [
        {"tile_m": 64},
        {"tile_n": 64},
        {"tile_k": 64},
        {"stages": 3},
        {"warps_m": 1},
        {"warps_n": 1},
        {"smem_layout": "pad"},
        {"fragments": 1},
        {"prefetch": "staggered"},
        {"epilogue": "direct"},
        {"copy_bytes": 8},
        {"ctas_per_sm": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_compile_time_axis_of_sm80_mma_makes_another_kernel(change):
    other, base = codegen.render(dataclasses.replace(MMA, **change), "fp32", "tn"), codegen.render(MMA, "fp32", "tn")
    assert other.name != base.name
    assert other.text.splitlines()[1:] != base.text.splitlines()[1:], "only the comment changed"
    assert codegen.render(dataclasses.replace(MMA, raster="n", group=1), "fp32", "tn") == base


@pytest.mark.parametrize(
    "change",
    [{"tile_m": 128}, {"tile_n": 64}, {"tile_k": 128}, {"stages": 3}, {"variant": "mma"}, {"warps": 8}, {"split_k": 2}],
    ids=lambda change: next(iter(change)),
)
def test_every_compile_time_axis_of_sm90_small_makes_another_kernel(change):
    other, base = (codegen.render(config, "fp32", "tn") for config in (dataclasses.replace(SMALL, **change), SMALL))
    assert other.name != base.name
    assert other.text.splitlines()[1:] != base.text.splitlines()[1:], "only the comment changed"
    assert codegen.render(dataclasses.replace(SMALL, l2_prefetch=64), "fp32", "tn") == base


@pytest.mark.parametrize("config", [BASE, SMALL, MMA], ids=lambda config: config.family)
def test_accumulator_layout_and_dtype_make_other_kernels(config):
    kinds = [(acc, layout, "fp16") for acc in ("fp32", "fp16") for layout in ("nn", "tn")]
    sources = [codegen.render(config, *kind) for kind in (*kinds, ("fp32", "nn", "bf16"), ("fp32", "tn", "bf16"))]
    assert len({source.digest for source in sources}) == len({source.name for source in sources}) == 6


def test_the_name_of_an_fp16_kernel_does_not_say_so_which_keeps_caches_and_records_valid():
    assert codegen.build_key(MMA, "fp32", "tn") == codegen.build_key(MMA, "fp32", "tn", "fp16")
    assert codegen.build_key(MMA, "fp32", "tn", "fp16").endswith("_fp32_tn")
    assert codegen.build_key(MMA, "fp32", "tn", "bf16").endswith("_bf16_tn")


@pytest.mark.parametrize("config", [BASE, MMA], ids=lambda config: config.family)
def test_fp16_accumulation_of_bf16_is_refused_with_the_reason(config):
    with pytest.raises(UsageError, match=r"no tensor core adds products of bf16 in fp16.*acc = fp32"):
        codegen.render(config, "fp16", "tn", "bf16")


def test_source_carries_what_the_cubin_must_live_up_to():
    source = codegen.render(BASE, "fp32", "tn")
    assert source.threads == geometry.threads(BASE) == 384
    assert source.smem_bytes == geometry.smem_bytes(BASE)
    assert source.register_pool == 128 * (40 + 2 * 232) == 64_512
    assert codegen.render(LIGHT, "fp16", "nn").register_pool == 0


def test_edited_header_makes_another_kernel_and_touched_one_does_not(kernels):
    before = codegen.render(BASE, "fp32", "tn", kernels=kernels)
    header = kernels / "include" / "cudal2" / "sm90_ws.cuh"
    os.utime(header, (0, 0))
    assert codegen.render(BASE, "fp32", "tn", kernels=kernels).digest == before.digest
    version = codegen.generator_version("sm90_ws", kernels=kernels)
    header.write_text(header.read_text() + "\n")
    assert codegen.render(BASE, "fp32", "tn", kernels=kernels).digest != before.digest
    assert codegen.generator_version("sm90_ws", kernels=kernels) != version


def test_a_header_included_by_a_header_counts_and_a_missing_one_is_named(kernels):
    version = codegen.generator_version("sm90_ws", kernels=kernels)
    header = kernels / "include" / "cudal2" / "raster.cuh"
    header.write_text(header.read_text() + "\n")
    assert codegen.generator_version("sm90_ws", kernels=kernels) != version
    header.rename(header.with_name("order.cuh"))
    with pytest.raises(ToolchainError, match=r"raster\.cuh: reinstall"):
        codegen.render(BASE, "fp32", "tn", kernels=kernels)


@pytest.mark.parametrize("family", FAMILIES)
def test_another_family_changes_neither_version_nor_digest(family, kernels):
    config = {"sm90_ws": BASE, "sm90_small": SMALL, "sm80_mma": MMA, "sm90_collective": COLLECTIVE}[family]
    version, digest = (
        codegen.generator_version(family, kernels=kernels),
        codegen.render(config, "fp32", "tn", kernels=kernels).digest,
    )
    (kernels / "new.cu.in").write_text("// a third family")
    (kernels / "include" / "cudal2" / "new.cuh").write_text("// its header")
    for other in set(FAMILIES) - {family}:
        for path in (kernels / f"{other}.cu.in", kernels / "include" / "cudal2" / f"{other}.cuh"):
            path.write_text(path.read_text() + "\n")
        assert codegen.generator_version(other, kernels=kernels) != codegen.generator_version(other)
    assert codegen.generator_version(family, kernels=kernels) == version
    assert codegen.render(config, "fp32", "tn", kernels=kernels).digest == digest


def test_the_version_of_several_families_is_their_versions_by_name():
    versions = [codegen.generator_version(name) for name in sorted(FAMILIES)]
    assert codegen.generator_version(*FAMILIES, "sm90_ws") == "+".join(versions)
    assert len(set(versions)) == len(FAMILIES)


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"raster": "n"}, True),
        ({"max_swizzle": 1}, True),
        ({"tile_k": 128}, False),
        ({"stages": 3}, False),
        ({"schedule": "pingpong"}, False),
        ({"cluster_n": 2}, False),
        ({"epilogue": "nosmem"}, False),
        ({"scheduler": "stream_k"}, False),
    ],
)
def test_run_time_axes_of_sm90_collective_share_a_kernel(change, same):
    changed = dataclasses.replace(COLLECTIVE, **change)
    texts = [codegen.render(config, "fp32", "tn").text for config in (COLLECTIVE, changed)]
    assert (texts[0] == texts[1]) is same and changed.name != COLLECTIVE.name
    assert (codegen.build_key(changed, "fp32", "tn") == codegen.build_key(COLLECTIVE, "fp32", "tn")) is same
    splits = [dataclasses.replace(STREAM_K, split_k=split) for split in (1, 8)]
    assert len({codegen.build_key(config, "fp32", "tn") for config in splits}) == 1


def test_digest_does_not_depend_on_where_the_kernels_are(kernels):
    assert codegen.render(BASE, "fp32", "tn", kernels=kernels).digest == codegen.render(BASE, "fp32", "tn").digest
    assert codegen.generator_version("sm90_ws", kernels=kernels) == codegen.generator_version("sm90_ws")


def test_headers_are_read_once_for_many_sources(monkeypatch):
    read = []
    digest = codegen.headers_digest
    monkeypatch.setattr(codegen, "headers_digest", lambda *arguments: read.append(arguments) or digest(*arguments))
    digests: dict[tuple[str, ...], str] = {}
    shared = [codegen.render(BASE, acc, "tn", digests=digests) for acc in ("fp32", "fp16")]
    assert len(read) == 1
    assert shared == [codegen.render(BASE, acc, "tn") for acc in ("fp32", "fp16")]


def test_unknown_placeholder_is_named(kernels):
    template = kernels / "sm90_ws.cu.in"
    template.write_text(template.read_text() + "// ${tile_q}\n")
    with pytest.raises(ToolchainError, match="tile_q"):
        codegen.render(BASE, "fp32", "tn", kernels=kernels)


def test_missing_template_is_one_line(tmp_path):
    with pytest.raises(ToolchainError, match=r"sm90_ws\.cu\.in.*reinstall") as caught:
        codegen.render(BASE, "fp32", "tn", kernels=tmp_path)
    assert "\n" not in str(caught.value)


if __name__ == "__main__":
    for request in RENDERS:
        source = codegen.render(*request)
        (GOLDEN / f"{source.name}.cu").write_text(source.text, encoding="utf-8")
