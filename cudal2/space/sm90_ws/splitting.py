"""The rules of ``sm90_ws`` about K that CTAs share: split-K, where its sums meet, stream-K."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudal2.arch import Arch
from cudal2.problem import Problem
from cudal2.space.config import Sm90WsConfig
from cudal2.space.rule import Choice, Rule, share_k_tiles
from cudal2.space.shared_rules import WORKSPACE_BYTES
from cudal2.space.sm90_ws import geometry as geo
from cudal2.space.sm90_ws.tiling import TILING, cluster_ctas, clusters, ctas, wave

#: Depth of a K tile, and K tiles of a tile, from which its parts are long enough to be worth adding up.
STREAM_K_DEPTH, STREAM_K_TILES = 64, 16
#: Share of the last wave up to which those left over have no more than three tiles each to help with.
STREAM_K_WAVE = 0.75


def _splits_k(c: Choice, problem: Problem, arch: Arch) -> Any:
    able = np.equal(c.schedule, "coop") & np.equal(c.epilogue, "direct") & np.equal(c.persistent, False)
    return np.equal(c.split_k, 1) | able


def _splits_k_reason(c: Sm90WsConfig, problem: Problem, arch: Arch) -> str:
    return (
        f"split-K {c.split_k} needs the coop schedule, the direct epilogue and no persistence; "
        f"this is {c.schedule}, {c.epilogue}, persistent {c.persistent}"
    )


def _meets_in_workspace(c: Choice, problem: Problem, arch: Arch) -> Any:
    return np.equal(c.split_via, "cluster") | (c.split_k > 1)


def _partial_bytes(c: Choice, problem: Problem, arch: Arch) -> Any:
    slices = np.where(np.equal(c.split_via, "workspace"), ctas(c, problem), 0)
    tiles, full = _last_wave(c, problem, arch)
    parts = np.where(c.stream_k, tiles * geo.stream_k_parts(tiles, full) * cluster_ctas(c), 0)
    return 4.0 * c.tile_m * c.tile_n * (slices + parts)


def _last_wave(c: Choice, problem: Problem, arch: Arch) -> tuple[Any, Any]:
    """Clusters of a last wave that is not full, and of a full one."""
    full = wave(c, arch)
    return clusters(c, problem) % full, full


def _workspace_fits(c: Choice, problem: Problem, arch: Arch) -> Any:
    return _partial_bytes(c, problem, arch) <= WORKSPACE_BYTES


def _workspace_fits_reason(c: Sm90WsConfig, problem: Problem, arch: Arch) -> str:
    held = int(_partial_bytes(c, problem, arch))
    other = "smaller tiles" if c.stream_k else "fewer slices, or by cluster"
    return f"{held} bytes of partial sums exceed the {WORKSPACE_BYTES} that L2 keeps: {other}"


def _streams(c: Choice, problem: Problem, arch: Arch) -> Any:
    alone = np.equal(c.persistent, True) & np.equal(c.split_k, 1) & np.equal(c.resident_a, 0)
    return np.equal(c.stream_k, False) | (alone & (c.tile_k >= STREAM_K_DEPTH))


def _last_wave_not_full(c: Choice, problem: Problem, arch: Arch) -> Any:
    tiles, full = _last_wave(c, problem, arch)
    room = (tiles > 0) & (tiles <= STREAM_K_WAVE * full)
    return np.equal(c.stream_k, False) | (room & (share_k_tiles(c, problem) >= STREAM_K_TILES))


def _last_wave_reason(c: Sm90WsConfig, problem: Problem, arch: Arch) -> str:
    tiles, full = (int(count) for count in _last_wave(c, problem, arch))
    k_tiles, most = int(share_k_tiles(c, problem)), int(STREAM_K_WAVE * full)
    amiss = []
    if tiles == 0:
        amiss.append(f"the last wave is a full one of {full} clusters and leaves no CTA idle")
    elif tiles > most:
        amiss.append(f"the last wave has {tiles} of {full} clusters, more than the {most} ({STREAM_K_WAVE:.0%}) it may")
    if k_tiles < STREAM_K_TILES:
        amiss.append(f"a tile has {k_tiles} K tiles, fewer than the {STREAM_K_TILES} worth adding up from parts")
    return f"no stream-K: {'; and '.join(amiss)}"


#: Of one configuration, whatever the size.
SPLITTING: tuple[Rule, ...] = (
    Rule(
        "split_k",
        ("schedule", "split_k", "epilogue", "persistent"),
        _splits_k,
        _splits_k_reason,
    ),
    Rule(
        "split_via",
        ("split_k", "split_via"),
        _meets_in_workspace,
        lambda c, p, a: "without split-K there are no sums to meet in a workspace",
    ),
    Rule(
        "stream_k",
        ("tile_k", "split_k", "stream_k", "resident_a", "persistent"),
        _streams,
        lambda c, p, a: (
            f"stream-K needs persistence, K tiles of {STREAM_K_DEPTH} or more, no other split of K and no resident A; "
            f"this is persistent {c.persistent}, tile_k {c.tile_k}, split_k {c.split_k}, resident_a {c.resident_a}"
        ),
    ),
)

#: By size.
SPLITTING_BY_SIZE: tuple[Rule, ...] = (
    Rule(
        "workspace_size",
        (*TILING, "split_k", "split_via", "stream_k", "ctas_per_sm"),
        _workspace_fits,
        _workspace_fits_reason,
        by_size=True,
    ),
    Rule(
        "stream_k_wave",
        (*TILING, "tile_k", "split_k", "split_via", "stream_k", "ctas_per_sm"),
        _last_wave_not_full,
        _last_wave_reason,
        by_size=True,
    ),
)
