"""What the toolchain finds, how it is signed, and what it says when something is missing."""

from __future__ import annotations

from importlib import metadata, util
from pathlib import Path

import pytest

from cudal2.build import nvrtc, toolchain
from cudal2.build.toolchain import Toolchain
from cudal2.errors import ToolchainError

HEADERS = (
    "cute/arch/mma_sm90_gmma.hpp",
    "cutlass/arch/barrier.h",
    "cuda_runtime_api.h",
    "cuda/std/type_traits",
    "cuda_fp16.h",
)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine whose environment names no toolkit and no CUTLASS checkout."""
    for name in ("CUTLASS_DIR", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(toolchain, "_cuda_roots", lambda: [])
    return monkeypatch


def hide_package(monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    real = metadata.distribution

    def distribution(name: str) -> metadata.Distribution:
        if name.startswith(hidden):
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "distribution", distribution)


def test_finds_everything_a_kernel_includes():
    found = Toolchain.detect()
    assert found.can_compile
    assert found.target == "sm_90a"
    for header in HEADERS:
        assert any((folder / header).is_file() for folder in found.include_dirs), header


def test_signature_is_stable_and_free_of_paths(monkeypatch, tmp_path):
    before = Toolchain.detect()
    assert Toolchain.detect() == before
    monkeypatch.setattr(toolchain, "_find_cutlass", lambda: (tmp_path, dict(before.versions)["cutlass"]))
    assert Toolchain.detect().signature == before.signature
    assert str(tmp_path) not in str(before.to_dict())


@pytest.mark.parametrize("package", ["nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cuda-cccl", "nvidia-cutlass"])
def test_another_version_is_another_signature(monkeypatch, package):
    before = Toolchain.detect()
    real = metadata.distribution

    class Newer:
        def __init__(self, name: str) -> None:
            self.real = real(name)
            self.version = "99.0" if name == package else self.real.version
            self.files, self.locate_file = self.real.files, self.real.locate_file

    monkeypatch.setattr(metadata, "distribution", Newer)
    assert Toolchain.detect().signature != before.signature


def test_another_option_is_another_signature(monkeypatch):
    before = Toolchain.detect()
    monkeypatch.setitem(toolchain.OPTIONS, "std", "c++20")
    assert Toolchain.detect().signature != before.signature


def test_options_point_at_the_kernels_first_and_keep_asserts_out(tmp_path):
    options = Toolchain.detect().options(tmp_path, None)
    assert options["include_path"][0] == str(tmp_path)
    assert options["define_macro"] == ["NDEBUG"]
    assert options["device_as_default_execution_space"] is True
    assert options["no_cache"] is True, "NVRTC's own cache answers without the report of ptxas"
    assert "pch" not in options
    assert Toolchain.detect().options(tmp_path, tmp_path / "pch")["pch_dir"] == str(tmp_path / "pch")


def test_missing_cutlass_names_the_command(bare):
    real = util.find_spec
    bare.setattr(util, "find_spec", lambda name: None if name == "cutlass_library" else real(name))
    with pytest.raises(ToolchainError, match=r"CUTLASS headers.*pip install"):
        Toolchain.detect()


def test_cutlass_checkout_serves_where_the_package_is_missing(bare, tmp_path):
    header = tmp_path / "include" / "cute" / "arch" / "mma_sm90_gmma.hpp"
    header.parent.mkdir(parents=True)
    header.touch()
    bare.setattr(util, "find_spec", lambda name: None)
    bare.setenv("CUTLASS_DIR", str(tmp_path))
    assert tmp_path / "include" in Toolchain.detect().include_dirs


@pytest.mark.parametrize(
    ("package", "header"), [("nvidia-cuda-runtime", "cuda_runtime_api.h"), ("nvidia-cuda-cccl", "cuda/std/type_traits")]
)
def test_missing_cuda_headers_name_the_command(bare, package, header):
    hide_package(bare, package)
    with pytest.raises(ToolchainError, match=rf"<{header}>.*pip install"):
        Toolchain.detect()


def test_toolkit_serves_where_a_package_is_missing(bare, tmp_path):
    hide_package(bare, "nvidia-cuda-runtime")
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "cuda_runtime_api.h").touch()
    bare.setattr(toolchain, "_cuda_roots", lambda: [tmp_path])
    assert tmp_path / "include" in Toolchain.detect().include_dirs


def test_missing_bindings_name_the_command(monkeypatch):
    monkeypatch.setattr(nvrtc, "_bindings", None)
    with pytest.raises(ToolchainError, match=r"not installed: pip install 'cudal2\[build\]'"):
        Toolchain.detect()


def test_old_cuda_core_is_refused(monkeypatch):
    monkeypatch.setattr(nvrtc, "_core_version", "0.6.0")
    with pytest.raises(ToolchainError, match=r"cuda-core 0\.6\.0 is older than 1\.0: pip install"):
        Toolchain.detect()


class _Bindings:
    def __init__(self, answer):
        self.answer = answer

    def nvrtcVersion(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_missing_library_is_one_line(monkeypatch):
    monkeypatch.setattr(
        nvrtc, "_bindings", _Bindings(RuntimeError("Failure finding libnvrtc.so\nsearched here\nand there"))
    )
    with pytest.raises(ToolchainError, match=r"libnvrtc\.so.*pip install") as caught:
        Toolchain.detect()
    assert "\n" not in str(caught.value)


def test_old_nvrtc_is_refused(monkeypatch):
    monkeypatch.setattr(nvrtc, "_bindings", _Bindings((0, 12, 4)))
    with pytest.raises(ToolchainError, match=r"12\.4 is older than 12\.8"):
        Toolchain.detect()


def test_include_dirs_are_absolute():
    assert all(Path(folder).is_absolute() for folder in Toolchain.detect().include_dirs)


def test_headers_of_packages_in_different_folders_find_each_other(monkeypatch, tmp_path):
    """CUDA's fp16 header says <cccl/cuda/std/...>; that resolves even where CCCL was installed somewhere else."""
    elsewhere = tmp_path / "include" / "cccl"
    real = toolchain._find_header
    monkeypatch.setattr(
        toolchain,
        "_find_header",
        lambda package, major, header: (elsewhere, "13.0") if "cccl" in package else real(package, major, header),
    )
    assert {elsewhere, elsewhere.parent} <= set(Toolchain.detect().include_dirs)
