"""Where things are found, in a checkout and in an installed package."""

from __future__ import annotations

from pathlib import Path

import pytest

from cudal2 import paths
from cudal2.errors import EnvironmentProblemError


def test_a_checkout_has_kernels_configs_and_data() -> None:
    assert (paths.kernels_dir() / "sm90_ws.cu.in").is_file()
    assert (paths.configs_dir() / "spaces" / "sm90.yaml").is_file()
    assert paths.data_dir() == Path(paths.__file__).parent / "data"


def test_the_copy_inside_an_installed_package_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "cudal2"
    (package / "_kernels").mkdir(parents=True)
    (tmp_path / "kernels").mkdir()
    (tmp_path / "configs").mkdir()
    monkeypatch.setattr(paths, "_PACKAGE", package)
    assert paths.kernels_dir() == package / "_kernels"
    assert paths.configs_dir() == tmp_path / "configs"


def test_a_broken_installation_says_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_PACKAGE", tmp_path / "cudal2")
    with pytest.raises(EnvironmentProblemError, match=r"kernels/ is missing .*_kernels.*install cudal2 again"):
        paths.kernels_dir()


def test_cache_follows_its_own_variable_then_xdg_then_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAL2_CACHE_DIR", str(tmp_path / "own"))
    assert paths.cache_dir() == tmp_path / "own"
    assert not paths.cache_dir().exists()
    monkeypatch.delenv("CUDAL2_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert paths.cache_dir() == tmp_path / "xdg" / "cudal2"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert paths.cache_dir() == tmp_path / ".cache" / "cudal2"
