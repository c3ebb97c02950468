from __future__ import annotations

import itertools
import random

import pytest

from lingvo_pipe.pipeline.schedules.by_rule import gpipe
from lingvo_pipe.pipeline.schedules.offload import offloaded
from lingvo_pipe.pipeline.schedules.recompute import recomputed
from lingvo_pipe.pipeline.schedules.schedule import COPIES, Kind, Op, Schedule
from lingvo_pipe.pipeline.simulation.costs import Costs, StageCosts
from lingvo_pipe.pipeline.simulation.simulate import simulate
from tests.pipeline.simulation.random_schedules import random_costs, random_schedule
from tests.support.errors import fails

FORWARD, BACKWARD, (OFFLOAD, LOAD) = Kind.FORWARD, Kind.BACKWARD, COPIES


@pytest.mark.parametrize("seed", range(60))
def test_each_operation_ends_with_the_longest_path_to_it(seed: int) -> None:
    rng = random.Random(seed)
    schedule = random_schedule(rng, offloads=seed % 2 == 1)
    costs = random_costs(rng, schedule.num_stages)
    timeline = simulate(schedule, costs)
    assert timeline.schedule == schedule
    ends = {timed.op: timed.end for _, timed in timeline.ops()}
    assert ends == _longest_paths(schedule, costs)
    for column in timeline.columns:
        free = 0.0
        for timed in column:
            assert timed.wait_start == free + costs.overhead
            assert timed.start >= timed.wait_start
            assert timed.seconds == costs.seconds(schedule, timed.op)
            free = timed.end


# An operation, or the copy that it stands for.
_Node = Op | tuple[str, Op]


def _longest_paths(schedule: Schedule, costs: Costs) -> dict[Op, float]:
    """Returns each operation's end, by relaxing every edge until nothing changes."""
    owners = schedule.device_of_stage()
    edges: list[tuple[_Node, _Node, float]] = [
        (need, op, costs.send_seconds(need) * (owners[need.stage] != owners[op.stage]))
        for _, op in schedule.ops()
        for need in schedule.dependencies(op)
    ]
    for column in schedule.columns:
        edges += [(a, b, costs.overhead) for a, b in itertools.pairwise(column)]
    own: dict[_Node, float] = {
        op: costs.seconds(schedule, op) for _, op in schedule.ops()
    }
    for column in schedule.columns:
        lanes = [
            [op._replace(kind=OFFLOAD) for op in column if op.kind is FORWARD],
            [op for op in column if op.kind is LOAD],
        ]
        for lane in lanes:
            copies = [op for op in lane if op in schedule]
            for op in copies:
                own["copy", op] = costs.copy_seconds(op)
                cause = op._replace(kind=FORWARD) if op.kind is OFFLOAD else op
                waiting = op if op.kind is OFFLOAD else op._replace(kind=BACKWARD)
                edges += [(cause, ("copy", op), 0.0), (("copy", op), waiting, 0.0)]
            edges += [
                (("copy", a), ("copy", b), 0.0) for a, b in itertools.pairwise(copies)
            ]
    firsts = {column[0] for column in schedule.columns if column}
    ends = {node: own[node] + costs.overhead * (node in firsts) for node in own}
    changed = True
    while changed:
        changed = False
        for before, after, seconds in edges:
            end = ends[before] + seconds + own[after]
            if end > ends[after]:
                ends[after], changed = end, True
    return {op: end for op, end in ends.items() if isinstance(op, Op)}


@pytest.mark.parametrize("num_stages", [1, 3])
@pytest.mark.parametrize("recompute", ["never", "always"])
def test_a_copy_shorter_than_each_operation_costs_nothing(
    num_stages: int, recompute: str
) -> None:
    plain = recomputed(gpipe(num_stages, 9), recompute)
    schedule = offloaded(plain)

    def step_seconds(schedule: Schedule, seconds: float) -> float:
        stage = StageCosts(1.0, 2.0, offload=seconds, load=seconds)
        return simulate(schedule, Costs((stage,) * num_stages)).step_seconds

    before = step_seconds(plain, 0.0)
    assert step_seconds(schedule, 1.0) == before
    assert step_seconds(schedule, 4.0) > before


def test_the_copies_of_a_device_follow_one_another_in_each_direction() -> None:
    schedule = offloaded(gpipe(2, 9))
    stage = StageCosts(1.0, 2.0, offload=1.5, load=0.5)
    timeline = simulate(schedule, Costs((stage,) * 2))
    for copies, column in zip(timeline.copies, timeline.columns, strict=True):
        ends = {timed.op: timed.end for timed in column}
        starts = {timed.op: timed.start for timed in column}
        for kind, seconds in ((OFFLOAD, 1.5), (LOAD, 0.5)):
            lane = [timed for timed in copies if timed.op.kind is kind]
            assert [timed.op for timed in lane] == [
                timed.op for timed in column if timed.op.kind is kind
            ]
            assert all(a.end <= b.start for a, b in itertools.pairwise(lane))
            assert {timed.seconds for timed in lane} == {seconds}
            for op, begin, _, end in lane:
                if kind is OFFLOAD:
                    assert begin == ends[op._replace(kind=FORWARD)]
                    assert end <= starts[op]
                else:
                    assert begin == ends[op]
                    assert end <= starts[op._replace(kind=BACKWARD)]


@pytest.mark.parametrize("num_stages", [1, 2, 3, 8])
@pytest.mark.parametrize("num_micro_batches", [2, 5, 32])
def test_a_recomputation_hides_in_the_bubble(
    num_stages: int, num_micro_batches: int
) -> None:
    """A device that waits for its first gradient recomputes meanwhile."""
    schedule = recomputed(gpipe(num_stages, num_micro_batches), "always")
    seconds = simulate(
        schedule, Costs((StageCosts(1.0, 2.0),) * num_stages)
    ).step_seconds
    hidden = num_stages - 1
    assert seconds == 4 * (num_micro_batches + num_stages - 1) - hidden


# Tables 2 and 3 of the GPipe paper: normalised throughput of Transformers, M = 32.
@pytest.mark.parametrize(
    ("num_stages", "published", "of_stages", "of_micro_batches"),
    [(2, 1.8, 2, 1), (4, 3.4, 2, 1), (8, 6.3, 2, 1), (4, 1.8, 2, 32), (8, 3.3, 2, 32)],
)
def test_published_throughput_is_just_below_the_prediction(
    num_stages: int, published: float, of_stages: int, of_micro_batches: int
) -> None:
    predicted = _throughput(num_stages, 32) / _throughput(of_stages, of_micro_batches)
    assert 0.92 < published / predicted < 0.98


def _throughput(num_stages: int, num_micro_batches: int) -> float:
    """Returns the throughput of one model and mini-batch, cut into equal parts."""
    share = 1 / (num_stages * num_micro_batches)
    costs = Costs((StageCosts(1 * share, 2 * share),) * num_stages)
    return 1 / simulate(gpipe(num_stages, num_micro_batches), costs).step_seconds


def test_published_throughput_of_uneven_stages() -> None:
    """AmoebaNet-D (18, 256), table 2: 3.48 against 1.21 with an optimal partition."""

    def step_seconds(num_stages: int, total_over_slowest: float) -> float:
        slowest = 1 / total_over_slowest
        others = (1 - slowest) / (num_stages - 1)
        stages = [StageCosts(slowest, 2 * slowest)]
        stages += [StageCosts(others, 2 * others)] * (num_stages - 1)
        return simulate(gpipe(num_stages, 32), Costs(tuple(stages))).step_seconds

    predicted = step_seconds(2, 1.97) / step_seconds(8, 6.70)
    assert predicted == pytest.approx(3.48 / 1.21, rel=0.05)


def test_what_cannot_be_run_is_refused() -> None:
    backward_first = Schedule(
        1, 1, ((Op(Kind.BACKWARD, 0, 0), Op(Kind.FORWARD, 0, 0)),)
    )
    with fails(path="schedule"):
        simulate(backward_first, Costs((StageCosts(1.0),) * 1))


def test_costs_of_other_stages_are_refused() -> None:
    with fails(path="costs", got=2):
        simulate(gpipe(3, 2), Costs((StageCosts(1.0, 2.0),) * 2))
