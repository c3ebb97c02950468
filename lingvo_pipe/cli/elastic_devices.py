"""The devices of an elastic job: those that are left, and how the model is cut on them.

R replicas of K devices --some are lost--> fewer replicas of K devices,
                                           or one replica of fewer devices
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Sequence
from typing import NamedTuple

import tensorflow as tf

from lingvo_pipe.core.errors import UserValueError, Words
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.pipeline.devices.cluster import ReadyWorkers
from lingvo_pipe.pipeline.devices.device_choice import TaskDevices, choose_devices
from lingvo_pipe.pipeline.devices.device_names import device_names
from lingvo_pipe.pipeline.pipelining_rules import count_batch_shards
from lingvo_pipe.planner.measured.resolve_auto import extract_auto

_PATH = "task.pipeline"


class Cut(NamedTuple):
    """A number of replicas, and the number of devices of each."""

    replicas: int
    per_replica: int

    @property
    def num_devices(self) -> int:
        """The number of devices that are used."""
        return self.replicas * self.per_replica


def cut_for(number: int, before: Cut, num_batch_shards: int) -> Cut:
    """Returns the cut for `number` devices, which are fewer than in `before`.

    Replicas are given up before stages grow: each replica keeps its number of devices
    if there are enough for one. The number of replicas divides `num_batch_shards`.
    """
    replicas = max(
        r
        for r in range(1, before.replicas + 1)
        if num_batch_shards % r == 0 and (r == 1 or number // r >= before.per_replica)
    )
    return Cut(replicas, min(before.per_replica, number // replicas))


def check_elastic(pipeline: InstantiableParams) -> None:
    """Raises ValueError if a model cannot be cut for fewer devices.

    `pipeline` has the model's own params.
    """
    auto = sorted(extract_auto(pipeline.Copy()))
    problems = {
        "splits": (isinstance(pipeline.splits, (list, tuple)), "a number, or 'auto'"),
        "devices": (pipeline.devices is not None, "None; use the flag --devices"),
        "schedule": (str(pipeline.schedule).endswith(".csv"), "a schedule's name"),
        "num_replicas": (
            bool(auto) and pipeline.num_replicas != 1,
            f"1, since {' and '.join(auto)} is auto",
        ),
    }
    for name, (is_wrong, expected) in problems.items():
        if is_wrong:
            raise UserValueError(
                path=f"{_PATH}.{name}",
                expected=f"{expected}, with --elastic",
                got=pipeline.Get(name),
                hint="Change it, or leave --elastic out.",
            )


def set_cut(pipeline: InstantiableParams, cut: Cut) -> None:
    """Sets the replicas, and lets the memory limit choose the stages if there is one.

    The number of batch shards stays, so the bytes of results do.
    """
    if pipeline.num_replicas > 1:
        pipeline.num_batch_shards = count_batch_shards(pipeline, _PATH)
        pipeline.num_replicas = cut.replicas
    if pipeline.memory_limit is not None:
        pipeline.splits = "auto"


def devices_of_workers(names: Sequence[str], absent: Collection[int]) -> list[str]:
    """Returns the devices in `names` that are not of absent workers, by full names."""
    return [x.full for x in device_names(names) if x.worker not in absent]


def has_workers(names: Sequence[str]) -> bool:
    """Returns whether any device in `names` is a worker's."""
    return any(name.worker is not None for name in device_names(names))


def first_devices(
    number: int, tasks: Sequence[TaskDevices], failed: Collection[str], kind: str = ""
) -> list[str]:
    """Returns up to `number` devices of tasks, by full names, without failed ones.

    If `kind` is GPU, returns no CPU devices, even if there is no GPU.
    """
    has_gpus = kind == "GPU" or any(task.num_gpus for task in tasks)
    total = sum(task.num_gpus if has_gpus else task.num_cpus for task in tasks)
    names: list[str] = []
    for size in range(min(number, total), total + 1):
        chosen = [name.full for name in choose_devices(size, tasks)]
        names = [name for name in chosen if name not in failed]
        if len(names) == number:
            break
    return names


def task_devices(
    number: int, ready: ReadyWorkers | None, num_workers: int, has_trainer: bool
) -> list[TaskDevices]:
    """Returns the devices of the tasks that are left, of a job on `number` devices.

    A task without GPUs lends no more CPU devices than in the complete cluster, of
    `num_workers` workers. `has_trainer` means that the trainer lends devices too.
    """
    workers = ready.workers if ready is not None else {}
    most = math.ceil(number / max(num_workers + has_trainer, 1))
    tasks = [
        TaskDevices(task, counts["GPU"], min(counts["CPU"], most))
        for task, counts in ((i, x.counts()) for i, x in workers.items())
    ]
    if has_trainer:
        num_gpus = len(tf.config.list_physical_devices("GPU"))
        num_cpus = min(os.cpu_count() or 1, most) if num_workers else most
        tasks.insert(0, TaskDevices(None, num_gpus, num_cpus))
    return tasks


def check_min_devices(min_devices: int, number: int) -> None:
    """Raises ValueError if a job can never have `min_devices` devices."""
    if min_devices > number:
        raise UserValueError(
            path="--min_devices",
            expected=f"at most the job's {number} devices",
            got=Words(min_devices),
        )
