"""The compiler processes: dedupe, deadlines, deaths, machines that cannot compile; compiles are real but tiny."""

from __future__ import annotations

import atexit
import dataclasses
import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from cudal2 import codegen
from cudal2.build import cores, pool
from cudal2.build.artifact import BuiltKernel, CompileFailure
from cudal2.build.cache import BuildCache
from cudal2.build.child import serve
from cudal2.build.pool import BuildPool, build_all, build_here
from cudal2.build.toolchain import Toolchain
from cudal2.cli.build import _summary
from cudal2.errors import CacheError, ToolchainError
from cudal2.space.config import Sm90WsConfig

TOOLCHAIN = Toolchain.detect()
#: Leaves out setmaxnreg, which the tiny kernel below has no registers for.
BASE = Sm90WsConfig(
    tile_m=64,
    tile_n=64,
    tile_k=64,
    stages=2,
    schedule="coop",
    consumers=1,
    cluster_m=1,
    cluster_n=1,
    split_k=1,
    epilogue="tma",
    ctas_per_sm=1,
)
#: 2^48 tokens: NVRTC does not come back from this.
ENDLESS = """
#define D(x) x x
#define D8(x) D(D(D(D(D(D(D(D(x))))))))
D8(D8(D8(D8(D8(D8(;))))))
"""
TINY = """
template <int N> struct Tile { static_assert(N != 96, "no tile of 96"); };
#if ${tile_n} == 256
ENDLESS
#endif
extern "C" __global__ void cudal2_gemm(int* p) { p[0] = ${tile_n} + ${stages} + sizeof(Tile<${tile_n}>); }
""".replace("ENDLESS", ENDLESS)


@pytest.fixture(autouse=True)
def tiny_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    kernels = tmp_path / "kernels"
    (kernels / "include").mkdir(parents=True)
    (kernels / "sm90_ws.cu.in").write_text(TINY)
    monkeypatch.setattr(codegen, "kernels_dir", lambda: kernels)
    return kernels


@pytest.fixture
def cache(tmp_path: Path) -> BuildCache:
    return BuildCache(tmp_path / "cache")


def requests(*tiles_n: int, **change: object) -> list[pool.Request]:
    return [(dataclasses.replace(BASE, tile_n=n, **change), "fp32", "tn") for n in tiles_n]


def key(tile_n: int) -> str:
    return codegen.build_key(*requests(tile_n)[0])


def no_process(self: BuildPool) -> None:
    raise AssertionError("a process was started")


def test_builds_what_is_missing_once_and_finds_it_afterwards(cache, monkeypatch):
    wanted = [*requests(32, 64), *requests(64, group=1), *requests(64, raster="n")]
    seen = []
    results = build_all(wanted, cache, TOOLCHAIN, jobs=2, on_done=seen.append)
    assert set(results) == {key(32), key(64)}
    assert sorted(result.name for result in seen) == sorted(results)
    assert all(isinstance(result, BuiltKernel) and result.cubin_path.is_file() for result in seen)

    monkeypatch.setattr(BuildPool, "_start", no_process)
    assert build_all(wanted, cache, TOOLCHAIN) == results


def test_what_a_pool_has_verified_is_not_read_again_unless_it_is_gone(cache, monkeypatch):
    read = []
    lookup = BuildCache.lookup
    monkeypatch.setattr(BuildCache, "lookup", lambda *arguments: read.append(arguments) or lookup(*arguments))
    with BuildPool(cache, TOOLCHAIN, jobs=1) as pool:
        first = pool.build(requests(32, 96))
        read.clear()
        assert pool.build(requests(32)) == {key(32): first[key(32)]} and not read
        assert pool.build(requests(96)) == {key(96): first[key(96)]} and read, "a failure is looked up again"
        shutil.rmtree(first[key(32)].cubin_path.parent)
        assert pool.build(requests(32))[key(32)].cubin_path.is_file()


def test_a_failure_is_a_value_and_costs_the_others_nothing(cache):
    results = build_all(requests(32, 96, 64), cache, TOOLCHAIN, jobs=1)
    assert isinstance(results[key(96)], CompileFailure)
    assert "no tile of 96" in results[key(96)].reason
    assert "no tile of 96" in results[key(96)].log_path.read_text()
    assert isinstance(results[key(32)], BuiltKernel)
    assert isinstance(results[key(64)], BuiltKernel)
    assert BuildCache(cache.root).lookup(codegen.render(*requests(96)[0]), TOOLCHAIN) == results[key(96)]


def test_deadline_ends_a_compile_that_does_not_come_back(cache):
    with BuildPool(cache, TOOLCHAIN, jobs=1, deadline_s=2.0) as builder:
        begin = time.monotonic()
        results = builder.build(requests(256, 32))
        assert time.monotonic() - begin < 10.0
        assert results[key(256)].reason == "still compiling after 2 s"
        assert isinstance(results[key(32)], BuiltKernel)
    assert cache.lookup(codegen.render(*requests(256)[0]), TOOLCHAIN) is None, "a slow machine is not a bad kernel"


def test_processes_stay_up_between_builds_and_go_with_the_pool(cache):
    with BuildPool(cache, TOOLCHAIN, jobs=1) as builder:
        builder.build(requests(32))
        (slot,) = builder._slots
        pid = slot.process.pid
        builder.build(requests(64))
        assert [slot.process.pid for slot in builder._slots] == [pid]
        pch_dir = slot.pch_dir
    assert not slot.process.is_alive()
    assert not pch_dir.exists()


def die(connection, *_):
    connection.recv()
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(connection, cache_root, *rest):
    mark = Path(cache_root).parent / "died"
    if mark.exists():
        serve(connection, cache_root, *rest)
    else:
        mark.touch()
        die(connection)


def test_compiler_that_keeps_dying_is_a_failure(cache, monkeypatch):
    monkeypatch.setattr(pool, "serve", die)
    result = build_all(requests(32), cache, TOOLCHAIN, jobs=1)[key(32)]
    assert isinstance(result, CompileFailure)
    assert "died 2 times (exit code -9" in result.reason
    assert cache.lookup(codegen.render(*requests(32)[0]), TOOLCHAIN) is None


def test_compiler_that_dies_once_is_tried_again(cache, monkeypatch):
    monkeypatch.setattr(pool, "serve", die_once)
    results = build_all(requests(32, 64), cache, TOOLCHAIN, jobs=1)
    assert all(isinstance(result, BuiltKernel) for result in results.values())


class Fatal:
    """What a compiler without room for its precompiled header does: SIGBUS, with no word."""

    def __init__(self, connection):
        self._connection = connection

    def recv(self):
        source, use_pch = self._connection.recv()
        if use_pch:
            os.kill(os.getpid(), signal.SIGBUS)
        return source, use_pch

    def send(self, answer):
        self._connection.send(answer)


def die_under_a_precompiled_header(connection, *rest):
    serve(Fatal(connection), *rest)


def test_compiler_that_dies_under_its_precompiled_header_is_tried_without(cache, monkeypatch):
    monkeypatch.setattr(pool, "serve", die_under_a_precompiled_header)
    results = build_all(requests(32, 64, 128, 160, 192), cache, TOOLCHAIN, jobs=1)
    assert all(isinstance(result, BuiltKernel) for result in results.values())


def orphan(cache_root: Path, pch_dir: Path) -> None:
    """A compiler whose parent went away while it was busy with something endless."""
    ours, theirs = multiprocessing.Pipe()
    ours.send((codegen.KernelSource("endless", ENDLESS, "0" * 64, "", 128, 0, 0, cache_root), False))
    ours.close()
    serve(theirs, cache_root, TOOLCHAIN, pch_dir, deadline_s=-9.0)


def test_orphaned_compiler_ends_by_itself(cache, tmp_path):
    process = multiprocessing.get_context("spawn").Process(target=orphan, args=(cache.root, tmp_path))
    process.start()
    process.join(timeout=20.0)
    assert process.exitcode == -signal.SIGALRM


def idle(cache_root: Path, pch_dir: Path) -> None:
    """A compiler that is told to end when it has ended already, while the interpreter does."""
    ours, theirs = multiprocessing.Pipe()
    ours.close()
    serve(theirs, cache_root, TOOLCHAIN, pch_dir, deadline_s=1.0)
    atexit.register(os.kill, os.getpid(), signal.SIGTERM)


def test_compiler_that_is_ended_twice_prints_no_traceback(cache, tmp_path, capfd):
    process = multiprocessing.get_context("spawn").Process(target=idle, args=(cache.root, tmp_path / "pch"))
    process.start()
    process.join(timeout=20.0)
    assert process.exitcode == -signal.SIGTERM
    assert capfd.readouterr().err == ""


def test_unwritable_cache_stops_the_build(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with (
        BuildPool(BuildCache(tmp_path / "file" / "cache"), TOOLCHAIN, jobs=1) as builder,
        pytest.raises(CacheError, match="CUDAL2_CACHE_DIR"),
    ):
        builder.build(requests(32))
    assert builder._slots == []


def test_machine_that_cannot_compile_says_so_for_each_miss(cache, monkeypatch):
    build_all(requests(32), cache, TOOLCHAIN, jobs=1)
    monkeypatch.setattr(BuildPool, "_start", no_process)
    prebuilt = dataclasses.replace(
        TOOLCHAIN, signature="none", include_dirs=(), unavailable="no headers: pip install it"
    )
    results = build_all(requests(32, 64), cache, prebuilt)
    assert isinstance(results[key(32)], BuiltKernel)
    assert (
        results[key(64)].reason == "not in the build cache, and this machine cannot compile: no headers: pip install it"
    )
    assert build_here(requests(32)[0], cache, prebuilt) == results[key(32)]
    assert isinstance(build_here(requests(64)[0], cache, prebuilt), CompileFailure)


@pytest.mark.parametrize("as_json", [True, False])
def test_one_kernel_that_this_machine_cannot_compile_fails_the_command_after_its_counts(cache, as_json, capsys):
    unable = dataclasses.replace(TOOLCHAIN, signature="none", include_dirs=(), unavailable="no headers: pip install it")
    built = BuiltKernel("built", "0" * 64, Path("cubin"), 32, 0, 0, 128, 1.0, Path("log"))
    rejected = CompileFailure("rejected", "0" * 64, "no tile of 96", Path("log"), 1.0)
    overdue = CompileFailure("overdue", "0" * 64, "still compiling after 1 s", None, 1.0)
    assert _summary([built, rejected, overdue], 1.0, as_json) == 0
    untried = build_here(requests(64)[0], cache, unable)
    capsys.readouterr()
    with pytest.raises(ToolchainError, match="1 of 2 kernels not compiled: not in the"):
        _summary([built, untried], 1.0, as_json)
    assert "usable" in capsys.readouterr().out


def test_build_here_starts_no_process(cache, monkeypatch):
    monkeypatch.setattr(BuildPool, "_start", no_process)
    built = build_here(requests(32)[0], cache, TOOLCHAIN)
    assert isinstance(built, BuiltKernel)
    assert build_here(requests(32)[0], cache, TOOLCHAIN) == built


def test_jobs_follow_cores_quota_and_memory(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    monkeypatch.setattr(cores, "_cgroup_cores", lambda: 2**16)
    monkeypatch.setattr(cores, "_available_bytes", lambda: 2**40)
    assert cores.default_jobs() == 64
    monkeypatch.setattr(cores, "_cgroup_cores", lambda: 16)
    assert cores.default_jobs() == 16
    monkeypatch.setattr(cores, "_available_bytes", lambda: 5 * 2**30)
    assert cores.default_jobs() == 5
    monkeypatch.setattr(cores, "_available_bytes", lambda: 0)
    assert cores.default_jobs() == 1
