"""A recording dressed as a live runner, for tests of what a live run asks of its GPU; and what a runner allows."""

import numpy as np


class LiveRunner:
    """A recording that claims to be a GPU, and counts what it is asked."""

    nondeterministic = True

    def __init__(self, runner):
        self.inner, self.asked = runner, []
        self.space, self.problems = runner.space, runner.problems
        self.allowed, self.reference_us = runner.allowed, runner.reference_us

    def run(self, problem, configs):
        self.asked += [(problem, config) for config in configs]
        return self.inner.run(problem, configs)


def legal_actions(runner, problem):
    """One row of value indices for each configuration that may be asked for."""
    return np.stack(np.unravel_index(runner.allowed(problem), runner.space.dims), axis=-1)


def first_illegal(runner, problem):
    """The lowest flat index that may not be asked for."""
    return int(np.setdiff1d(np.arange(runner.space.total), runner.allowed(problem))[0])
