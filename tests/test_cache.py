"""The build cache under races, killed writers, damaged entries and machines that cannot compile."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from cudal2.build import cache as cache_module
from cudal2.build.artifact import BuiltKernel, CompileFailure
from cudal2.build.cache import BuildCache, resolve_toolchain
from cudal2.build.compiler import Compilation
from cudal2.build.toolchain import Toolchain
from cudal2.codegen import KernelSource
from cudal2.errors import CacheError, ToolchainError

SPAWN = multiprocessing.get_context("spawn")
TOOLCHAIN = Toolchain("sm_90a", "13.0.88", (("cutlass", "4.2.0.0"),), (), "aaaa")
NEWER = Toolchain("sm_90a", "13.1.0", (("cutlass", "4.2.0.0"),), (), "bbbb")
NO_COMPILER = Toolchain("sm_90a", "13.0.88", (), (), "none", unavailable="no headers")


def source(text: str = "kernel", name: str = "sm90_ws_x_fp32_tn") -> KernelSource:
    digest = hashlib.sha256(text.encode()).hexdigest()
    return KernelSource(name, text, digest, "", 384, 1_000, 64_512, Path("include"))


def compilation(cubin: bytes = b"\x7fELF cubin", reason: str = "", compile_s: float = 0.5) -> Compilation:
    return Compilation(b"" if reason else cubin, reason, "what ptxas said", 168, 8, 24, compile_s, True)


@pytest.fixture
def cache(tmp_path: Path) -> BuildCache:
    return BuildCache(tmp_path / "build")


def entry_of(cache: BuildCache) -> Path:
    (entry,) = cache.root.glob("*/sm90_ws_*")
    return entry


def leftovers(cache: BuildCache) -> list[Path]:
    return list(cache.root.glob("tmp/*"))


def test_miss_then_hit(cache):
    assert cache.lookup(source(), TOOLCHAIN) is None
    built = cache.publish(source(), TOOLCHAIN, compilation())
    assert isinstance(built, BuiltKernel)
    assert (built.registers, built.spill_bytes, built.threads) == (168, 8, 384)
    assert built.smem_bytes == 1_024
    assert built.cubin_path.read_bytes() == b"\x7fELF cubin"
    assert built.log_path.read_text() == "what ptxas said"
    assert (built.cubin_path.parent / "source.cu").read_text() == "kernel"
    assert BuildCache(cache.root).lookup(source(), TOOLCHAIN) == built
    assert leftovers(cache) == []


def test_failure_is_remembered_with_its_log(cache):
    failure = cache.publish(source(), TOOLCHAIN, compilation(reason="rejected by NVRTC: line 3"))
    assert isinstance(failure, CompileFailure)
    assert cache.lookup(source(), TOOLCHAIN) == failure
    assert failure.reason == "rejected by NVRTC: line 3"
    assert failure.log_path.read_text() == "what ptxas said"
    assert not (failure.log_path.parent / "kernel.cubin").exists()


def test_other_source_or_toolchain_misses(cache):
    cache.publish(source(), TOOLCHAIN, compilation())
    assert cache.lookup(source("edited"), TOOLCHAIN) is None
    assert cache.lookup(source(), NEWER) is None


def damage_truncated_json(entry: Path) -> None:
    (entry / "build.json").write_text('{"name": "sm90')


def damage_empty_json(entry: Path) -> None:
    (entry / "build.json").write_text("")


def damage_not_text(entry: Path) -> None:
    (entry / "build.json").write_bytes(b"\xff\xfe\x00\x80")


def damage_other_json(entry: Path) -> None:
    (entry / "build.json").write_text("[1, 2]")


def damage_lost_json(entry: Path) -> None:
    (entry / "build.json").unlink()


def damage_lost_cubin(entry: Path) -> None:
    (entry / "kernel.cubin").unlink()


def damage_truncated_cubin(entry: Path) -> None:
    (entry / "kernel.cubin").write_bytes(b"\x7fELF")


def damage_deep_json(entry: Path) -> None:
    (entry / "build.json").write_text("[" * 100_000)


def damage_other_source(entry: Path) -> None:
    path = entry / "build.json"
    path.write_text(path.read_text().replace(source().digest, "0" * 64))


@pytest.mark.parametrize(
    "damage",
    [
        damage_truncated_json,
        damage_empty_json,
        damage_not_text,
        damage_other_json,
        damage_lost_json,
        damage_lost_cubin,
        damage_truncated_cubin,
        damage_deep_json,
        damage_other_source,
    ],
)
def test_damaged_entry_is_moved_aside_and_rebuilt(cache, damage, caplog):
    cache.publish(source(), TOOLCHAIN, compilation())
    damage(entry_of(cache))
    assert cache.lookup(source(), TOOLCHAIN) is None
    assert "was damaged" in caplog.text
    assert ".corrupt-" in entry_of(cache).name, "nothing is deleted"
    rebuilt = cache.publish(source(), TOOLCHAIN, compilation(b"\x7fELF again"))
    assert rebuilt.cubin_path.read_bytes() == b"\x7fELF again"


@pytest.mark.parametrize("name", ["registers", "spill_bytes", "smem_bytes", "threads", "compile_s", "reason", "digest"])
@pytest.mark.parametrize("value", [None, "many", [], {}, -1, 1.5])
def test_entry_with_a_value_of_another_kind_is_damaged(cache, name, value):
    if (name, value) in (("reason", "many"), ("compile_s", -1), ("compile_s", 1.5)):
        return
    cache.publish(source(), TOOLCHAIN, compilation())
    path = entry_of(cache) / "build.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    assert cache.lookup(source(), TOOLCHAIN) is None


def test_damaged_entry_that_cannot_be_moved_names_the_command(cache, monkeypatch):
    cache.publish(source(), TOOLCHAIN, compilation())
    entry = entry_of(cache)
    damage_truncated_json(entry)

    def refuse(path: Path, target: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(CacheError, match=re.escape(f"rm -r '{entry}'")):
        cache.lookup(source(), TOOLCHAIN)


def die_before_publishing(root: Path) -> None:
    cache_module._rename_unless_present = lambda temp, final: os.kill(os.getpid(), signal.SIGKILL)
    BuildCache(root).publish(source(), TOOLCHAIN, compilation())


def test_killed_writer_leaves_nothing_a_reader_sees_and_is_swept(cache):
    writer = SPAWN.Process(target=die_before_publishing, args=(cache.root,))
    writer.start()
    writer.join()
    assert writer.exitcode == -signal.SIGKILL
    assert cache.lookup(source(), TOOLCHAIN) is None
    (left,) = leftovers(cache)
    assert (left / "kernel.cubin").exists(), "it died after writing"

    assert leftovers(BuildCache(cache.root)) == [left], "too fresh to be sure"
    os.utime(left, (0, 0))
    assert leftovers(BuildCache(cache.root)) == []
    assert isinstance(cache.publish(source(), TOOLCHAIN, compilation()), BuiltKernel)


def test_living_writer_is_not_swept(cache):
    temp = cache._new_temp()
    os.utime(temp, (0, 0))
    assert leftovers(BuildCache(cache.root)) == [temp]


def race(root: Path, compile_s: float, start, results) -> None:
    start.wait()
    cache = BuildCache(root)
    for number in range(40):
        built = cache.publish(source(f"kernel {number}"), TOOLCHAIN, compilation(compile_s=compile_s))
        results.send((built.compile_s, built.cubin_path.read_bytes() == b"\x7fELF cubin"))


def test_two_writers_race_and_agree(cache):
    start = SPAWN.Barrier(2)
    ends = [SPAWN.Pipe(duplex=False) for _ in range(2)]
    writers = [SPAWN.Process(target=race, args=(cache.root, 1.0 + i, start, ends[i][1])) for i in range(2)]
    for writer in writers:
        writer.start()
    seen = [[receive.recv() for _ in range(40)] for receive, _ in ends]
    for writer in writers:
        writer.join()
    assert seen[0] == seen[1], "both got what the winner stored"
    assert all(intact for _, intact in seen[0])
    assert leftovers(cache) == []
    assert len(list(cache.root.glob("*/sm90_ws_*"))) == 40


@pytest.mark.parametrize("blocked", ["build", ""])
def test_unwritable_cache_is_one_line(tmp_path, blocked):
    (tmp_path / "file").write_text("in the way")
    cache = BuildCache(tmp_path / "file" / blocked)
    assert cache.lookup(source(), TOOLCHAIN) is None
    with pytest.raises(CacheError, match="CUDAL2_CACHE_DIR") as caught:
        cache.publish(source(), TOOLCHAIN, compilation())
    assert "\n" not in str(caught.value)


def test_full_disk_leaves_no_entry(cache, monkeypatch):
    cache.publish(source("first"), TOOLCHAIN, compilation())

    def full(path: Path, contents: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cache_module, "_write_durably", full)
    with pytest.raises(CacheError, match="No space left on device"):
        cache.publish(source(), TOOLCHAIN, compilation())
    assert cache.lookup(source(), TOOLCHAIN) is None
    assert leftovers(cache) == []


@pytest.fixture
def no_headers(monkeypatch):
    def detect(arch):
        raise ToolchainError("the CUTLASS headers were not found: pip install nvidia-cutlass")

    monkeypatch.setattr(Toolchain, "detect", detect)


def test_carried_cache_serves_a_machine_without_toolchain(cache, no_headers, tmp_path):
    cache.publish(source(), TOOLCHAIN, compilation())
    carried = BuildCache(Path(shutil.copytree(cache.root, tmp_path / "elsewhere" / "build")))
    shutil.rmtree(cache.root)
    toolchain = resolve_toolchain(carried)
    assert not toolchain.can_compile
    assert "nvidia-cutlass" in toolchain.unavailable
    assert (toolchain.nvrtc_version, toolchain.signature) == ("13.0.88", "aaaa")
    found = carried.lookup(source(), toolchain)
    assert isinstance(found, BuiltKernel)
    assert found.cubin_path.is_relative_to(carried.root)
    assert carried.lookup(source("edited"), toolchain) is None


def test_machine_without_toolchain_takes_any_recorded_one_the_latest_first(cache, no_headers):
    cache.publish(source("old"), TOOLCHAIN, compilation(b"\x7fELF old"))
    cache.publish(source("both"), TOOLCHAIN, compilation(b"\x7fELF old"))
    cache.publish(source("both"), NEWER, compilation(b"\x7fELF new"))
    os.utime(cache.root / "sm_90a-aaaa" / "toolchain.json", (1, 1))
    toolchain = resolve_toolchain(cache)
    assert toolchain.nvrtc_version == "13.1.0"
    assert cache.lookup(source("both"), toolchain).cubin_path.read_bytes() == b"\x7fELF new"
    assert cache.lookup(source("old"), toolchain).cubin_path.read_bytes() == b"\x7fELF old"


def test_no_toolchain_and_an_empty_cache_is_an_error(cache, no_headers):
    with pytest.raises(ToolchainError, match="pip install nvidia-cutlass"):
        resolve_toolchain(cache)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", "null", "[" * 100_000, "\0", '{"signature": "aaaa"}'], ids=lambda text: text[:9]
)
def test_unreadable_toolchain_record_is_left_out(cache, caplog, text):
    cache.publish(source(), TOOLCHAIN, compilation())
    (cache.root / "sm_90a-aaaa" / "toolchain.json").write_text(text)
    assert cache.recorded_toolchains("sm_90a") == []
    assert "is left out" in caplog.text
    assert cache.lookup(source(), NO_COMPILER) is None


def test_default_place_follows_the_environment(private_cache):
    assert BuildCache().root == private_cache / "build"


@pytest.mark.parametrize("damage", ["", "{", "[]", "null", '{"signature": 7}'])
def test_damaged_toolchain_record_is_written_anew_by_the_next_build(cache, damage):
    cache.publish(source("first"), TOOLCHAIN, compilation())
    (record,) = cache.root.glob("*/toolchain.json")
    intact = record.read_text()
    record.write_text(damage)
    cache.publish(source("second"), TOOLCHAIN, compilation())
    assert record.read_text() == intact
