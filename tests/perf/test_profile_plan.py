"""What `tritune profile` measures within a budget: the arithmetic, without a server."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from perf.curve import Setting
from perf.profile_plan import RUN_S, Budget, Costs, Load, Points, levels, richest
from tooling.errors import UsageError

POINTS = Points((1, 5, 8), (6, 20, 61), (1, 8), (6, 61))
EVERYTHING = Points((1, 5, 8), (6, 20, 61), (1, 5, 8), (6, 20, 61))


def lone(load: Load) -> bool:
    return load.clients == 1


def test_what_matters_least_is_left_out_first() -> None:
    found = levels(POINTS, 2)
    assert [level.left_out[-1:] for level in found] == [
        (),
        ("5 rows",),
        ("length 20",),
        ("requests of two lengths in turn",),
        ("requests to be merged",),
        ("whole batches that wait",),
        ("busy instances beyond one point",),
    ]
    assert all(len(less.loads) < len(more.loads) for more, less in pairwise(found))
    assert found[-1].left_out == tuple(level.left_out[-1] for level in found[1:])


def test_the_least_is_the_corners_and_one_point_of_busy_instances() -> None:
    assert levels(POINTS, 3)[-1].loads == (
        Load(1, 1, (6,)),
        Load(1, 8, (6,)),
        Load(1, 1, (61,)),
        Load(1, 8, (61,)),
        Load(3, 1, (6,)),
    )
    assert levels(Points((1,), (1,), (1,), (1,)), 1)[-1].loads == (Load(1, 1, (1,)),)


def test_every_level_has_the_whole_grid_and_what_its_figures_stand_on() -> None:
    for instances in (1, 2, 5):
        for level in levels(POINTS, instances):
            alone = {(load.rows, load.lengths[0]) for load in level.loads if lone(load)}
            rows, lengths = ({point[axis] for point in alone} for axis in (0, 1))
            assert alone == {(r, n) for r in rows for n in lengths}
            assert all((load.rows, length) in alone for load in level.loads for length in load.lengths)
            crowds = [load for load in level.loads if load.clients > instances and len(load.lengths) == 1]
            assert not crowds or max(load.rows for load in crowds) == 8  # merging is judged by whole batches
            assert len(set(level.loads)) == len(level.loads)
            assert instances == 1 or any(load.clients == instances for load in level.loads)


def test_what_was_asked_for_is_never_left_out() -> None:
    for level in levels(EVERYTHING, 2):
        assert {(load.rows, load.lengths[0]) for load in level.loads if lone(load)} == {
            (r, n) for r in (1, 5, 8) for n in (6, 20, 61)
        }


def test_a_model_without_batches_has_no_crowd_to_be_merged() -> None:
    assert [level.left_out for level in levels(Points((1,), (1,), (1,), (1,)), 1)] == [
        (),
        ("whole batches that wait",),
    ]


def test_costs_are_as_measured_or_as_others_were() -> None:
    costs = Costs(Setting(2, 2), cores=2, load_s=1.0)
    assert costs.run(Load(1, 8, (61,))) == RUN_S  # nothing is known
    costs.execution_s = {(1, 10): 0.1, (8, 10): 0.45}
    assert costs.warm(Load(1, 1, (10,))) == pytest.approx(0.1)
    assert costs.warm(Load(1, 1, (5,))) == pytest.approx(0.1)  # never less than the shortest
    assert costs.warm(Load(1, 1, (45,))) == pytest.approx(0.275)  # between the two
    assert costs.warm(Load(1, 8, (20,))) == pytest.approx(0.9)  # in proportion beyond
    assert costs.warm(Load(2, 1, (10,))) == pytest.approx(0.2)  # two instances share the cores
    assert costs.warm(Load(32, 1, (10,))) == pytest.approx(3.2)
    assert costs.warm(Load(5, 1, (5, 10))) == pytest.approx(0.6)
    assert costs.run(Load(2, 1, (10,))) == pytest.approx(0.8)
    assert costs.run(Load(1, 1, (5,))) == pytest.approx(0.4)
    costs.warm_s[Load(1, 1, (10,))], costs.run_s[Load(1, 1, (10,))] = 0.3, 0.5
    assert costs.plan([Load(1, 1, (10,)), Load(2, 1, (10,))], 3) == pytest.approx(1.0 + 0.3 + 1.5 + 0.2 + 2.4)
    assert costs.rest([Load(1, 1, (10,)), Load(2, 1, (10,))], 2, {Load(1, 1, (10,))}) == pytest.approx(0.5 + 0.2 + 1.6)


def test_the_richest_level_that_fits_is_taken() -> None:
    found = levels(POINTS, 2)
    costs = Costs(Setting(2, 1), cores=2, execution_s={(1, 6): 0.01, (8, 61): 0.3})
    need = [costs.rest(level.loads, 2, ()) for level in found]
    assert need == sorted(need, reverse=True)
    for level, seconds in zip(found, need, strict=True):
        assert richest(found, costs, left_s=seconds, rounds=2, done=()) == level
    assert richest(found, costs, left_s=-1, rounds=2, done=()) == found[-1]
    assert richest(found, costs, left_s=math.inf, rounds=2, done=()) == found[0]


def test_a_budget_that_is_too_small_is_told_with_what_it_takes() -> None:
    least = [Load(1, 1, (6,)), Load(1, 8, (6,))]
    costs = Costs(Setting(1, 1), cores=2, load_s=1.0, warm_s={least[0]: 0.1}, run_s={least[0]: 0.2})
    lenient, strict = (Budget(20, settings=4, rounds=2, model="m", strict=strict) for strict in (False, True))
    assert lenient.look(costs, least) is None  # one of two is known
    costs.warm_s[least[1]], costs.run_s[least[1]] = 1.5, 2.0  # 4 × (1 + 0.1 + 2 × 0.2 + 1.5 + 2 × 2) = 28
    assert lenient.look(costs, least) == (
        "the least that makes a curve takes about 34s in place of 20s: 4 settings, 2 points, 2 runs of each"
    )
    assert lenient.look(costs, least) is None
    with pytest.raises(UsageError) as caught:
        strict.look(costs, least)
    problem = caught.value.problems[0]
    assert (problem.got, problem.expected) == ("20s", "about 34s for 4 settings, 2 points, 2 runs of each")
    assert problem.hint is not None
    assert "--budget 34s" in problem.hint
    assert Budget(28, settings=4, rounds=2, model="m", strict=True).look(costs, least) is None


def test_a_budget_that_is_over_is_told_before_everything_has_run() -> None:
    least = [Load(1, 1, (10,)), Load(1, 1, (1000,))]
    costs = Costs(Setting(1, 1), 1, warm_s={least[0]: 1.0}, run_s={least[0]: 4.0}, execution_s={(1, 10): 1.0})
    with pytest.raises(UsageError, match="about 1091s for 1 setting, 2 points"):  # 1.2 × (1 + 8 + 100 + 2 × 400)
        Budget(0, settings=1, rounds=2, model="m", strict=True).look(costs, least)
