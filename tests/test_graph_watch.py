"""What says that a captured graph is gone: the driver's part is a thread that calls the destructor it was given."""

import ctypes
import threading
from types import SimpleNamespace

import pytest

from cudal2.launch import driver
from cudal2.launch.driver import GraphWatch, LaunchError

GRAPH, OBJECT = 64, 128


@pytest.fixture
def objects(monkeypatch):
    """A driver that keeps user objects: ``made``, ``owned`` by graphs, ``released`` by the caller; ``code`` refuses."""
    real = driver.cuda
    found = SimpleNamespace(made=[], owned=[], released=[], code=0)

    def create(pointer, destroy, count, flags):
        found.made.append((pointer, int(destroy), count, int(flags)))
        return 0, OBJECT

    def retain(graph, made, count, flags):
        found.owned.append((graph, made, count, int(flags)))
        return (found.code,)

    fake = {
        name: getattr(real, name) for name in ("CUhostFn", "CUuserObject_flags", "CUuserObjectRetain_flags", "CUresult")
    }
    fake["cuStreamGetCaptureInfo"] = lambda stream: (0, 1, 5, GRAPH, [], [], 0)
    fake["cuUserObjectCreate"], fake["cuGraphRetainUserObject"] = create, retain
    fake["cuUserObjectRelease"] = lambda made, count: found.released.append((made, count)) or (0,)
    monkeypatch.setattr(driver, "cuda", SimpleNamespace(**fake))
    return found


def destroyed(objects):
    """What the driver does when the last reference is gone: calls the destructor, on a thread that Python knows not."""
    pointer, destroy, _, _ = objects.made[-1]
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(destroy)(pointer)


def test_the_graph_owns_the_only_reference_and_its_end_is_seen_once_and_for_good(objects):
    watch = GraphWatch(7)
    assert [made[2:] for made in objects.made] == [(1, 1)] and objects.owned == [(GRAPH, OBJECT, 1, 1)]
    assert not objects.released and not watch.over() and not watch.over()
    thread = threading.Thread(target=destroyed, args=(objects,))
    thread.start()
    thread.join()
    assert watch.over() and watch.over()


def test_watches_do_not_mix_and_a_forgotten_one_may_still_be_told(objects):
    first, second = GraphWatch(7), GraphWatch(7)
    destroyed(objects)
    assert second.over() and not first.over()
    third = GraphWatch(7)
    del third
    destroyed(objects)


def test_a_graph_that_takes_no_object_is_not_watched_and_the_object_is_given_back(objects):
    objects.code = 1
    with pytest.raises(LaunchError, match="cuGraphRetainUserObject: CUDA_ERROR_INVALID_VALUE"):
        GraphWatch(7)
    assert objects.released == [(OBJECT, 1)]
