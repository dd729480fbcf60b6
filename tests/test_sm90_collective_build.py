"""Kernels of CUTLASS's CollectiveBuilder through nvcc: what is built and kept; what is said where nvcc is not."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cudal2.arch import SM90
from cudal2.build import toolchain as toolchains
from cudal2.build.artifact import BuiltKernel, CompileFailure
from cudal2.build.cache import BuildCache, resolve_toolchain
from cudal2.build.compiler import Compilation, compile_source
from cudal2.build.nvcc import Nvcc, compile_kernel
from cudal2.build.pool import BuildPool, build_all, build_here
from cudal2.build.toolchain import Toolchain
from cudal2.cli.build import _summary
from cudal2.codegen import build_key, render
from cudal2.errors import NothingValidError
from cudal2.launch.collective import HostLibrary
from cudal2.launch.driver import LaunchError
from cudal2.launch.plan import ParamSets
from cudal2.problem import Problem
from cudal2.space.config import Sm90CollectiveConfig
from cudal2.space.sm90_collective import geometry

CONFIG = Sm90CollectiveConfig(128, 64, 64, scheduler="stream_k", cluster_n=2)
#: Says of a tensor map what tells it from others: its address, and then its sizes.
DRIVER = """
#include <stdint.h>
#include <string.h>
int cuTensorMapEncodeTiled(uint64_t* map, int type, uint32_t rank, void* address, const uint64_t* sizes) {
  memset(map, 0, 128);
  map[0] = (uint64_t)address;
  map[1] = sizes[0] << 32 | sizes[1];
  return 0;
}
"""
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")


@pytest.fixture
def nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler in the place of the first: a script for tests to write."""
    path = tmp_path / "toolkit" / "bin" / "nvcc"
    path.parent.mkdir(parents=True)
    monkeypatch.setattr("cudal2.build.nvcc._candidates", lambda: iter([path]))
    toolchains._by_nvcc.cache_clear()
    yield path
    toolchains._by_nvcc.cache_clear()


def script(path: Path, text: str) -> None:
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo release 13.0, V13.0.88 && exit\n{text}\n')
    path.chmod(0o755)


def test_where_there_is_no_nvcc_one_line_says_so_and_other_families_build(tmp_path: Path, nvcc: Path) -> None:
    cache, toolchain = BuildCache(tmp_path / "cache"), Toolchain.detect(SM90)
    result = build_here((CONFIG, "fp32", "tn", "fp16"), cache, toolchain)
    assert isinstance(result, CompileFailure) and "\n" not in result.reason
    assert "this machine cannot compile: nvcc was not found" in result.reason and "cudal2[nvcc]" in result.reason
    results = build_all([(CONFIG, "fp32", "tn", "fp16")], cache, toolchain)
    assert results[build_key(CONFIG, "fp32", "tn")].reason == result.reason
    assert not list(tmp_path.glob("cache/*/sm90*")), "nothing that another machine could mistake for a result"
    assert toolchain.can_compile


def test_a_build_that_this_machine_cannot_do_is_not_the_kernels_fault(nvcc: Path, run) -> None:
    code, _, err = run("build", "--config", CONFIG.name)
    assert code == 2 and "error: 1 of 1 kernel not compiled" in err and "nvcc was not found" in err
    rejected = CompileFailure("name", "0" * 64, "rejected by nvcc: no such thing", Path("log.txt"), 1.0)
    with pytest.raises(NothingValidError, match="no such thing"):
        _summary([rejected], 1.0, as_json=False)


def test_where_there_are_no_headers_their_absence_is_the_reason(nvcc: Path) -> None:
    script(nvcc, "exit 1")
    headless = replace(Toolchain.detect(SM90), unavailable="the CUTLASS headers were not found")
    assert headless.of(render(CONFIG, "fp32", "tn")).unavailable == "the CUTLASS headers were not found"


def test_another_nvcc_is_another_toolchain(nvcc: Path) -> None:
    source, toolchain = render(CONFIG, "fp32", "tn"), Toolchain.detect(SM90)
    script(nvcc, "exit 1")
    first = toolchain.of(source)
    script(nvcc, "exit 1")
    nvcc.write_text(nvcc.read_text().replace("13.0", "13.1"))
    toolchains._by_nvcc.cache_clear()
    assert len({toolchain.signature, first.signature, toolchain.of(source).signature}) == 3
    assert first.of(source) is first and first.to_dict()["versions"]["nvcc"] == "13.0.88"


def test_a_rejected_source_is_a_failure_with_nvcc_s_first_error(tmp_path: Path, nvcc: Path) -> None:
    script(nvcc, 'echo "kernel.cu(3): error: no such thing"; exit 2')
    result = build_here((CONFIG, "fp32", "tn", "fp16"), BuildCache(tmp_path / "cache"), Toolchain.detect(SM90))
    assert isinstance(result, CompileFailure)
    assert result.reason == "rejected by nvcc: kernel.cu(3): error: no such thing"
    assert result.log_path is not None and "exit code 2" in result.log_path.read_text()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('echo "gcc: fatal error: cannot execute cc1plus: No such file" >&2; exit 1', "cannot execute cc1plus"),
        ("kill -9 $$", "nvcc died of SIGKILL"),
    ],
)
def test_what_the_machine_may_be_to_blame_for_is_not_kept(tmp_path: Path, nvcc: Path, text: str, words: str) -> None:
    script(nvcc, text)
    result = build_here((CONFIG, "fp32", "tn", "fp16"), BuildCache(tmp_path / "cache"), Toolchain.detect(SM90))
    assert isinstance(result, CompileFailure) and words in result.reason
    assert not list(tmp_path.glob("cache/*/sm90*"))


def test_a_compiler_that_hangs_is_ended(tmp_path: Path, nvcc: Path) -> None:
    script(nvcc, "sleep 600")
    assert compile_kernel(Nvcc(nvcc, "13"), "", "sm_90a", [], deadline_s=0.3)[2].endswith("nvcc took longer than 0.3 s")


def test_a_compile_that_is_given_up_leaves_no_nvcc_behind(
    tmp_path: Path, nvcc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(nvcc, f"sleep 600 & echo $! > {tmp_path}/pid; wait")
    monkeypatch.setenv("CUDA_HOME", str(nvcc.parents[1]))  # for the compiler's process
    monkeypatch.setattr("cudal2.build.child.KERNEL_DEADLINE_S", 0.0)
    toolchain = Toolchain.detect(SM90)
    with BuildPool(BuildCache(tmp_path / "cache"), toolchain, jobs=1, deadline_s=4.0) as pool:
        result = pool.build([(CONFIG, "fp32", "tn", "fp16")])[build_key(CONFIG, "fp32", "tn")]
    assert isinstance(result, CompileFailure) and result.reason == "still compiling after 4 s"
    sleeper = int((tmp_path / "pid").read_text())
    for _ in range(50):
        if not Path(f"/proc/{sleeper}").exists():
            return
        time.sleep(0.1)
    raise AssertionError("what nvcc started is still there")


def test_both_halves_are_kept_and_a_damaged_one_is_built_again(tmp_path: Path, nvcc: Path) -> None:
    script(nvcc, "exit 1")
    cache, toolchain, source = BuildCache(tmp_path), Toolchain.detect(SM90), render(CONFIG, "fp32", "tn")
    made = Compilation(b"\x7fELF cubin", "", "log", 168, 0, 0, 30.0, False, library=b"\x7fELF library")
    built = cache.publish(source, toolchain, made)
    assert isinstance(built, BuiltKernel) and built.library_path is not None
    assert built.library_path.read_bytes() == made.library and cache.lookup(source, toolchain) == built
    elsewhere = replace(toolchain, unavailable="no NVRTC")
    assert cache.lookup(source, elsewhere) == built, "a cache that was carried serves"
    assert resolve_toolchain(cache, SM90).can_compile
    built.library_path.write_bytes(b"other")
    assert cache.lookup(source, toolchain) is None


@needs_nvcc
@pytest.mark.timeout(600)
def test_a_kernel_is_compiled_and_its_host_half_plans_launches(tmp_path: Path) -> None:
    source = render(CONFIG, "fp32", "tn")
    made = compile_source(source, Toolchain.detect(SM90))
    assert made.reason == "" and made.spill_bytes == 0 and made.static_smem_bytes == 0
    assert made.cubin.startswith(b"\x7fELF") and b"cudal2_gemm" in made.cubin
    (tmp_path / "kernel.so").write_bytes(made.library)
    (tmp_path / "driver.c").write_text(DRIVER)
    subprocess.run(["cc", "-shared", "-fPIC", tmp_path / "driver.c", "-o", tmp_path / "driver.so"], check=True)
    library = HostLibrary(tmp_path / "kernel.so", str(tmp_path / "driver.so"))
    for split_k in (1, 4):
        plan = library.plan(replace(CONFIG, split_k=split_k), Problem(1000, 1000, 4096), 132)
        assert plan.grid * plan.grid_yz[0] == geometry.grid_ctas(CONFIG, 1000, 1000, 132) == 132
        assert (plan.cluster, plan.cluster_y, plan.block, plan.ticket_bytes) == (1, 2, 384, 128)
        assert plan.smem_bytes == geometry.smem_bytes(CONFIG)
        # Sums of 8 x 16 tiles, and two locks for each.
        assert plan.partial_bytes == 8 * 16 * (128 * 64 * 4 + 2 * 4)
    sets = ParamSets(plan, *(np.array([start, start + 64], np.uint64) for start in (4096, 8192, 16384)), None, 65536)
    last = sets.structs[1]
    assert [int(last[name]) for name in ("a_ptr", "b_ptr", "c_ptr")] == [4160, 8256, 16448]
    assert (int(last["tickets"]), int(last["partials"])) == (65536, 65536 + 128)
    sizes = sets.structs.view(np.uint8).reshape(2, -1)[1].view(np.uint64)
    assert int(sizes[plan.struct.fields["a_ptr"][1] // 8 + 1]) == 4096 << 32 | 1000
    with pytest.raises(LaunchError, match="does not take 64_64_65"):
        library.plan(CONFIG, Problem(64, 64, 65), 132)


def test_host_code_that_cannot_be_loaded_is_a_candidate_s_failure(tmp_path: Path) -> None:
    (tmp_path / "kernel.so").write_text("nothing")
    with pytest.raises(LaunchError, match=r"host code .*kernel\.so"):
        HostLibrary(tmp_path / "kernel.so", "libc.so.6")


def test_the_record_of_a_build_names_both_halves(tmp_path: Path, nvcc: Path) -> None:
    script(nvcc, "exit 1")
    made = Compilation(b"\x7fELF", "", "log", 168, 0, 0, 30.0, False, library=b"\x7fELF")
    built = BuildCache(tmp_path).publish(render(CONFIG, "fp32", "tn"), Toolchain.detect(SM90), made)
    assert isinstance(built, BuiltKernel)
    values = json.loads((built.cubin_path.parent / "build.json").read_text())
    assert values["library_sha256"] == values["cubin_sha256"]
