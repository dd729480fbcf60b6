"""A recording dressed as a live runner, for tests of what a live run asks of its GPU."""


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
