"""Which devices of a cluster a number of devices means. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lingvo_pipe.pipeline.devices.device_names import DeviceName


@dataclass(frozen=True)
class TaskDevices:
    """The devices of a task of a cluster.

    Attributes:
        worker: its number; None: it is the trainer.
        num_gpus: how many GPUs it has.
        num_cpus: how many CPU devices.
    """

    worker: int | None
    num_gpus: int
    num_cpus: int


def choose_devices(number: int, tasks: Sequence[TaskDevices]) -> list[DeviceName]:
    """The first devices of a cluster, in the order of its tasks.

    If any task has GPUs, these are GPUs, all of a task before the next one's: stages
    that are neighbours are then on one machine wherever they can be. CPU devices stand
    in for GPUs of other machines, so each task gives one before any gives a second.

    Raises:
        ValueError: if there are not so many.
    """
    has_gpus = any(task.num_gpus for task in tasks)
    kind = "GPU" if has_gpus else "CPU"
    numbers = [task.num_gpus if has_gpus else task.num_cpus for task in tasks]
    if number > sum(numbers):
        raise ValueError(
            f"There must be as many devices as are asked for; {number} are, and the "
            f"cluster has {sum(numbers)} {kind}s: "
            + ", ".join(f"{_who(t)} {n}" for t, n in zip(tasks, numbers, strict=True))
            + f". Use {sum(numbers)} at most, or start more workers."
        )
    taken = _in_order(number, numbers) if has_gpus else _in_turn(number, numbers)
    return [
        DeviceName(task.worker, kind, index)
        for task, its_number in zip(tasks, taken, strict=True)
        for index in range(its_number)
    ]


def _in_order(number: int, numbers: Sequence[int]) -> list[int]:
    """How many to take of each: all there are, until there are enough."""
    taken: list[int] = []
    for available in numbers:
        taken.append(min(available, number - sum(taken)))
    return taken


def _in_turn(number: int, numbers: Sequence[int]) -> list[int]:
    """How many to take of each: one of each in turn, until there are enough."""
    taken = [0] * len(numbers)
    while sum(taken) < number:
        for i, available in enumerate(numbers):
            if taken[i] < available and sum(taken) < number:
                taken[i] += 1
    return taken


def _who(task: TaskDevices) -> str:
    return "trainer" if task.worker is None else f"worker:{task.worker}"
