"""Training computes the same bytes for all stages and schedules.

The tests compare weights, slots and moving averages after two steps with one stage
that recomputes nothing, for the product of:

    models         transformer (dropout, Adam), amoebanet (batch norm, dropout,
                   momentum; cells pass on two outputs)
    devices        1, 2, 3, 4, 8; of amoebanet 2 and 4
    schedules      all by name but local, and files
    recomputation  always, except_last, never, some cells; but a file with
                   recomputation admits no policy
    replicas       1; 2 with two kinds of recomputation

For one replica also with offload, of all cells or of some, where it copies anything:
1F1B with all devices, the other schedules with some.

The fast suite takes each schedule with one kind of recomputation, and cases for other
numbers of devices. A case of bfloat16 is trained by `TrainStep`,
whose graph holds the update.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lingvo_pipe.pipeline.schedules.by_name import SCHEDULE_NAMES, make_schedule
from lingvo_pipe.pipeline.schedules.schedule import Kind
from lingvo_pipe.training.step.train_step import TrainStep
from tests.pipeline.small_tasks import TASKS
from tests.pipeline.training_by_schedules import (
    BATCH_SIZE,
    FILES,
    NUM_MICRO_BATCHES,
    NUM_STEPS,
    TWO_STAGES_PER_DEVICE,
    Trainings,
    task_params,
)
from tests.support.cases import exhaustive

MODELS = ["transformer", "amoebanet"]
NUMS_DEVICES = [1, 2, 3, 4, 8]
PLACEMENTS = [
    *((n, "transformer") for n in NUMS_DEVICES),
    *((n, "amoebanet") for n in (2, 4)),
]
SCHEDULES = [*(name for name in SCHEDULE_NAMES if name != "local"), "plain.csv"]
SOME_CELLS = [0, 2]
POLICIES = ["always", "except_last", "never"]
MAX_DEVICES = 8
ALL_SCHEDULES = [*SCHEDULES, "recomputing.csv"]
RECOMPUTED = [*POLICIES, SOME_CELLS, None]
WITH_REPLICAS = ["never", SOME_CELLS]
# Number of devices, model and number of replicas.
FAST_PLACEMENT = (2, "transformer", 1)
# With `never`, V-Min runs on the graph of the other V-shaped schedules.
FAST_POLICIES = {**dict(zip(SCHEDULES, itertools.cycle(POLICIES))), "v_min": "never"}
FURTHER = [
    ((4, "amoebanet", 1), "except_last", "1f1b"),
    ((3, "transformer", 1), None, "recomputing.csv"),
    ((2, "transformer", 2), "never", "interleaved"),
]


def _is_case(recompute: Any, schedule: str, **_: Any) -> bool:
    """Returns whether a pipeline allows these; None leaves recomputation to a file."""
    of_file = schedule == "recomputing.csv"
    return recompute in ([None, SOME_CELLS] if of_file else [*POLICIES, SOME_CELLS])


def _cases() -> Iterator[Any]:
    """Yields all cases, ordered by their stages."""
    fast = [
        (FAST_PLACEMENT, recompute, schedule)
        for schedule, recompute in FAST_POLICIES.items()
    ]
    placements = itertools.product(NUMS_DEVICES, MODELS, [1, 2])
    for recompute, placement, schedule in itertools.product(
        RECOMPUTED, placements, ALL_SCHEDULES
    ):
        case = placement, recompute, schedule
        *_, num_replicas = placement
        fits = placement[0] * num_replicas <= MAX_DEVICES
        if num_replicas == 2 and recompute not in WITH_REPLICAS:
            continue
        is_placed = placement[:2] in PLACEMENTS
        if fits and is_placed and _is_case(recompute, schedule):
            is_fast = case in fast or case in FURTHER
            yield pytest.param(*case) if is_fast else exhaustive(*case)


@pytest.fixture(scope="module")
def trainings() -> Trainings:
    return Trainings()


def _assert_same(found: dict[str, bytes], want: dict[str, bytes]) -> None:
    assert found.keys() == want.keys(), "paths know nothing of stages"
    assert [path for path in want if found[path] != want[path]] == []


@pytest.mark.parametrize(
    ("placement", "recompute", "schedule"), list(_cases()), ids=str
)
def test_training_leaves_the_bytes_of_one_stage(
    tmp_path: Path,
    trainings: Trainings,
    placement: tuple[int, str, int],
    recompute: Any,
    schedule: str,
) -> None:
    num_devices, model, num_replicas = placement
    name, p = task_params(
        tmp_path, model, num_devices, schedule, recompute, num_replicas=num_replicas
    )
    want = trainings.state_of_one_stage(name, num_batch_shards=num_replicas)
    _assert_same(trainings.state_after(name, p), want)


def _is_offloaded(num_devices: int, schedule: str, recompute: Any) -> bool:
    """Returns whether copies are added to a schedule."""
    per_device = 2 if schedule in TWO_STAGES_PER_DEVICE else 1
    sizes = num_devices, NUM_MICRO_BATCHES, per_device
    made = make_schedule(schedule, *sizes, recompute, offload="always")
    return Kind.OFFLOAD in made.kinds


# (recompute, offload): None recomputes the other cells.
AWAY: list[tuple[Any, Any]] = [
    ("never", "always"),
    (None, "always"),
    (None, [1, 3]),
    ([0, 2], [1]),
]
FAST_AWAY = [
    (4, "transformer", (None, [1, 3]), "1f1b"),
    (2, "amoebanet", ([0, 2], [1]), "zero_bubble"),
]


# Where all schedules are offloaded; elsewhere 1F1B is.
EVERY_SCHEDULE = [(2, "transformer"), (4, "transformer"), (2, "amoebanet")]


def _offload_cases() -> Iterator[Any]:
    named = [name for name in SCHEDULES if name not in FILES]
    for (num_devices, model), roles, schedule in itertools.product(
        PLACEMENTS, AWAY, named
    ):
        case = num_devices, model, roles, schedule
        recompute, _ = roles
        is_case = schedule == "1f1b" or (num_devices, model) in EVERY_SCHEDULE
        if is_case and _is_offloaded(num_devices, schedule, recompute):
            yield pytest.param(*case) if case in FAST_AWAY else exhaustive(*case)


@pytest.mark.parametrize(
    ("num_devices", "model", "roles", "schedule"), list(_offload_cases()), ids=str
)
def test_training_with_offload_leaves_the_bytes_of_one_stage(
    tmp_path: Path,
    trainings: Trainings,
    num_devices: int,
    model: str,
    roles: tuple[Any, Any],
    schedule: str,
) -> None:
    recompute, offload = roles
    name, p = task_params(
        tmp_path, model, num_devices, schedule, recompute, offload=offload
    )
    # With the number of shards, as above, so that these train once.
    want = trainings.state_of_one_stage(name, num_batch_shards=1)
    _assert_same(trainings.state_after(name, p), want)


def _state_after_steps(name: str, **pipeline: Any) -> dict[str, bytes]:
    """Returns the state after `TrainStep`, averages of the weights included."""
    p = TASKS[name].make_params().Set(name="task")
    p.pipeline.Set(num_micro_batches=NUM_MICRO_BATCHES, **pipeline)
    step = TrainStep(p.Instantiate())
    for seed in range(NUM_STEPS):
        step(TASKS[name].make_batch(BATCH_SIZE, seed))
    return {path: v.numpy().tobytes() for path, v in step.State().items()}


@functools.cache
def _state_after_steps_of_one_stage(name: str) -> dict[str, bytes]:
    return _state_after_steps(name, recompute="never")


@pytest.mark.parametrize(
    ("name", "num_devices", "schedule", "recompute"),
    [
        exhaustive("transformer", 3, "1f1b", "except_last"),
        exhaustive("transformer of 16", 8, "interleaved", SOME_CELLS),
        ("bfloat16", 2, "zero_bubble", None),
        exhaustive("bfloat16", 4, "1f1b", "always"),
        exhaustive("amoebanet-d", 3, "zero_bubble", SOME_CELLS),
    ],
)
def test_steps_in_one_graph_compute_the_same_bytes(
    name: str, num_devices: int, schedule: str, recompute: Any
) -> None:
    per_device = 2 if schedule == "interleaved" else 1
    found = _state_after_steps(
        name,
        splits=num_devices * per_device,
        stages_per_device=per_device,
        schedule=schedule,
        recompute=recompute,
    )
    _assert_same(found, _state_after_steps_of_one_stage(name))
