"""The devices that an elastic job could use, without some of its workers.

All have one kind and model, since another kind would change the bytes of results.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from lingvo_pipe.cli.elastic_devices import Cut, cpu_share, cut_for, first_devices
from lingvo_pipe.core.errors import UserConnectionError
from lingvo_pipe.fault_tolerance.elastic_workers import ElasticWorkers
from lingvo_pipe.pipeline.devices.cluster import find_workers
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.departure import is_leaving
from lingvo_pipe.pipeline.devices.device_choice import TaskDevices
from lingvo_pipe.pipeline.devices.device_kind import (
    NUM_THREADS,
    DeviceKind,
    kind_differences,
    local_kind,
)
from lingvo_pipe.pipeline.devices.device_names import (
    DeviceName,
    device_name,
    device_names,
)
from lingvo_pipe.pipeline.devices.handshake import (
    WorkerDescription,
    device_kind_key,
    differences,
    is_busy,
    read_worker,
    versions,
)


class Asked(NamedTuple):
    """The devices and the cut of a complete job."""

    devices: int | Sequence[str]
    cut: Cut
    num_batch_shards: int
    min_devices: int  # With fewer devices, the job waits.


class JobDevices:
    """The devices that a job could use, and its needs of workers (see `Needs`).

    The job sets `used`, the number of devices that it uses.
    """

    def __init__(
        self, asked: Asked, policy: ElasticWorkers, cluster: Cluster | None
    ) -> None:
        self._asked, self._policy, self._cluster = asked, policy, cluster
        self.used = 0
        self._workers: Mapping[int, WorkerDescription] = {}
        self._others: set[str] = set()  # How other devices differ from the job's kind.

    @property
    def num_asked(self) -> int:
        """The number of devices that the complete job uses."""
        return self._asked.cut.num_devices

    def misfit(self, task: int) -> str:
        """Returns why the job cannot use a worker that answers, or ""."""
        assert self._cluster is not None
        workers = self._cluster.workers
        try:
            worker = read_worker(workers[task])
        except tf.errors.OpError:
            return "" if is_busy(workers[task]) else "it does not describe itself"
        if worker is None:
            return "it is not a worker of this version of lingvo_pipe"
        if wrong := differences(worker, task, workers, versions()):
            return "; ".join(wrong)
        before, kinds = self._policy.left_out.kind, list(worker.device_kinds.values())
        same = [kind for kind in kinds if kind["type"] == before.get("type")]
        others = [self._other_kind(kind) for kind in same or kinds]
        return "" if "" in others else others[0]

    def is_leaving(self, task: int) -> bool:
        """Returns whether a worker that answers is leaving."""
        assert self._cluster is not None
        return is_leaving(self._cluster.workers[task])

    def lack(self, absent: Collection[int]) -> str:
        """Returns why the job cannot continue without the absent workers, or ""."""
        try:
            left, names = self.without(absent, awaits_busy=False)
        except UserConnectionError as error:  # One does not answer any more, or yet.
            return first_line(error)
        return self.lack_on(left, names, absent)

    def is_complete(self, absent: Collection[int]) -> bool:
        """Returns whether the job has all its devices without the absent workers."""
        try:
            left, names = self.without(absent, awaits_busy=False)
        except UserConnectionError:
            return False
        return len(names) == self.num_asked and not self.lack_on(left, names, absent)

    def lack_on(
        self, left: Sequence[str], names: Sequence[str], absent: Collection[int]
    ) -> str:
        """Returns the text of `lack`. `left` and `names` are from `without`."""
        number, left_out = self.num_asked, self._policy.left_out
        is_free = isinstance(self._asked.devices, int) and not left_out.kind
        if absent and is_free and not _has_gpu(left):
            return "The job has not started yet, and the others have no GPU"
        if names and len(names) <= left_out.too_few:
            return f"On {count_of(len(names))} {left_out.misfit}"
        if len(names) >= self._asked.min_devices:
            return ""
        text = f"{len(names)} of {count_of(number)} can be used"
        text += f", and --min_devices is {self._asked.min_devices}"
        if left_out.kind and (self._others or not left):
            text += f". The job keeps to devices of the kind {kind_text(left_out.kind)}"
            text += f" ({'; '.join(sorted(self._others))})" * bool(self._others)
        return text

    def gains(self, absent: Collection[int]) -> bool:
        """Returns whether a restart would give the job more devices than it has.

        The restart leaves out only the absent workers. It asks no worker that the job
        uses, since these are busy.
        """
        workers = self._workers
        try:
            return len(self.without(absent, workers, awaits_busy=False)[1]) > self.used
        except UserConnectionError:
            return False
        finally:
            self._workers = workers

    def without(
        self,
        absent: Collection[int],
        known: Mapping[int, WorkerDescription] = {},
        awaits_busy: bool = True,
    ) -> tuple[list[str], list[str]]:
        """Returns the devices that are left without the absent workers.

        Returns all of them, and those that the job would use, by full names. Asks all
        workers but the `known` ones. See `find_workers` on `awaits_busy`.

        Raises:
            ConnectionError: if another worker does not answer.
        """
        if self._cluster is not None:
            new = self._cluster.without({*absent, *known})
            answers = find_workers(new, awaits_busy).workers if new.present else {}
            self._workers = {**known, **answers}
        asked, self._others = self._asked, set()
        if isinstance(asked.devices, int):
            is_complete = not (absent or self._policy.left_out.devices)
            tasks = self._tasks(asked.devices, is_complete)
            left = first_devices(asked.devices, tasks, self._fits)
        else:
            left = [x.full for x in device_names(asked.devices) if self._fits(x)]
        cut = cut_for(len(left), asked.cut, asked.num_batch_shards)
        return left, left[: cut.num_devices]

    def count(self, name: DeviceName) -> int:
        """Returns how many devices of its kind a device's task has."""
        if name.worker is not None:
            worker = self._workers.get(name.worker)
            return worker.counts()[name.kind] if worker else 0
        if name.kind == "CPU":  # This process can have any number.
            return name.index + 1
        return len(tf.config.list_physical_devices(name.kind))

    def _fits(self, name: DeviceName) -> bool:
        number = self.count(name)
        # If there are fewer than before, a failed device may be the one that is gone.
        is_failed = self._policy.left_out.devices.get(name.full) == number
        if name.index >= number or is_failed:
            return False
        if name.worker is None:
            kind = _local_kind(name)
        else:
            kind = self._workers[name.worker].device_kinds[device_kind_key(name)]
        if other := self._other_kind(kind):
            self._others.add(other)
        return not other

    def _other_kind(self, kind: DeviceKind) -> str:
        before = self._policy.left_out.kind
        return "; ".join(kind_differences([before], [kind])) if before else ""

    def _tasks(self, number: int, is_complete: bool) -> list[TaskDevices]:
        """Returns each task's devices that the job may use, by kind.

        A job that is not complete takes no more CPU devices of a task than before.
        """
        cluster, kind = self._cluster, self._policy.left_out.kind.get("type", "")
        has_trainer = cluster is None or cluster.trainer is not None
        counts: dict[int | None, Mapping[str, int]] = {}
        if has_trainer:
            num_gpus = len(tf.config.list_physical_devices("GPU"))
            num_cpus = number if cluster is None else os.cpu_count() or 1
            counts[None] = {"GPU": num_gpus, "CPU": num_cpus}
        counts |= {task: worker.counts() for task, worker in self._workers.items()}
        num_tasks = has_trainer + (len(cluster.workers) if cluster is not None else 0)
        tasks = []
        for task, count in counts.items():
            num_cpus = count["CPU"]
            if not is_complete:
                position = 0 if task is None else task + has_trainer
                num_cpus = min(num_cpus, cpu_share(number, position, num_tasks))
            gpus = 0 if kind == "CPU" else count["GPU"]
            tasks.append(TaskDevices(task, gpus, 0 if kind == "GPU" else num_cpus))
        return tasks


def _has_gpu(names: Sequence[str]) -> bool:
    return any(device_name(name).kind == "GPU" for name in names)


@functools.cache
def _local_kind(name: DeviceName) -> DeviceKind:
    return local_kind(name, NUM_THREADS)


def first_line(error: BaseException) -> str:
    """Returns the first line of an error, without its full stop."""
    return str(error).partition("\n")[0].rstrip(".")


def count_of(number: int) -> str:
    """Returns a number of devices as text."""
    return f"{number} device{'s' if number != 1 else ''}"


def kind_text(kind: DeviceKind) -> str:
    """Returns the type and the model of a kind of device as text."""
    model = kind.get("model") or kind.get("processor", "")
    return f"{kind.get('type', '')} {model}".strip()
