"""Nsight Compute on real kernels: the counters are there, and they say what the kernels are known to do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cudal2.bench.profile import ncu
from cudal2.cli import main as cli
from cudal2.errors import Cudal2Error
from cudal2.problem import Problem
from cudal2.records.counters import ProfileBook

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(ncu.find() is None, reason="Nsight Compute is not installed"),
]

LARGE = "128x256x64_s4_coop2_c2x1_k1_tma_o1_m8p"
SMALL = "64x64x64_s4_coop1_c1x1_k1_tma_o1_m1"


def profile(*arguments: str | Path) -> int:
    return cli.main(["profile", *map(str, arguments)])


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> ProfileBook:
    out = tmp_path_factory.mktemp("counters")
    arguments = ["--mnk", "4096_4096_4096", "--config", LARGE, "--config", SMALL, "--baseline", "cublaslt"]
    assert profile(*arguments, "--out", out) == 0
    return ProfileBook.load(out)


def test_every_counter_is_reported(book: ProfileBook) -> None:
    assert [profile.contestant for profile in book.profiles()].count("sm90_ws") == 2 and len(book) == 3
    for profile in book.profiles():
        for name in ncu.METRICS:
            assert getattr(profile.counters, name) is not None, f"{profile.name}: {name}"


def test_the_counters_say_what_is_known_of_these_kernels(book: ProfileBook) -> None:
    found = {profile.name: profile.counters for profile in book.profiles()}
    large, small = found[LARGE], found[SMALL]
    assert large.tensor_active > 0.5 and large.tensor_active > small.tensor_active
    assert large.registers == 168 and 0.1 < large.occupancy < 0.25
    assert 0.0 < large.l2_hit_rate < 1.0 and large.duration_us < small.duration_us
    assert large.waves == pytest.approx(1.0, abs=0.01) and small.waves > 1.0
    assert small.tma_load_bytes > 1.5 * large.tma_load_bytes, "smaller tiles read their operands more often"


def test_what_is_read_once_misses_on_a_flushed_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Not smaller: of a kernel with a few hundred sectors the tool makes hit rates above 100 %.
    assert profile("--mnk", "64_8192_64", "--config", SMALL.replace("_s4", "_s2"), "--out", tmp_path, "--json") == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["counters"]["tensor_active"] < 0.1 and row["counters"]["l2_hit_rate"] < 0.8
    assert ProfileBook.load(tmp_path).profiles()[0].problem == Problem.parse("64_8192_64")


def test_several_shapes_of_the_table_are_one_run(tmp_path: Path) -> None:
    assert profile("--shapes", "64_4096_64", "256_2048_256", "--baseline", "cublaslt", "--out", tmp_path) == 0
    book = ProfileBook.load(tmp_path)
    assert [found.problem.mnk for found in book.profiles()] == ["64_4096_64"] * 2 + ["256_2048_256"] * 2


def test_a_program_that_fails_gives_its_own_last_line() -> None:
    code = "import torch; torch.cuda.init(); raise SystemExit('broken on purpose')"
    with pytest.raises(Cudal2Error, match="broken on purpose"):
        ncu.Ncu.find().profile([sys.executable, "-c", code], 120)


def test_what_goes_wrong_in_the_launcher_keeps_off_stdout() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "cudal2.bench.profile.launcher", "nowhere"], capture_output=True, text=True
    )
    assert result.returncode != 0 and result.stdout == "" and "nowhere" in result.stderr
