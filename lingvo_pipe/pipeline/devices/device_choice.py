"""Chooses devices of a cluster, for a given number of devices."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.pipeline.devices.device_names import DeviceName


@dataclass(frozen=True)
class TaskDevices:
    """The devices of one task of a cluster."""

    worker: int | None  # None for the trainer.
    num_gpus: int
    num_cpus: int


def choose_devices(number: int, tasks: Sequence[TaskDevices]) -> list[DeviceName]:
    """Returns `number` devices, chosen from the tasks of a cluster.

    If any task has GPUs, returns the first GPUs, counted task by task, so that
    neighboring stages share a machine. Otherwise CPU devices stand in for GPUs of
    different machines: one of each task is chosen, then a second one of each task, and
    so on. The result is in the order of the tasks.

    Raises:
        ValueError: if the cluster has fewer devices.
    """
    has_gpus = any(task.num_gpus for task in tasks)
    kind = "GPU" if has_gpus else "CPU"
    present = [task.num_gpus if has_gpus else task.num_cpus for task in tasks]
    if number > sum(present):
        names = ["trainer" if t.worker is None else f"worker:{t.worker}" for t in tasks]
        of_tasks = ", ".join(map("{} {}".format, names, present))
        raise UserValueError(
            path="devices",
            expected=f"at most the cluster's {sum(present)} {kind}s: {of_tasks}",
            got=number,
            hint="Use fewer, or start more workers.",
        )
    places = [(t, i) for t, num in enumerate(present) for i in range(num)]
    if not has_gpus:
        places.sort(key=operator.itemgetter(1))  # Stable: the tasks stay in order.
    return [DeviceName(tasks[t].worker, kind, i) for t, i in sorted(places[:number])]
