"""Workspaces that go from one kernel to the next, with memory that is only numbers."""

from types import SimpleNamespace

import pytest

from cudal2.launch import workspace
from cudal2.launch.driver import LaunchError
from cudal2.launch.workspace import Workspaces

STREAM = 7
MIB = 2**20


@pytest.fixture
def driver(monkeypatch):
    """What was made, cleared and given back."""
    found = SimpleNamespace(made=[], cleared=[], freed=[], code=0)

    class Memory:
        def __init__(self, size_bytes):
            self.size_bytes, self.address = size_bytes, 1000 * (len(found.made) + 1)
            found.made.append(size_bytes)

        def __del__(self):
            found.freed.append(self.size_bytes)

    def clear(address, value, size_bytes, stream):
        assert (value, stream) == (0, STREAM)
        found.cleared.append((address, size_bytes))
        return (found.code,)

    monkeypatch.setattr(workspace, "ZeroedBuffer", Memory)
    monkeypatch.setattr(workspace, "cuda", SimpleNamespace(cuMemsetD8Async=clear))
    return found


def test_a_workspace_given_back_is_cleared_on_the_stream_and_lent_again_without_the_driver_making_or_freeing(driver):
    workspaces = Workspaces(STREAM)
    first, second = workspaces.take(3 * MIB), workspaces.take(100)
    assert driver.made == [4 * MIB, 2 * MIB] and first.address != second.address and not driver.cleared
    places = {first.address, second.address}
    assert not workspaces.spare(1)
    del first, second
    assert not driver.freed
    assert [workspaces.spare(size) for size in (1, 2 * MIB, 3 * MIB, 5 * MIB)] == [2, 2, 1, 0]
    again = workspaces.take(2 * MIB)
    assert (again.address, 2 * MIB) in driver.cleared, "what the kernel before has left is gone"
    assert again.address == 2000, "the smallest that is large enough"
    larger = workspaces.take(MIB)
    assert {again.address, larger.address} == places and len(driver.made) == 2
    assert workspaces.take(MIB).address not in places, "nobody has what another still has"


def test_what_is_too_small_is_not_lent_and_not_kept_for_ever(driver):
    workspaces = Workspaces(STREAM)
    for size in range(1, 20):
        taken = [workspaces.take(2 * size * MIB) for _ in range(2)]
        assert not driver.cleared, "each is larger than all before"
        del taken
    assert len(driver.made) - len(driver.freed) <= 7 and max(driver.freed) <= 32 * MIB


def test_a_workspace_may_come_back_while_another_is_made(driver):
    """One that is in a cycle does when Python looks for cycles, which may be at any time."""
    workspaces = Workspaces(STREAM)
    taken = [workspaces.take(2 * size * MIB) for size in range(1, 9)]
    late = [taken.pop()]
    del taken
    workspaces._idle[2] = SizeThatCollects(workspaces._idle[2], late)
    assert workspaces.take(64 * MIB).address == 9000
    assert not late and len(workspaces._idle) == 5 + 1 + 1


class SizeThatCollects:
    """Memory; who asks for its size the second time, to order it, meets a collection of cycles."""

    def __init__(self, memory, late):
        self.memory, self.address, self.late, self.asked = memory, memory.address, late, 0

    @property
    def size_bytes(self):
        self.asked += 1
        if self.asked == 2:
            self.late.clear()
        return self.memory.size_bytes


def test_memory_that_cannot_be_cleared_is_not_lent(driver):
    workspaces = Workspaces(STREAM)
    workspaces.take(100)
    driver.code = 700
    with pytest.raises(LaunchError, match="cuMemsetD8Async: CUDA_ERROR_ILLEGAL_ADDRESS"):
        workspaces.take(100)
