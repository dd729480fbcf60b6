"""A run directory: resolved settings, checkpoints, TensorBoard events, learning curve and the kernel table so far."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from cudal2.atomic import write_atomically
from cudal2.errors import UsageError
from cudal2.problem import Problem
from cudal2.records.counters import ProfileBook
from cudal2.rl import observation
from cudal2.rl.observed import digest
from cudal2.runners.base import Runner
from cudal2.runners.replay import ReplayRunner
from cudal2.settings import TrainSettings

SETTINGS, CURVE, TABLE, CHECKPOINTS, TENSORBOARD = "settings.yaml", "curve.json", "table.json", "checkpoints", "tb"

_SPOKEN = {
    "data": "recording or launch setting",
    "space": "search space",
    "observation": "observation version",
    "problems": "list of shapes",
    "counters": "set of counters",
}


def data_digest(runner: Runner) -> str:
    """What a run learns from: the content of the recording, or ``live`` and how it launches."""
    if not isinstance(runner, ReplayRunner):
        return "live with PDL" if getattr(runner, "pdl", False) else "live"
    digest = hashlib.sha256(runner.recording.fingerprint.sha256.encode())
    recording = runner.recording
    for array in (*runner.cells.pairs(), recording.times_us, recording.ref_times_us, recording.statuses):
        digest.update(array.tobytes())
    return digest.hexdigest()


def identity(
    settings: TrainSettings,
    runner: Runner,
    problems: Sequence[Problem],
    horizon: int,
    counters: ProfileBook | None = None,
) -> dict[str, Any]:
    """What must be the same for a run to be continued; the number of steps and checkpoints may change."""
    fixed = {name: value for name, value in asdict(settings).items() if name not in ("steps", "checkpoint_every")}
    return {
        "data": data_digest(runner),
        "space": runner.space.digest,
        "axes": {axis.name: list(axis.values) for axis in runner.space.axes},
        "observation": observation.VERSION,
        "horizon": horizon,
        "counters": digest(counters),
        "problems": [problem.to_dict() for problem in problems],
        "settings": fixed,
    }


def require_same(found: dict[str, Any], wanted: dict[str, Any], run_dir: Path) -> None:
    """Refuses to continue a run with anything else than it was started with.

    Raises:
        UsageError: They differ; the message names where.
    """
    names = [name for name in wanted if found.get(name) != wanted[name] and name != "settings"]
    names += [name for name, value in wanted["settings"].items() if found.get("settings", {}).get(name) != value]
    if names:
        what = _SPOKEN.get(names[0], names[0])
        raise UsageError(
            f"{run_dir} was started with another {what}: resume it with the same, or start a new --run-dir"
        )


def prepare(run_dir: Path, resume: bool) -> None:
    """Creates the directory.

    Raises:
        UsageError: A new run would write over an old one.
    """
    if not resume and any((run_dir / CHECKPOINTS).glob("step_*.pt")):
        raise UsageError(f"{run_dir} already holds a run: add --resume to continue it, or choose another --run-dir")
    if not resume:
        run_dir.mkdir(parents=True, exist_ok=True)


def write_settings(run_dir: Path, settings: TrainSettings, described: dict[str, Any]) -> None:
    """Writes the settings as they were resolved, with what the run learns from."""
    shapes = [Problem.from_dict(values).mnk for values in described["problems"]]
    about = {name: described[name] for name in ("data", "space", "observation", "horizon", "counters")}
    text = yaml.safe_dump({"settings": asdict(settings), **about, "shapes": shapes}, sort_keys=False)
    write_atomically(run_dir / SETTINGS, text)


def write_curve(run_dir: Path, curve: Sequence[dict[str, Any]]) -> None:
    """Writes the learning curve, one row per rollout."""
    write_atomically(run_dir / CURVE, "[\n" + ",\n".join(json.dumps(row) for row in curve) + "\n]\n")
