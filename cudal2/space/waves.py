"""How many waves a launch takes: whole ones, or with stream-K what the last one takes when it is shared out."""

from __future__ import annotations

from typing import Any

import numpy as np

from cudal2.space.rule import ceil_div
from cudal2.space.sm90_ws.geometry import stream_k_parts


def waves_of(tiles: Any, wave: Any, stream_k: Any) -> Any:
    """Waves, in units of a tile's time; elementwise.

    Args:
        tiles: To compute, slices of K counted.
        wave: Of them that run at once.
        stream_k: Whether CTAs share out the last wave along K, where it is not the only one.
    """
    shared_out = tiles // wave + _last_wave(tiles % wave, wave)
    return np.where(stream_k & (tiles > wave), shared_out, ceil_div(tiles, wave))


def _last_wave(tiles: Any, wave: Any) -> Any:
    """Share of a tile's K that the busiest cluster has: the last parts, which those left take in turn, are shorter."""
    parts = stream_k_parts(tiles, wave)
    rounds = ceil_div(tiles, np.maximum(1, wave - (parts - 1) * tiles))
    return rounds / (rounds * (parts - 1) + 1)
