"""Buffers: layout, poison, red zones, how many sets a rotation needs. CPU tensors stand in for the device's."""

from __future__ import annotations

import pytest
import torch

from cudal2.bench.inputs import BufferSets, most_launches, rotation_count, set_bytes
from cudal2.problem import Problem

L2 = 60 * 2**20
ODD = Problem(5, 7, 24)


def test_shapes_follow_the_layout_and_pointers_the_data() -> None:
    for layout, shape in (("tn", (7, 24)), ("nn", (24, 7))):
        sets = BufferSets(Problem(5, 7, 24, layout=layout), 3, "cpu", guard_elements=100)  # type: ignore[arg-type]
        assert sets.b(2).shape == shape
        for index in range(3):
            assert sets.a(index).data_ptr() == sets.a_pointers[index]
            assert sets.b(index).data_ptr() == sets.b_pointers[index]
            assert sets.c(index).data_ptr() == sets.c_pointers[index]
            assert int(sets.c_pointers[index] - sets.c_pointers[0]) % 256 == 0


def test_data_is_normal_seeded_and_different_in_every_set() -> None:
    problem = Problem(64, 64, 256)
    sets, same, other = (BufferSets(problem, 2, "cpu", seed) for seed in (1, 1, 2))
    assert torch.equal(sets.a(1), same.a(1)) and torch.equal(sets.b(0), same.b(0))
    assert not torch.equal(sets.a(0), other.a(0)) and not torch.equal(sets.a(0), sets.a(1))
    values = sets.a(0).float()
    assert abs(float(values.mean())) < 0.05 and 0.95 < float(values.std()) < 1.05


def test_bf16_buffers_are_of_that_type_and_any_two_byte_memory_serves_them() -> None:
    problem = Problem(64, 64, 256, dtype="bf16")
    made = BufferSets(problem, 2, "cpu", 1)
    given = BufferSets(problem, 2, "cpu", 1, allocate=lambda shape: torch.empty(shape, dtype=torch.float16))
    for sets in (made, given):
        assert {matrix(0).dtype for matrix in (sets.a, sets.b, sets.c)} == {torch.bfloat16}
        assert 0.95 < float(sets.a(0).float().std()) < 1.05 and sets.unwritten(2) == 2
    assert torch.equal(made.a(1), given.a(1))


def test_poison_shows_what_was_not_written() -> None:
    sets = BufferSets(ODD, 3, "cpu")
    assert sets.unwritten(3) == 3
    sets.c(0).fill_(1.0)
    sets.c(1).fill_(1.0)
    sets.c(1)[4, 6] = torch.nan
    assert (sets.unwritten(1), sets.unwritten(3)) == (0, 2)
    sets.poison()
    assert sets.unwritten(3) == 3


@pytest.mark.parametrize(("offset", "side"), [(-1, "before"), (5 * 7, "after")])
def test_a_write_outside_c_breaks_a_red_zone(offset: int, side: str) -> None:
    sets = BufferSets(ODD, 2, "cpu", guard_elements=128)
    sets.c(0).fill_(1.0)
    assert sets.broken_red_zone() == ""
    row = sets.c(1)
    torch.as_strided(row, (1,), (1,), row.storage_offset() + offset).fill_(0.5)
    assert sets.broken_red_zone() == f"1 elements written {side} C"
    sets.poison()
    assert sets.broken_red_zone() == ""


def test_a_rotation_passes_three_l2_sizes_but_holds_no_set_that_is_never_launched() -> None:
    most = most_launches(2.0)
    tiny, middle, large = Problem(64, 64, 64), Problem(1024, 1024, 1024), Problem(8192, 8192, 8192)
    assert rotation_count(tiny, L2, 3.0, most) == most
    count = rotation_count(middle, L2, 3.0, most)
    assert (count - 1) * set_bytes(middle) >= 3 * L2 > (count - 2) * set_bytes(middle)
    assert rotation_count(large, L2, 3.0, most) == 2
    assert rotation_count(tiny, L2, 3.0, 1) == 2
