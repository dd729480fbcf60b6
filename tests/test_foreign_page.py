"""docs/foreign.md and the list of cheats say what the code does; the example on the page is the one that is tested."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from test_foreign_trial import CHEATS

from cudal2.bench.foreign import child, trial
from cudal2.build.foreign import ForeignSource, build_foreign
from cudal2.cli.main import parser
from cudal2.problem import Problem
from cudal2.settings import BenchSettings

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "foreign.md").read_text()
TABLE = (ROOT / "docs" / "protocol.md").read_text().partition("\n10.4")[2].partition("\n10.5")[0]
EXAMPLE = ROOT / "examples" / "gemm.cu"


def test_the_example_on_the_page_is_the_file() -> None:
    assert f"```cuda\n{EXAMPLE.read_text()}```\n" in PAGE


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_the_example_compiles() -> None:
    assert build_foreign(ForeignSource(EXAMPLE, "gemm"), Problem(512, 512, 512), 1 << 20).library.is_file()


def test_the_commands_on_the_page_parse() -> None:
    commands = re.findall(r"^python -m cudal2 (.*)$", PAGE, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        assert parser().parse_args(shlex.split(command)).source is not None


SLACK = trial._CLOCK_SLACK_MS + trial._CLOCK_SLACK * BenchSettings().final_replay_ms


@pytest.mark.parametrize(
    "said",
    [
        f"queued behind {trial._HOLD_MS:g} ms of other work",
        f"up to {trial._LEAK_CALLS:,} calls ({trial._LEAK_SECONDS:g} s)",
        f"more than {trial._CACHE_RATIO} times faster",
        f"more than {trial._CLOCK_SLACK_MS} ms and {trial._CLOCK_SLACK:.0%} beyond",
        f"At the {BenchSettings().final_replay_ms:g} ms of a final, a lying timer can win "
        f"{SLACK / BenchSettings().final_replay_ms:.0%}",
        f"The workspace ({BenchSettings().workspace_bytes >> 20} MiB)",
        f"{child._FILE_BYTES >> 20} MiB at most",
    ],
)
def test_the_numbers_are_the_codes(said: str) -> None:
    said = said.replace("1%", "1 %").replace("3%", "3 %")
    assert said in " ".join(PAGE.split())


def test_every_cheat_on_the_list_is_a_kernel_that_a_test_runs() -> None:
    on_gpu = set(re.findall(r'"(\w+)": \(?"[\w./]+"', (ROOT / "tests" / "gpu" / "test_foreign_gpu.py").read_text()))
    listed = re.findall(r"`(\w+)`(\*?)", TABLE)
    assert len(listed) > 30 and {name for name, star in listed if not star} == set(CHEATS)
    assert {name for name, star in listed if star} <= on_gpu
