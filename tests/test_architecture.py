"""The promises about structure: layers, what imports without torch or a GPU, small files, no stray prints."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "cudal2").rglob("*.py"))
HEADERS = sorted((ROOT / "kernels").rglob("*.cuh"))
OUTSIDE_CLI = [path for path in SOURCES if path.parent.name != "cli"]
MAX_LINES = 400
VAGUE_NAMES = {"utils", "util", "helper", "helpers", "manager", "misc", "common", "core"}

#: Work with numpy and PyYAML only.
CORE = [
    "cudal2",
    "cudal2.problem",
    "cudal2.table",
    "cudal2.space.space",
    "cudal2.codegen",
    "cudal2.settings",
    "cudal2.cli.main",
]
#: Work without torch; each may use the libraries of its own extra.
NO_TORCH = [
    *CORE,
    "cudal2.build.cache",
    "cudal2.build.pool",
    "cudal2.records.recording",
    "cudal2.records.shards",
    "cudal2.report.summary",
    "cudal2.runners.replay",
    "cudal2.search.strategies",
    "cudal2.bench.sanitize.launcher",
]

#: Where anything may be raised by what we run, and must become one line: child processes, compilers in Python.
EDGES = (
    "cudal2/bench/baselines/contestants.py",
    "cudal2/bench/foreign/child.py",
    "cudal2/bench/isolation.py",
    "cudal2/build/child.py",
    "cudal2/build/nvrtc.py",
)

_BLOCKED_IMPORT = """
import sys
from importlib import import_module
blocked, wanted = sys.argv[1].split(","), sys.argv[2].split(",")
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in blocked:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)
sys.meta_path.insert(0, Blocker())
for name in wanted:
    import_module(name)
"""


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=100)


def test_the_layers_hold() -> None:
    result = run_python(
        "-c", "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_modules_that_promise_it_import_without_torch() -> None:
    result = run_python("-c", _BLOCKED_IMPORT, "torch", ",".join(NO_TORCH))
    assert result.returncode == 0, result.stderr


def test_the_core_imports_with_numpy_and_yaml_only() -> None:
    optional = "torch,cuda,gymnasium,stable_baselines3,matplotlib,pyarrow,rich,nvmath,pynvml,tensorboard,scipy"
    result = run_python("-c", _BLOCKED_IMPORT, optional, ",".join(CORE))
    assert result.returncode == 0, result.stderr


def test_without_rl_the_tuner_still_searches_and_reports() -> None:
    code = (
        "import sys; sys.modules['cudal2.rl'] = None; from cudal2.cli.main import main\n"
        "search = 'search --backend replay --strategy hill_climb --budget 4 --mnk 64_64_16384'\n"
        "sys.exit(main(search.split()) or main(['report']) or main(['table', 'show']))"
    )
    result = run_python("-c", code)
    assert result.returncode == 0, result.stderr
    assert "64_64_16384" in result.stdout


def test_the_blocker_blocks() -> None:
    result = run_python("-c", _BLOCKED_IMPORT, "yaml", "cudal2.settings")
    assert result.returncode != 0 and "yaml is blocked" in result.stderr


@pytest.mark.parametrize("path", [*SOURCES, *HEADERS], ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_small_and_named_for_what_it_does(path: Path) -> None:
    assert len(path.read_text().splitlines()) < MAX_LINES
    assert path.stem not in VAGUE_NAMES and path.parent.name not in VAGUE_NAMES


@pytest.mark.parametrize("path", OUTSIDE_CLI, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_the_command_line_prints(path: Path) -> None:
    calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    assert not [call for call in calls if isinstance(call, ast.Name) and call.id == "print"]


def test_broad_excepts_stay_at_the_edges() -> None:
    broad = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ExceptHandler) and _is_broad(node):
                broad.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert all(place.startswith(EDGES) for place in broad), broad


def _is_broad(handler: ast.ExceptHandler) -> bool:
    """Whether it swallows anything at all; cleaning up and raising again is fine."""
    last = handler.body[-1]
    if isinstance(last, ast.Raise) and last.exc is None:
        return False
    return handler.type is None or (
        isinstance(handler.type, ast.Name) and handler.type.id in ("Exception", "BaseException")
    )


def test_kernels_hold_nothing_generated() -> None:
    assert not [path for path in (ROOT / "kernels").rglob("*") if path.suffix in (".cu", ".cubin", ".ptx", ".so")]


def test_no_file_names_a_registry_or_a_home_directory() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    needles = ("pypi." + "org", "/home" + "/", "/root" + "/", "/work" + "/", "files.python" + "hosted")
    found = []
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.suffix in (".py", ".sh", ".md", ".toml", ".yaml", ".txt", ".cuh", ".in") and path.is_file():
            text = path.read_text(errors="replace")
            found += [f"{name}: {needle}" for needle in needles if needle in text]
    assert not found


def test_the_readme_is_short_and_its_tree_is_complete() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 260
    tree = text[text.index("## Files") :]
    for path in (ROOT / "cudal2").iterdir():
        if path.name.startswith(("_", ".", "py.typed")):
            continue
        name = f"{path.name}/" if path.is_dir() else path.name
        assert re.search(rf"^  ([\w./]+ )*{re.escape(name)} ", tree, re.MULTILINE), (
            f"{name} is not in the README's file tree"
        )
