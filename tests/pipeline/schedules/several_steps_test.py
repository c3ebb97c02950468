"""Consecutive steps: each stage continues when it can, and not too far ahead."""

from __future__ import annotations

import itertools

import pytest

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.pipeline.schedules.by_rule import gpipe, local
from lingvo_pipe.pipeline.schedules.check import check
from lingvo_pipe.pipeline.schedules.schedule import MAX_STEPS_AHEAD, Kind, Op, Schedule
from lingvo_pipe.pipeline.schedules.several_steps import several_steps
from lingvo_pipe.pipeline.schedules.slots import assign_slots
from lingvo_pipe.pipeline.schedules.table import make_tables
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts, fitted_costs
from lingvo_pipe.pipeline.simulation.simulate import simulate
from tests.pipeline.schedules.every_schedule import every_schedule

# More devices only make columns longer.
TRAINING = {n: s for n, s in every_schedule() if s.has_backward and s.num_devices < 7}


@pytest.mark.parametrize("num_steps", [1, 3])
def test_every_schedule_can_be_repeated(num_steps: int) -> None:
    for name, step in TRAINING.items():
        schedule = several_steps(step, num_steps)
        check(schedule)
        assert schedule.num_steps == num_steps, name
        assert schedule.micro_batches_per_step == step.num_micro_batches
        for column, once in zip(schedule.columns, step.columns, strict=True):
            others = [op for op in column if op.kind is not Kind.UPDATE]
            assert others == [
                op._replace(micro_batch=op.micro_batch + n * step.num_micro_batches)
                for n in range(num_steps)
                for op in once
            ]


def test_structure_and_stashes_do_not_depend_on_the_number_of_steps() -> None:
    for name, step in TRAINING.items():
        few, many = several_steps(step, 1), several_steps(step, 2)
        structures = [
            [table.structure for table in make_tables(each)] for each in (few, many)
        ]
        assert structures[0] == structures[1], name
        assert assign_slots(few).num_slots == assign_slots(many).num_slots, name


def _blocks(num_stages: int, num_micro_batches: int, num_steps: int) -> Schedule:
    step = local(num_stages, num_micro_batches, range(num_stages - 1))
    return several_steps(step, num_steps)


@pytest.mark.parametrize("num_stages", [1, 2, 5])
@pytest.mark.parametrize("num_micro_batches", [1, 4])
def test_blocks_have_no_bubble_after_the_first_step(
    num_stages: int, num_micro_batches: int
) -> None:
    schedule = _blocks(num_stages, num_micro_batches, 20)
    costs = Costs((StageCosts(forward=1.0, backward=2.0, update=0.5),) * num_stages)
    timeline = simulate(schedule, costs)
    assert timeline.schedule == schedule
    work = 20 * (num_micro_batches * 3.0 + 0.5)
    assert timeline.step_seconds == (num_stages - 1) * 1.0 + work
    assert fitted_costs(timeline) == costs


def test_gpipe_fills_and_drains_in_each_step() -> None:
    costs = Costs((StageCosts(forward=1.0, backward=2.0),) * 4)
    once = simulate(gpipe(4, 8), costs).step_seconds
    many = simulate(several_steps(gpipe(4, 8), 10), costs).step_seconds
    assert many == 10 * once


def _starts(schedule: Schedule, seconds: list[float]) -> dict[Op, tuple[float, float]]:
    """Returns each operation's start and end; its stage gives its seconds."""
    costs = Costs(tuple(StageCosts(forward=s, backward=s, update=s) for s in seconds))
    timed = [each for _, each in simulate(schedule, costs).ops()]
    return {each.op: (each.start, each.end) for each in timed}


def test_a_fast_block_waits_for_a_slow_one_and_not_the_other_way() -> None:
    num_steps = 12
    times = _starts(_blocks(2, 1, num_steps), [1.0, 5.0])
    for n in range(MAX_STEPS_AHEAD + 1, num_steps):
        credit = times[Op(Kind.UPDATE, n - MAX_STEPS_AHEAD - 1, 1)][1]
        assert times[Op(Kind.FORWARD, n, 0)][0] >= credit
    # It is as far ahead as allowed.
    started, updated = Op(Kind.FORWARD, 9, 0), Op(Kind.UPDATE, 8 - MAX_STEPS_AHEAD, 1)
    assert times[started][0] == times[updated][1]
    times = _starts(_blocks(2, 1, num_steps), [5.0, 1.0])
    for before, after in itertools.pairwise(range(num_steps)):
        end = times[Op(Kind.UPDATE, before, 0)][1]
        assert times[Op(Kind.FORWARD, after, 0)][0] == end


def test_an_update_out_of_place_is_refused() -> None:
    (column,) = several_steps(gpipe(1, 2), 2).columns
    update = Op(Kind.UPDATE, 1, 0)
    rest = [op for op in column if op != update]
    late = [op for op in rest if op.micro_batch > 1]
    late[-1:] = [update, late[-1]]
    begin = [op for op in rest if op.micro_batch < 2]
    for columns, named in [
        ((*begin, *late), rf"device 0\b.*{Op(Kind.FORWARD, 2, 0)}.*{update}"),
        ((update, *rest), rf"device 0\b.*{update}.*{Op(Kind.BACKWARD, 1, 0)}"),
        ((*column, update), rf"{update}\D*\b2\b"),
    ]:
        with pytest.raises(UserValueError, match=named):
            check(Schedule(1, 4, (columns,)))
