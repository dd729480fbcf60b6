"""compute-sanitizer around real launches: a sound kernel is clean, kernels broken on purpose are found."""

from __future__ import annotations

import gpu_kernels as kernels
import pytest

from cudal2.bench.sanitize.checks import check_cases
from cudal2.bench.sanitize.launcher import Case
from cudal2.bench.sanitize.tool import Sanitizer, find
from cudal2.build.artifact import BuiltKernel
from cudal2.build.cache import BuildCache
from cudal2.codegen import build_key
from cudal2.problem import Problem

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(find() is None, reason="no compute-sanitizer in PATH or the CUDA toolkit"),
    pytest.mark.timeout(300),
]

PROBLEM = Problem(64, 64, 512)
SECONDS = 120.0


def sound(store: BuildCache) -> Case:
    built = kernels.build_corners(store, [kernels.VICTIM])[build_key(kernels.VICTIM, "fp32", "tn")]
    assert isinstance(built, BuiltKernel), built
    return Case(PROBLEM, kernels.VICTIM, built)


def broken(store: BuildCache, fault: str) -> Case:
    built = kernels.build_fault(store, fault)
    assert isinstance(built, BuiltKernel), built
    return Case(PROBLEM, kernels.VICTIM, built)


def test_memcheck_finds_a_store_behind_c_and_a_read_of_nowhere(store: BuildCache) -> None:
    cases = [sound(store), broken(store, "writes_behind_c"), sound(store), broken(store, "reads_nowhere"), sound(store)]
    checked = check_cases("memcheck", cases, Sanitizer.locate(), SECONDS)
    assert all(one.ran for one in checked)
    assert [bool(one.findings) for one in checked] == [False, True, False, True, False], checked
    assert all("Invalid __global__" in checked[at].findings[0].text for at in (1, 3)), checked


def test_a_wrong_result_and_a_hang_are_found_under_any_tool(store: BuildCache) -> None:
    cases = [broken(store, "skips_last_k_tile"), broken(store, "hangs"), sound(store)]
    wrong, hanging, clean = check_cases("synccheck", cases, Sanitizer.locate(), SECONDS, silence_s=15.0)
    assert any("elements are wrong" in finding.text for finding in wrong.findings), wrong
    assert any("hangs" in finding.text for finding in hanging.findings), hanging
    assert clean.ran and not clean.findings, clean
