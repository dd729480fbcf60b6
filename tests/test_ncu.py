"""Nsight Compute from outside: found, asked, read, and killed when it hangs; the tool itself is a stand-in."""

from __future__ import annotations

import os
import time
from pathlib import Path

import fake_ncu
import pytest

from cudal2.bench.profile import ncu
from cudal2.bench.profile.ncu import METRICS, Ncu, parse
from cudal2.errors import EnvironmentProblemError, WorkerError
from cudal2.records.counters import NAMES


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without the tool."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr(ncu, "INSTALLED", (tmp_path / "cuda", tmp_path / "opt"))
    return tmp_path


def tool(folder: Path, body: str) -> Ncu:
    return Ncu(fake_ncu.install(folder, body), "2025.3.1.0")


def test_every_counter_has_a_metric_and_no_two_the_same():
    assert tuple(METRICS) == NAMES
    assert len({metric for metric, _ in METRICS.values()}) == len(NAMES)


def test_the_table_is_read_whatever_stands_around_it():
    """What version 2025.3.1 printed on an H200: 4096_4096_64, three kernels of ours and cuBLASLt's."""
    large, pingpong, small, vendor = parse(fake_ncu.RAW.read_text())
    assert {row.kernel for row in (large, pingpong, small)} == {"cudal2_gemm"} and vendor.kernel.startswith("nvjet")
    assert large.values["l2_hit_rate"] == 0.9656 and large.values["tensor_active"] == 0.1896
    assert large.values["duration_us"] == 12.128 and large.values["sm_clock_mhz"] == pytest.approx(1727.42389)
    assert large.values["tma_load_bytes"] == 25_165_824 and large.values["tma_throughput"] == 0.0711
    assert (large.values["registers"], large.values["waves"]) == (168, 1)
    assert (small.values["registers"], small.values["waves"], small.values["occupancy"]) == (87, 7.76, 0.2615)


def test_what_the_tool_does_not_say_is_no_number():
    text = fake_ncu.RAW.read_text()
    assert '"96.56"' in text and ',"lts__throughput.avg.pct_of_peak_sustained_elapsed"' in text
    values = parse(text.replace('"96.56"', '"n/a"').replace("lts__throughput.avg", "lts__else.avg"))[0].values
    assert values["l2_hit_rate"] is None and values["l2_throughput"] is None
    assert values["dram_throughput"] == 0.1328


def test_scaled_units_are_read_too_and_unknown_ones_are_no_number():
    header = '"ID","Kernel Name","gpu__time_duration.sum","lts__t_sector_hit_rate.pct"'
    values = parse(f'{header}\n"","","ms","furlong"\n"0","k","1.5","3"\n')[0].values
    assert values["duration_us"] == pytest.approx(1500) and values["l2_hit_rate"] is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nothing of use",
        '"ID"',
        '"ID","Kernel Name"\n',
        '"ID","Process"\n"",""\n"0","1"\n',
        '"ID","Kernel Name","a"\n"","",""\n"0","k"\n',
        '"ID","Kernel Name"\n"' + "x" * 200_000 + '"',
        '"ID","Kernel Name"\n"0","never closed\n"1","k"',
    ],
)
def test_garbage_is_no_table(text):
    assert parse(text) == []


def test_the_path_comes_first_then_the_toolkit_then_opt_newest_first(places, monkeypatch):
    assert ncu.find() is None
    fake_ncu.install(places / "opt" / "2024.3.2")
    newest = fake_ncu.install(places / "opt" / "2025.10.0")
    fake_ncu.install(places / "opt" / "2025.9.1")
    assert ncu.find() == newest
    toolkit = fake_ncu.install(places / "home" / "bin")
    monkeypatch.setenv("CUDA_HOME", str(places / "home"))
    assert ncu.find() == toolkit
    first = fake_ncu.install(places / "path")
    assert ncu.find() == first
    assert Ncu.find() == Ncu(first, "2025.3.1.0")


def test_a_missing_tool_is_one_line_that_says_what_to_install(places):
    with pytest.raises(EnvironmentProblemError, match=r"ncu is not in PATH.*install Nsight Compute"):
        Ncu.find()


def test_something_else_of_that_name_is_not_taken_for_it(places):
    fake_ncu.install(places / "path", version="network connection utility\n")
    with pytest.raises(EnvironmentProblemError, match="does not answer as Nsight Compute does"):
        Ncu.find()


def test_it_is_asked_for_free_clocks_flushed_caches_and_base_units(tmp_path):
    asked = tmp_path / "asked"
    rows = tool(tmp_path, f'echo "$@" >{asked}; cat {fake_ncu.RAW}').profile(["python", "-m", "x"], 20)
    assert len(rows) == 4
    words = asked.read_text().split()
    for option, value in (("--clock-control", "none"), ("--cache-control", "all"), ("--print-units", "base")):
        assert words[words.index(option) + 1] == value
    assert words[-3:] == ["python", "-m", "x"] and "lts__t_sector_hit_rate.pct" in words[-4]


def test_no_permission_is_one_line_that_says_what_to_do(tmp_path):
    body = 'echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access counters"; exit 1'
    with pytest.raises(EnvironmentProblemError, match="NVreg_RestrictProfilingToAdminUsers=0") as caught:
        tool(tmp_path, body).profile(["true"], 20)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo nonsense", r"gave no counters \(exit code 0\): nonsense"),
        ("exit 0", "it printed nothing"),
        ("printf '\\377\\000\\n'; exit 0", "gave no counters"),
        (f"cat {fake_ncu.RAW}; exit 3", "exit code 3"),
        ("echo '==ERROR== Failed to find metric x'; echo '==PROF== bye'; exit 9", "9.*Failed to find metric x"),
        ("echo 'broken child'; echo '==ERROR== The application returned an error code (1).'; exit 1", "broken child"),
        ("echo '==PROF== on'; echo 'ValueError: no' >&2; echo '==PROF== off'; exit 1", "ValueError: no"),
    ],
)
def test_a_failure_gives_the_line_that_says_most(tmp_path, body, message):
    with pytest.raises(WorkerError, match=message):
        tool(tmp_path, body).profile(["true"], 20)


def refusing(tmp_path: Path, metric: str, complaint: str) -> Ncu:
    """A tool that knows every metric but one, and counts its runs."""
    run = f"echo run >>{tmp_path}/runs"
    case = f"case \"$*\" in *{metric}*) echo '==ERROR== Failed to find metric {complaint}'; exit 1;; esac"
    return tool(tmp_path, f"{run}; {case}; sed s/op_tma_ld.sum/gone/g {fake_ncu.RAW}")


@pytest.mark.parametrize(
    ("complaint", "left_out"),
    [
        ("l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld.sum.pct_of_peak_sustained_elapsed", 1),
        (r"regex:^l1tex__m_xbar2l1tex_read_bytes_mem_global_op_tma_ld\.(sum|min|max|avg|pct|ratio|max_rate)$", 2),
    ],
)
def test_a_metric_the_tool_does_not_know_is_left_out_and_the_rest_is_read(tmp_path, caplog, complaint, left_out):
    rows = refusing(tmp_path, "op_tma_ld.sum.pct_of_peak", complaint).profile(["true"], 20)
    assert rows[0].values["tma_throughput"] is None and rows[0].values["l2_hit_rate"] == 0.9656
    assert (tmp_path / "runs").read_text() == "run\n" * 2
    assert caplog.text.count("l1tex__m_xbar2l1tex") == left_out and "2025.3.1.0 does not know" in caplog.text


def test_a_tool_that_knows_nothing_is_not_asked_for_ever(tmp_path):
    everything = " ".join(f"{metric}," for metric, _ in METRICS.values())
    body = "; ".join(f"echo 'Failed to find metric {name}'" for name in everything.replace(",", "").split())
    with pytest.raises(WorkerError, match="gave no counters"):
        tool(tmp_path, f"echo run >>{tmp_path}/runs; {body}; exit 1").profile(["true"], 20)
    assert (tmp_path / "runs").read_text() == "run\n"
    stubborn = "echo '==ERROR== Failed to find metric something__else.sum'; exit 1"
    with pytest.raises(WorkerError, match="Failed to find metric something__else"):
        tool(tmp_path, stubborn).profile(["true"], 20)


def test_a_hang_is_killed_with_everything_it_started(tmp_path):
    pids = tmp_path / "pids"
    hanging = tool(tmp_path, f"sleep 600 & echo $! >{pids}; echo $$ >>{pids}; wait")
    began = time.monotonic()
    with pytest.raises(WorkerError, match=r"ncu gave no answer within 0\.5 s and was killed"):
        hanging.profile(["true"], 0.5)
    assert time.monotonic() - began < 10
    assert [pid for pid in pids.read_text().split() if _running(int(pid))] == []


def test_a_child_left_behind_is_killed_too(tmp_path):
    pids = tmp_path / "pids"
    tool(tmp_path, f"sleep 600 >/dev/null 2>&1 & echo $! >{pids}; cat {fake_ncu.RAW}").profile(["true"], 20)
    assert not _running(int(pids.read_text()))


def test_what_cannot_be_started_is_our_error(tmp_path):
    with pytest.raises(EnvironmentProblemError, match="cannot start"):
        Ncu(tmp_path / "nowhere", "1").profile(["true"], 20)


def _running(pid: int) -> bool:
    """Alive and no zombie; a killed process may take a moment to go."""
    for _ in range(100):
        try:
            os.kill(pid, 0)
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except (ProcessLookupError, FileNotFoundError):
            return False
        if state == "Z":
            return False
        time.sleep(0.02)
    return True
