"""Every legal configuration, in the order of the space: the truth the other strategies are held against."""

from __future__ import annotations

import numpy as np

from cudal2.search.base import SearchSession

#: Configurations handed to the runner at once, so that it can build them in parallel.
BATCH = 256


def exhaustive_search(session: SearchSession, rng: np.random.Generator) -> None:
    """Measures everything legal; ``rng`` is not used."""
    session.measure_in_order(session.candidates, BATCH)
