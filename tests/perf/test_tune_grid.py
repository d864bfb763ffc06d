"""Which settings are tried on which machine."""

from __future__ import annotations

import pytest

from perf.grid import Grid, candidates, current
from tooling.config.knobs import Knobs


def ids(base: Knobs, cores: int, **grid: tuple[int, ...]) -> list[str]:
    return [c.id for c in candidates(base, Grid(**grid), cores)]


def test_two_cores_default_grid() -> None:
    assert ids(Knobs(), 2) == [
        "i1-t1-b8-d0",
        "i1-t1-b8-d2000",
        "i1-t2-b8-d0",
        "i1-t2-b8-d2000",
        "i2-t1-b8-d0",
        "i2-t1-b8-d2000",
        "i2-t0-b8-d2000",  # the split in effect oversubscribes, so it is tried once, with the other delay
    ]


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 8, 16, 64])
def test_automatic_splits_use_the_cores_and_do_not_oversubscribe(cores: int) -> None:
    found = candidates(Knobs(), Grid(), cores)
    assert 3 <= len(found) <= 12
    for c in found:
        used = (c.knobs.instance_count or 2) * (c.knobs.intra_op_threads or cores)
        assert cores / 2 <= used <= cores or c.changed == ("max_queue_delay_us",)


def test_nothing_equal_to_the_default_in_effect_is_tried() -> None:
    explicit = Knobs(instance_count=2, intra_op_threads=0)
    assert {c.id for c in candidates(explicit, Grid(), 2)} == {c.id for c in candidates(Knobs(), Grid(), 2)}
    for base in (Knobs(), Knobs(intra_op_threads=0), Knobs(intra_op_threads=-1)):
        assert ids(base, 2, instances=(2,), threads=(0,), delays_us=(0,)) == []


def test_threads_left_to_onnx_runtime_are_another_setting_than_as_many_asked_for() -> None:
    (asked,) = candidates(Knobs(instance_count=1), Grid(instances=(1,), threads=(2,), delays_us=(0,)), 2)
    assert (asked.id, asked.changed) == ("i1-t2-b8-d0", ("intra_op_threads",))
    (left,) = candidates(Knobs(intra_op_threads=2), Grid(instances=(2,), threads=(0,), delays_us=(0,)), 2)
    assert (left.id, left.knobs.intra_op_threads) == ("i2-t0-b8-d0", None)


def test_only_what_differs_is_changed() -> None:
    (found,) = candidates(Knobs(), Grid(instances=(2,), threads=(1,), delays_us=(0,)), 2)
    assert found.changed == ("intra_op_threads",)
    assert found.knobs == Knobs(intra_op_threads=1)
    assert found.label == "default instances × 1 thread, batch ≤ 8, no delay"


def test_asked_values_are_all_combined() -> None:
    found = ids(Knobs(), 2, instances=(1, 4), threads=(2,), delays_us=(0, 500), max_batch_sizes=(4, 8))
    assert len(found) == 8
    assert "i4-t2-b4-d500" in found


def test_own_delay_stays_among_the_values() -> None:
    found = candidates(Knobs(max_queue_delay_us=5_000), Grid(), 2)
    assert {c.knobs.max_queue_delay_us for c in found} == {0, 2_000, 5_000}


def test_without_batching_no_delay_is_tried() -> None:
    found = candidates(Knobs(max_batch_size=0, dynamic_batching=False), Grid(), 2)
    assert [c.id for c in found] == ["i1-t1-b0-d0", "i1-t2-b0-d0", "i2-t1-b0-d0"]
    assert not any(c.knobs.dynamic_batching for c in found)


def test_merging_is_tried_where_it_is_off() -> None:
    (found,) = candidates(Knobs(dynamic_batching=False), Grid(instances=(2,), threads=(0,), delays_us=(0,)), 2)
    assert found.changed == ("dynamic_batching",)


def test_preferred_sizes_above_a_smaller_batch_are_left_out() -> None:
    base = Knobs(preferred_batch_size=(4, 8))
    (found,) = candidates(base, Grid((2,), (2,), (0,), (4,)), 2)
    assert found.knobs.preferred_batch_size == (4,)


def test_current_changes_nothing() -> None:
    assert current(Knobs()).changed == ()
