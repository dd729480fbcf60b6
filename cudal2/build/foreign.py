"""A user's ``.cu`` into a shared library with one known entry, in the cache; docs/foreign.md has the interface.

The source is included into a few lines of ours that check the entry's signature and launch it. Nothing of it is loaded
here: its static initialisers run in the process that is made for it, never in ours.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sysconfig
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from string import Template

from cudal2.arch import SM90, Arch
from cudal2.build.cuda_l2 import CudaL2Needs
from cudal2.build.nvcc import Nvcc
from cudal2.errors import CacheError, ToolchainError, UsageError
from cudal2.paths import cache_dir
from cudal2.problem import Dtype, Layout, Problem
from cudal2.records.finals import FOREIGN

#: A file that includes torch's headers takes a minute on one core, one with CUTLASS's collectives two.
COMPILE_DEADLINE_S = 600.0
_TEMPLATES = Path(__file__).parent
#: How a source that serves both types knows which it is built for.
_DTYPE_FLAGS: dict[Dtype, tuple[str, ...]] = {"fp16": (), "bf16": ("-DCUDAL2_BF16",)}
_FLAGS = ("-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC")
#: How CUDA-L2 builds its kernels, and a default stream that can be captured in a graph, which theirs cannot.
_CUDA_L2_FLAGS = (
    *("-U__CUDA_NO_HALF_OPERATORS__", "-U__CUDA_NO_HALF_CONVERSIONS__", "-U__CUDA_NO_HALF2_OPERATORS__"),
    *("-U__CUDA_NO_BFLOAT16_CONVERSIONS__", "--expt-relaxed-constexpr", "--expt-extended-lambda", "--use_fast_math"),
    *("-diag-suppress", "177,3306", "-default-stream", "per-thread", "-DTORCH_EXTENSION_NAME=cudal2_foreign"),
)
_TORCH_LIBRARIES = ("torch", "torch_cpu", "c10", "torch_python")
_ENTRY = re.compile(r"[A-Za-z_]\w*(?:::[A-Za-z_]\w*)*", re.ASCII)
_ERROR = re.compile(r"\b(?:error:|fatal\b|cannot find|undefined reference)")
_KEY_CHARS = 24
_LAST_LINES = 20


class ForeignBuildError(ToolchainError):
    """A foreign source that yields no library; the message ends in the path of the compiler's log."""


@dataclass(frozen=True)
class ForeignSource:
    """A foreign kernel as it is asked for.

    Attributes:
        path: The ``.cu``.
        entry: Its function, possibly in a namespace.
        flags: Passed to nvcc after ours.
        cuda_l2: Whether the entry is CUDA-L2's, over torch tensors.
    """

    path: Path
    entry: str
    flags: tuple[str, ...] = ()
    cuda_l2: bool = False


@dataclass(frozen=True)
class ForeignKernel:
    """A foreign kernel that is built.

    Attributes:
        name: Name in records, ``foreign:<file>``.
        entry: Its function.
        library: Exports ``cudal2_foreign_launch``.
        log_path: What the compiler said.
        compile_s: Seconds the compiler took.
        workspace_bytes: Workspace a call gets.
        cuda_l2: Whether its process needs torch.
        detail: What it is, for records.
    """

    name: str
    entry: str
    library: Path
    log_path: Path
    compile_s: float
    workspace_bytes: int
    cuda_l2: bool
    detail: str


def build_foreign(
    source: ForeignSource,
    problem: Problem,
    workspace_bytes: int,
    arch: Arch = SM90,
    deadline_s: float = COMPILE_DEADLINE_S,
) -> ForeignKernel:
    """Compiles, or finds it compiled.

    Args:
        source: What.
        problem: The layout of B, the type and, for CUDA-L2's entry, the padded sizes.
        workspace_bytes: Least workspace of a call; CUDA-L2's gets what its copies need.
        arch: For which device.
        deadline_s: Seconds the compiler may take.

    Raises:
        UsageError: No such file, or a name that cannot be an entry.
        ToolchainError: No nvcc, or no torch where the entry needs it.
        ForeignBuildError: It does not compile, or the entry is missing or another; the log is kept.
        CacheError: The cache cannot be written.
    """
    text = _read(source)
    needs = CudaL2Needs.read(text, source.entry) if source.cuda_l2 else None
    wrapper = _wrapper(source, problem.layout, needs)
    nvcc = Nvcc.detect()
    flags = [
        *_FLAGS,
        *_DTYPE_FLAGS[problem.dtype],
        f"-arch={arch.target}",
        *(_torch_flags() if source.cuda_l2 else ()),
        *_cutlass(),
        *source.flags,
    ]
    key = hashlib.sha256(json.dumps([wrapper, flags, nvcc.version]).encode()).hexdigest()[:_KEY_CHARS]
    folder = cache_dir() / "foreign" / f"{source.path.stem}-{key}"
    entry = _lookup(folder) or _compile(source, wrapper, nvcc, flags, folder, deadline_s)
    return ForeignKernel(
        name=f"{FOREIGN}{source.path.stem}",
        entry=source.entry,
        library=entry / "kernel.so",
        log_path=entry / "log.txt",
        compile_s=float(json.loads((entry / "build.json").read_text())["compile_s"]),
        workspace_bytes=max(workspace_bytes, needs.workspace_bytes(problem) if needs else 0),
        cuda_l2=source.cuda_l2,
        detail=_detail(source, problem.layout, needs, text, nvcc),
    )


def _read(source: ForeignSource) -> str:
    if not _ENTRY.fullmatch(source.entry):
        raise UsageError(f"--entry '{source.entry[:80]}' is no name of a function")
    if any(character in str(source.path) for character in '"\\\n'):
        raise UsageError(f"--source {source.path}: a path with quotes or line breaks cannot be included")
    try:
        return source.path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"--source {source.path} cannot be read ({error.strerror})") from error


def _wrapper(source: ForeignSource, layout: Layout, needs: CudaL2Needs | None) -> str:
    template = _TEMPLATES / ("cuda_l2_entry.cu.in" if needs else "foreign_entry.cu.in")
    more = needs.placeholders(layout) if needs else {}
    text = Template(template.read_text(encoding="utf-8"))
    return text.substitute(source=source.path.resolve(), entry=source.entry, **more)


def _torch_flags() -> list[str]:
    """CUDA-L2's flags, torch's headers and libraries; torch is not imported for it."""
    spec = util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise ToolchainError("--legacy-cuda-l2 needs torch: pip install 'cudal2[cuda]'")
    root = Path(next(iter(spec.submodule_search_locations)))
    python = Path(sysconfig.get_paths()["include"])
    if not (python / "Python.h").is_file():
        raise ToolchainError(f"torch's headers need Python's, and {python}/Python.h is missing: install python3-dev")
    include = root / "include"
    folders = (include, include / "torch" / "csrc" / "api" / "include", python)
    libraries = [f"-l{name}" for name in _TORCH_LIBRARIES]
    if (root / "lib" / "libtorch_cuda.so").is_file():
        libraries += ["-ltorch_cuda", "-lc10_cuda"]
    version = f"-DCUDAL2_TORCH={metadata.version('torch')}"  # so that another torch is another build
    return [*_CUDA_L2_FLAGS, version, *(f"-I{folder}" for folder in folders), f"-L{root / 'lib'}", *libraries]


def _cutlass() -> list[str]:
    """CUTLASS's headers where they are installed; a source that needs none does not miss them."""
    spec = util.find_spec("cutlass_library")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        root = Path(location) / "source"
        return [f"-I{root / 'include'}", f"-I{root / 'tools' / 'util' / 'include'}"]
    home = os.environ.get("CUTLASS_DIR")
    return [f"-I{Path(home) / 'include'}", f"-I{Path(home) / 'tools' / 'util' / 'include'}"] if home else []


def _detail(source: ForeignSource, layout: Layout, needs: CudaL2Needs | None, text: str, nvcc: Nvcc) -> str:
    parts = [f"{source.path.name} {source.entry} sha256={hashlib.sha256(text.encode()).hexdigest()[:16]}"]
    parts += [f"nvcc={nvcc.version}", *(["flags=" + " ".join(source.flags)] if source.flags else [])]
    return " ".join([*parts, *([needs.detail(layout)] if needs else [])])


def _lookup(folder: Path) -> Path | None:
    """A build whose every included file is still what it was; its library too."""
    for record in sorted(folder.glob("*/build.json")):
        try:
            values = json.loads(record.read_text(encoding="utf-8"))
            whole = values["library_sha256"] == _digest(record.parent / "kernel.so") and values["compile_s"] >= 0.0
            if whole and values["dependencies"] == _digests(values["dependencies"]):
                return record.parent
        except (OSError, ValueError, KeyError, TypeError):
            continue  # damaged, or a header is gone: built again
    return None


def _compile(
    source: ForeignSource, wrapper: str, nvcc: Nvcc, flags: Sequence[str], folder: Path, deadline_s: float
) -> Path:
    temp = folder / f"tmp-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    try:
        temp.mkdir(parents=True)
        try:
            (temp / "entry.cu").write_text(wrapper, encoding="utf-8")
            log, started = temp / "log.txt", time.perf_counter()
            outputs = ["-MD", "-MF", str(temp / "dependencies"), "-o", str(temp / "kernel.so")]
            failure = nvcc.run([str(temp / "entry.cu"), *outputs, *flags], log, deadline_s)
            if failure:
                kept = folder / "failed.log"
                os.replace(log, kept)
                raise ForeignBuildError(_explain(source, failure, kept))
            return _publish(temp, folder, time.perf_counter() - started)
        finally:
            shutil.rmtree(temp, ignore_errors=True)
    except OSError as error:
        remedy = "make room or set CUDAL2_CACHE_DIR to a writable folder"
        raise CacheError(f"cannot write the build cache {folder} ({error.strerror}): {remedy}") from error


def _publish(temp: Path, folder: Path, compile_s: float) -> Path:
    """Moves a build to a name made of all it was built from."""
    text = (temp / "dependencies").read_text(encoding="utf-8").replace("\\\n", " ").partition(":")[2]
    paths = [part.replace("\\ ", " ") for part in re.findall(r"(?:\\ |\S)+", text)]
    dependencies = _digests(path for path in paths if not path.startswith(str(temp)))
    values = {
        "compile_s": round(compile_s, 3),
        "library_sha256": _digest(temp / "kernel.so"),
        "dependencies": dependencies,
    }
    (temp / "build.json").write_text(json.dumps(values, indent=1, sort_keys=True), encoding="utf-8")
    final = folder / hashlib.sha256(json.dumps(dependencies, sort_keys=True).encode()).hexdigest()[:_KEY_CHARS]
    if final.exists():
        shutil.rmtree(final)  # damaged, or it would have been found
    try:
        os.rename(temp, final)
    except OSError:
        if not (final / "build.json").is_file():
            raise  # otherwise another process was faster, with the same build
    return final


def _digests(paths: object) -> dict[str, str]:
    return {str(path): _digest(Path(path)) for path in sorted(set(paths))}  # type: ignore[call-overload]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _explain(source: ForeignSource, failure: str, log: Path) -> str:
    """One line: what is wrong with the source, or with its entry if the errors are in our lines."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[1:]
    errors = [" ".join(line.split()) for line in lines if _ERROR.search(line)]
    first = errors[0] if errors else ""
    if "entry.cu" in first.partition("):")[0] and "No such file" not in first:
        missing = re.search(r"is undefined|has no member|must be a namespace", first)
        what = "is not in it" if missing else "does not have the documented signature (docs/foreign.md)"
        return f"{source.path}: entry '{source.entry}' {what}; log: {log}"
    return f"{source.path} does not compile ({first or failure}); log: {log}"


def last_lines(log: Path, count: int = _LAST_LINES) -> list[str]:
    """The end of a log, for the reader."""
    try:
        return log.read_text(encoding="utf-8", errors="replace").splitlines()[-count:]
    except OSError:
        return []
