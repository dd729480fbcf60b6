"""What a built wheel carries, and that it works outside the checkout."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling")
    directory = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert built.returncode == 0, built.stderr
    return next(directory.glob("*.whl"))


def test_the_wheel_carries_everything_that_is_read_at_run_time(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    package = [(f"cudal2/{name}", name) for name in ("bench", "build", "data")]
    shipped = [("kernels", "_kernels"), ("configs", "_configs"), *package]
    for source, target in shipped:
        for path in (ROOT / source).rglob("*"):
            if path.is_file() and path.suffix != ".pyc" and not path.name.startswith("."):
                assert f"cudal2/{target}/{path.relative_to(ROOT / source)}" in names
    assert {"cudal2/bench/native.c", "cudal2/build/foreign_entry.cu.in"} <= names
    assert "cudal2/py.typed" in names and any(name.endswith("LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests", "scripts")) or name.endswith(".pyc")]


def test_the_wheel_works_outside_the_checkout(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = "import sys; sys.path.insert(0, sys.argv[1]); from cudal2.cli.main import main; sys.exit(main(sys.argv[2:]))"
    command = [sys.executable, "-c", code, str(tmp_path / "site"), "render", "--mnk", "64_4096_64"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0 and "sm90_ws.cuh" in result.stdout, result.stderr
