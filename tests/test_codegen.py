"""Golden renders; rewrite them after a change of the template on purpose with ``python tests/test_codegen.py``."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

import pytest

from cudal2 import codegen
from cudal2.errors import ToolchainError
from cudal2.paths import kernels_dir
from cudal2.space import geometry
from cudal2.space.config import KernelConfig

GOLDEN = Path(__file__).parent / "golden"
BASE = KernelConfig(
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
RENDERS = [(BASE, "fp32", "tn"), (SPLIT, "fp32", "tn"), (LIGHT, "fp16", "nn")]


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    return Path(shutil.copytree(kernels_dir(), tmp_path / "kernels"))


@pytest.mark.parametrize(("config", "acc", "layout"), RENDERS, ids=lambda value: getattr(value, "build_name", value))
def test_render_is_the_golden_one(config, acc, layout):
    source = codegen.render(config, acc, layout)
    assert source.text == (GOLDEN / f"{source.name}.cu").read_text(encoding="utf-8")


def test_no_placeholder_is_left():
    assert "$" not in codegen.render(BASE, "fp32", "tn").text


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
    ],
    ids=lambda change: next(iter(change)),
)
def test_every_compile_time_axis_makes_another_kernel(change):
    other, base = codegen.render(dataclasses.replace(BASE, **change), "fp32", "tn"), codegen.render(BASE, "fp32", "tn")
    assert other.name != base.name
    assert other.digest != base.digest
    assert other.text.splitlines()[1:] != base.text.splitlines()[1:], "only the comment changed"


def test_accumulator_and_layout_make_other_kernels():
    digests = {codegen.render(BASE, acc, layout).digest for acc in ("fp32", "fp16") for layout in ("nn", "tn")}
    assert len(digests) == 4


def test_source_carries_what_the_cubin_must_live_up_to():
    source = codegen.render(BASE, "fp32", "tn")
    assert source.threads == geometry.threads(BASE) == 384
    assert source.smem_bytes == geometry.smem_bytes(BASE)
    assert source.register_pool == 128 * (40 + 2 * 232) == 64_512
    assert codegen.render(LIGHT, "fp16", "nn").register_pool == 0


def test_edited_header_makes_another_kernel_and_touched_one_does_not(kernels):
    before = codegen.render(BASE, "fp32", "tn", kernels)
    header = kernels / "include" / "cudal2" / "sm90_ws.cuh"
    os.utime(header, (0, 0))
    assert codegen.render(BASE, "fp32", "tn", kernels).digest == before.digest
    version = codegen.generator_version(kernels)
    header.write_text(header.read_text() + "\n")
    assert codegen.render(BASE, "fp32", "tn", kernels).digest != before.digest
    assert codegen.generator_version(kernels) != version


def test_moved_header_makes_another_kernel(kernels):
    before = codegen.headers_digest(kernels / "include")
    (kernels / "include" / "cudal2" / "raster.cuh").rename(kernels / "include" / "cudal2" / "order.cuh")
    assert codegen.headers_digest(kernels / "include") != before


def test_digest_does_not_depend_on_where_the_kernels_are(kernels):
    assert codegen.render(BASE, "fp32", "tn", kernels).digest == codegen.render(BASE, "fp32", "tn").digest
    assert codegen.generator_version(kernels) == codegen.generator_version()


def test_unknown_placeholder_is_named(kernels):
    template = kernels / "sm90_ws.cu.in"
    template.write_text(template.read_text() + "// ${tile_q}\n")
    with pytest.raises(ToolchainError, match="tile_q"):
        codegen.render(BASE, "fp32", "tn", kernels)


def test_missing_template_is_one_line(tmp_path):
    with pytest.raises(ToolchainError, match=r"sm90_ws\.cu\.in.*reinstall") as caught:
        codegen.render(BASE, "fp32", "tn", tmp_path)
    assert "\n" not in str(caught.value)


if __name__ == "__main__":
    for config, acc, layout in RENDERS:
        source = codegen.render(config, acc, layout)
        (GOLDEN / f"{source.name}.cu").write_text(source.text, encoding="utf-8")
