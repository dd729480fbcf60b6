"""Uniform draws without replacement from the legal configurations: the yardstick below which nothing is a search."""

from __future__ import annotations

import numpy as np

from cudal2.search.base import SearchSession

#: Configurations handed to the runner at once, so that it can build them in parallel.
BATCH = 64


def random_search(session: SearchSession, rng: np.random.Generator) -> None:
    """Measures legal configurations in a random order."""
    session.measure_in_order(rng.permutation(session.candidates), BATCH)
