"""A number of devices means the first of the cluster, one kind for all."""

from __future__ import annotations

import random

import pytest

from lingvo_pipe.pipeline.devices.device_choice import TaskDevices, choose_devices
from tests.support.errors import fails


def _chosen(number: int, *tasks: tuple[int | None, int, int]) -> str:
    chosen = choose_devices(number, [TaskDevices(*task) for task in tasks])
    return ",".join(name.short for name in chosen)


def test_gpus_of_a_task_come_before_those_of_the_next() -> None:
    workers = [(0, 4, 8), (1, 4, 8)]
    zero, one = (
        ",".join(f"worker:{task}/gpu:{i}" for i in range(4)) for task in (0, 1)
    )
    assert _chosen(8, *workers) == f"{zero},{one}"
    assert _chosen(4, *workers) == zero
    assert _chosen(2, (None, 1, 8), (0, 0, 8), (1, 1, 8)) == "gpu:0,worker:1/gpu:0"


def test_cpu_devices_stand_in_for_those_of_several_machines() -> None:
    workers = [(0, 0, 2), (1, 0, 2)]
    assert _chosen(2, *workers) == "worker:0/cpu:0,worker:1/cpu:0"
    assert _chosen(3, *workers) == "worker:0/cpu:0,worker:0/cpu:1,worker:1/cpu:0"
    assert _chosen(2, (None, 0, 2), *workers) == "cpu:0,worker:0/cpu:0"


def _cluster(draw: random.Random) -> list[TaskDevices]:
    first = draw.choice([None, 0])
    max_gpus = draw.choice([0, 3])
    return [
        TaskDevices(i or first, draw.randint(0, max_gpus), draw.randint(1, 4))
        for i in range(draw.randint(1, 5))
    ]


@pytest.mark.parametrize("seed", range(200))
def test_choices(seed: int) -> None:
    """They are different, of one kind, in the order of tasks, and full or in turn."""
    draw = random.Random(seed)
    tasks = _cluster(draw)
    num_gpus = sum(task.num_gpus for task in tasks)
    num_present = num_gpus or sum(task.num_cpus for task in tasks)
    number = draw.randint(1, num_present)
    chosen = choose_devices(number, tasks)
    assert len(set(chosen)) == len(chosen) == number
    assert {name.kind for name in chosen} == {"GPU" if num_gpus else "CPU"}
    workers = [t.worker for t in tasks]
    order = [(workers.index(name.worker), name.index) for name in chosen]
    assert order == sorted(order)
    taken = [sum(n.worker == t.worker for n in chosen) for t in tasks]
    if num_gpus:
        left = [t.num_gpus - n for t, n in zip(tasks, taken, strict=True)]
        used = [i for i, n in enumerate(taken) if n]
        assert not any(left[: used[-1]])  # All before the last one are full.
    else:
        for n, task in zip(taken, tasks, strict=True):
            assert n == task.num_cpus or n >= max(taken) - 1
    with fails(path="devices", got=num_present + 1):
        choose_devices(num_present + 1, tasks)
