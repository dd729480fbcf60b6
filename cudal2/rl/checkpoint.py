"""Checkpoints of a training run: everything the next step depends on, written atomically, read back bit for bit.

A checkpoint holds tensors and JSON only, so loading one runs no code.
"""

from __future__ import annotations

import io
import json
import pickle
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cudal2.atomic import write_atomically
from cudal2.errors import RecordError, UsageError

VERSION = 1
#: Checkpoints kept in a run directory; older ones are removed.
KEEP = 3
_NAME = "step_{:09d}.pt"
_PARTS = ("policy", "optimizer", "rng", "env", "trainer", "identity")
#: What reading a damaged checkpoint, or putting its parts back, ends in.
DAMAGE = (RuntimeError, ValueError, LookupError, EOFError, TypeError, AttributeError, OverflowError)


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run at a rollout boundary.

    Attributes:
        steps: Environment steps taken.
        policy: Parameters of actor and critic.
        optimizer: State of Adam.
        rng: States of the generators of python, numpy and torch.
        env: State of the batched environment, its memory of measurements included.
        trainer: Counters of the algorithm and the learning curve so far.
        identity: What the run was started with; another data set or other settings refuse to continue it.
    """

    steps: int
    policy: dict[str, Any]
    optimizer: dict[str, Any]
    rng: dict[str, Any]
    env: dict[str, Any]
    trainer: dict[str, Any]
    identity: dict[str, Any]


def rng_state() -> dict[str, Any]:
    """States of the global generators, as JSON takes them."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "python": random.getstate(),
        "numpy": [name, np.asarray(keys).tolist(), position, has_gauss, gauss],
        "torch": torch.get_rng_state().tolist(),
    }


def set_rng_state(state: dict[str, Any]) -> None:
    """The inverse of :func:`rng_state`."""
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.asarray(keys, np.uint32), position, has_gauss, cached))
    torch.set_rng_state(torch.tensor(state["torch"], dtype=torch.uint8))


def save(checkpoint: Checkpoint, directory: Path) -> Path:
    """Writes ``step_N.pt``: a crash leaves the old file or the new one, never half of one.

    Raises:
        EnvironmentProblemError: It cannot be written; the older ones stay.
    """
    path = directory / _NAME.format(checkpoint.steps)
    plain = {name: getattr(checkpoint, name) for name in ("steps", "rng", "env", "trainer", "identity")}
    content = {
        "version": VERSION,
        "plain": json.dumps(plain),
        "policy": checkpoint.policy,
        "optimizer": checkpoint.optimizer,
    }
    # In memory first: torch answers a full disk with an error of its own, and not with the system's.
    buffer = io.BytesIO()
    torch.save(content, buffer)
    write_atomically(path, buffer.getvalue(), "make room, then --resume")
    for old in checkpoints(directory)[:-KEEP]:
        old.unlink(missing_ok=True)
    return path


def load(path: Path) -> Checkpoint:
    """Reads one checkpoint.

    Raises:
        RecordError: The file is damaged or of another version.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
        version = content["version"]
        if version != VERSION:
            raise RecordError(f"{path} is a checkpoint of version {version}; this version reads {VERSION}: train anew")
        found = Checkpoint(policy=content["policy"], optimizer=content["optimizer"], **json.loads(content["plain"]))
        if type(found.steps) is not int or not all(isinstance(getattr(found, name), dict) for name in _PARTS):
            raise TypeError("a part is of another kind")
    except (OSError, pickle.UnpicklingError, *DAMAGE) as error:
        raise damaged(path) from error
    return found


def damaged(path: Path) -> RecordError:
    """What to say of a checkpoint that cannot be continued from."""
    return RecordError(f"{path} is not a readable checkpoint: remove it to continue from the one before")


def checkpoints(directory: Path) -> list[Path]:
    """Checkpoints in a directory, oldest first."""
    return sorted(directory.glob("step_*.pt"))


def latest(run_dir: Path) -> Path:
    """The newest checkpoint of a run.

    Raises:
        UsageError: There is none.
    """
    found = checkpoints(run_dir / "checkpoints")
    if not found:
        raise UsageError(
            f"{run_dir} holds no checkpoint: give the directory of a run, or begin one with `cudal2 train`"
        )
    return found[-1]
