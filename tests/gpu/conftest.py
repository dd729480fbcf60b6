"""Fixtures of the GPU tests; a module that needs another cache or deadline has its own of the same name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gpu_kernels as kernels
import pytest

from cudal2.build.cache import BuildCache


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> BuildCache:
    """The carried cache if there is one."""
    return kernels.cache(tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="module")
def worker() -> Iterator[Any]:
    """A ``Worker``, which imports torch."""
    from cudal2.bench.worker import Worker

    with Worker(0, 20.0) as started:
        yield started
