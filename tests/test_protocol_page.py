"""docs/protocol.md states the version and the defaults that the code runs with, and commands that exist."""

import re
import shlex
from pathlib import Path

import pytest

from cudal2.bench import correctness, inputs, timing
from cudal2.bench.baselines import autotune
from cudal2.bench.judge import arena, judge, request
from cudal2.bench.server import device as server_device
from cudal2.bench.server import server, traffic
from cudal2.bench.server.traffic import Traffic
from cudal2.cli import eval_server
from cudal2.cli.main import parser
from cudal2.floor import HEATING_FLOOR_US
from cudal2.problem import Problem
from cudal2.records import finals
from cudal2.records.latency import MOST_LOAD
from cudal2.records.measurement import PROTOCOL_VERSION
from cudal2.runners import servings
from cudal2.settings import BenchSettings

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "protocol.md").read_text()
SETTINGS = BenchSettings()
EVAL = parser().parse_args(["eval", "--mnk", "64_64_64"])


def test_the_version_is_the_one_in_every_record():
    assert PAGE.startswith(f"# Timing protocol, version {PROTOCOL_VERSION}\n")


@pytest.mark.parametrize(
    "said",
    [
        f"R x t reaches {SETTINGS.replay_ms:g} ms [`replay_ms`] while searching and {SETTINGS.final_replay_ms:g} ms",
        f"[{SETTINGS.selection_rounds}] rounds (`selection_rounds`) of {SETTINGS.replay_ms:g} ms",
        f"[{SETTINGS.finalists}] configuration (`finalists`)",
        f"[{SETTINGS.final_processes}] fresh processes (`final_processes`)",
        f"[{SETTINGS.final_rounds}] rounds in each (`final_rounds`)",
        f"{SETTINGS.final_processes} x {SETTINGS.final_rounds} rounds call one in "
        f"{2 ** (SETTINGS.final_processes * SETTINGS.final_rounds - 1)} won or lost by chance",
        f"above {HEATING_FLOOR_US:g} us a run heats",
        f"replayed untimed in turn for [{SETTINGS.search_soak_s:g}] s (`search_soak_s`)",
        f"({('', 'one', 'two', 'three', 'four', 'five', 'six')[autotune._KEPT_BEFORE_LOAD]} where",
        f"[{SETTINGS.presoak_s:g}] s (`presoak_s`), above {request._WARMING_FLOOR_US:g} us for [{SETTINGS.warm_s:g}] s",
        f"there in [{SETTINGS.final_parts}] parts (`final_parts`;",
        f"{finals.STEADY_SPREAD:.0%} where the floor is up to {finals.STEADY_FLOOR_US:g} us and "
        f"{finals.RUN_SPREAD:.0%} above".replace("%", " %"),
        f"marked `{judge.SELECTION_DETAIL}`",
        f"[{SETTINGS.replays}] replays",
        f"more than {SETTINGS.l2_multiple:g} L2 sizes",
        f"a buffer of {SETTINGS.l2_multiple:g} L2 sizes is *read*, {('once', 'twice')[timing.FLUSH_PASSES - 1]} if",
        f"{timing._LAUNCHES_PER_PASS:,} launches of the graph",
        f"below {SETTINGS.quarantine_fraction:g} of `physical_us`",
        f"Workspace [{SETTINGS.workspace_bytes >> 20} MiB]",
        f"up to [{SETTINGS.heuristic_results}] heuristic answers",
        f"up to [{SETTINGS.enumerated_results}] further algorithm configurations",
        f"at most [{SETTINGS.enumeration_s:g}] s",
        f"from the best {('', 'one', 'two', 'three')[autotune._LEADERS]} so far",
        f"after every {autotune._STEP} the leaders",
        f"`--warmup_seconds` [{EVAL.warmup_seconds:g}]",
        f"`--benchmark_seconds` [{EVAL.benchmark_seconds:g}]",
        f"best of three {autotune._SCREEN_MS:g} ms graphs",
        f"or the first graph is already {autotune._HOPELESS:g}x the best so far",
        f"({autotune.ROUGH_OVERHEAD_US:g} us of submission allowed for; not asked where the best takes under "
        f"{autotune.ROUGH_OVERHEAD_US / autotune._HOPELESS:g} us)",
        f"if the last reading is over {arena._CLOCKS_AGE_S:g} s old",
        f"red zones of {correctness._GUARD_ELEMENTS:,} elements",
        f"and {correctness._SAMPLE_ROWS} rows of one of them",
        f"`--target_qps` [{eval_server.DEFAULT_QPS:g}] from a seed, in [{Traffic().blocks}] blocks",
        f"from {traffic.REQUESTS[0]} to {traffic.REQUESTS[1]}",
        f"Above {MOST_LOAD:.0%} of the time".replace("%", " %"),
        f"a buffer of {server_device.FLUSH_L2_MULTIPLE:g} L2 sizes is read after each request, if "
        f"{server_device.FLUSH_US:g} us",
        f"half the L2, from {server_device.WARM_SETS[0]} to {server_device.WARM_SETS[1]}",
        f"{server_device.LOAD_BYTES >> 20} MiB are copied onto another {server_device.LOAD_BYTES >> 20} MiB in slices "
        f"of {server_device.LOAD_BYTES // server_device.LOAD_SLICES >> 20} MiB, "
        f"{('', 'one', 'two', 'three')[server_device.LOAD_DEPTH]} graphs of "
        f"{server_device.LOAD_PASSES * server_device.LOAD_SLICES} copies",
        f"never in the last {server_device.LOAD_GUARD_US:g} us",
        f"of at most {('', 'one', 'two')[servings.FINALISTS]}",
        f"preceded by {('', '', '', '', '', 'five')[server._WARMUP_REQUESTS]} requests at once",
    ],
)
def test_the_page_states_the_defaults(said):
    assert said in " ".join(PAGE.split())


def test_small_problems_get_enough_buffers_as_the_page_says():
    problem, l2_bytes = Problem(512, 512, 512), 50 << 20
    count = inputs.rotation_count(problem, l2_bytes, SETTINGS.l2_multiple, 10_000)
    assert (count - 1) * inputs.set_bytes(problem) >= 3 * l2_bytes
    assert inputs.rotation_count(problem, l2_bytes, SETTINGS.l2_multiple, 7) == 7


def test_its_files_and_commands_exist():
    for name in re.findall(r"`((?:bench|records|cudal2|configs|tests|scripts)/[\w/.]+\.\w+)`", PAGE):
        assert (ROOT / name).exists() or (ROOT / "cudal2" / name).exists(), name
    lines = re.findall(r"^python -m cudal2 (.*)$", PAGE, re.MULTILINE)
    assert len(lines) == 3
    for line in lines:
        parser().parse_args(shlex.split(line, comments=True))
