"""An elastic job: it goes on without lost workers and failed devices."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from lingvo_pipe.cli.elastic_devices import (
    Cut,
    check_min_devices,
    cut_for,
    devices_of_workers,
    first_devices,
    has_workers,
    set_cut,
    task_devices,
)
from lingvo_pipe.core.errors import UserClusterError
from lingvo_pipe.core.quantities import bytes_text
from lingvo_pipe.core.signals import FirstSignal
from lingvo_pipe.fault_tolerance.device_faults import failed_devices, operation_error
from lingvo_pipe.fault_tolerance.elastic_workers import ElasticWorkers
from lingvo_pipe.fault_tolerance.left_out import LeftOut
from lingvo_pipe.fault_tolerance.restarts import Restarts
from lingvo_pipe.fault_tolerance.worker_watch import WorkerWatch, own_client_number
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.pipeline.devices.cluster import find_workers
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.device_names import device_name, short_name
from lingvo_pipe.pipeline.pipelining_rules import count_batch_shards
from lingvo_pipe.pipeline.stage_choice.memory_limit import DoesNotFitError
from lingvo_pipe.planner.search.fitting_plan import NothingFits
from lingvo_pipe.training.task.placement import place_stages


class Workers(NamedTuple):
    """The workers of an elastic job, its watch over them, and its policy for losses."""

    cluster: Cluster
    watch: WorkerWatch
    policy: ElasticWorkers


class ChosenDevices(NamedTuple):
    """The devices that an elastic job runs on.

    Attributes:
        devices: a value in place of the flag --devices.
        cluster: the workers that are there, or None without workers.
        note: a line for the user if something is left out.
    """

    devices: int | Sequence[str] | None
    cluster: Cluster | None
    note: str = ""


class ElasticJob:
    """A job that restarts on the devices that are left.

    Args:
        min_devices: number of devices below which the job waits or ends.
        left_out: what the job has gone on without so far.
        restarts: the object that performs restarts of this process.
        workers: the job's workers, or None if it runs on this machine alone.
        log: callback for a line for the user.
    """

    def __init__(
        self,
        min_devices: int,
        left_out: LeftOut,
        restarts: Restarts,
        workers: Workers | None,
        log: Callable[[str], None],
    ) -> None:
        self._min_devices, self._failed = min_devices, left_out.devices
        self._restarts, self._workers, self._log = restarts, workers, log
        self._left_out = left_out
        self._signal: FirstSignal | None = None
        self._used: Sequence[str] = ()

    @property
    def watch(self) -> WorkerWatch | None:
        """The watch over the job's workers, or None without workers."""
        return self._workers and self._workers.watch

    def choose(
        self, pipeline: InstantiableParams, flag: int | Sequence[str] | None
    ) -> ChosenDevices:
        """Waits for workers, and chooses the devices. Changes `pipeline` to fit them.

        `flag` is the value of --devices. `check_elastic` must have accepted `pipeline`.

        Raises:
            ValueError: if the flags do not fit the model.
            ConnectionError: if too few devices are left.
        """
        asked = place_stages(pipeline.Copy(), flag).devices
        number = asked if isinstance(asked, int) else len(asked)
        check_min_devices(self._min_devices, number)
        complete = Cut(pipeline.num_replicas, number // pipeline.num_replicas)
        shards = count_batch_shards(pipeline, "task.pipeline")

        @functools.cache
        def devices_without(absent: frozenset[int]) -> list[str]:
            left = self._devices_left(asked, absent)
            cut = cut_for(len(left), complete, shards)
            return left[: cut.num_devices]

        def lack_without(absent: Collection[int]) -> str:
            try:
                return self._lack(len(devices_without(frozenset(absent))), number)
            except UserClusterError as error:  # It does not answer any more.
                return _first_line(error)

        absent = self._wait(lack_without)
        if not absent and not self._failed:
            return ChosenDevices(flag, self._cluster_without(absent))
        if lack := lack_without(absent):
            raise UserClusterError(f"{lack}.")
        names = devices_without(absent)
        if len(names) < number:
            set_cut(pipeline, cut_for(len(names), complete, shards))
        return ChosenDevices(
            names,
            self._cluster_without(absent) if has_workers(names) else None,
            self._note(absent, len(names), number),
        )

    def use(self, devices: Sequence[str]) -> None:
        """Notes which devices the job uses, by full names, once they are ready."""
        self._used = devices
        if self._workers is not None:
            policy, kind = self._workers.policy, device_name(devices[0]).kind
            policy.left_out = dataclasses.replace(policy.left_out, kind=kind)

    @contextlib.contextmanager
    def surviving(self) -> Iterator[None]:
        """Restarts this process if the block fails because of its devices."""
        try:
            yield
        except Exception as error:
            if self._used and not self._has_signal():
                self._restart_after(error)
            raise

    def _wait(self, lack_without: Callable[[Collection[int]], str]) -> frozenset[int]:
        """Waits for enough workers. Returns the numbers of the absent ones."""
        if self._workers is None:
            self._signal = FirstSignal()
            return frozenset()
        self._workers.policy.require(lack_without)
        self._workers.watch.begin()
        return frozenset(self._workers.policy.left_out.workers)

    def _has_signal(self) -> bool:
        if self._workers is not None:
            return self._workers.watch.has_signal()
        return self._signal is not None and self._signal.get() is not None

    def _cluster_without(self, absent: Collection[int]) -> Cluster | None:
        return self._workers and self._workers.cluster.without(absent)

    def _devices_left(
        self, asked: int | Sequence[str], absent: Collection[int]
    ) -> list[str]:
        """Returns the devices that are left without the absent workers."""
        if not isinstance(asked, int):
            left = devices_of_workers(asked, absent)
            return [name for name in left if name not in self._failed]
        cluster, ready = self._cluster_without(absent), None
        if cluster is not None and cluster.present:
            ready = find_workers(cluster)
        num_workers = len(cluster.workers) if cluster is not None else 0
        has_trainer = cluster is None or cluster.trainer is not None
        tasks = task_devices(asked, ready, num_workers, has_trainer)
        return first_devices(asked, tasks, self._failed, self._left_out.kind)

    def _lack(self, used: int, number: int) -> str:
        """Returns why `used` of the complete job's devices are too few, or ""."""
        if used and used <= self._left_out.too_few:
            return f"On {_count(used)} {self._left_out.misfit}"
        if used < self._min_devices:
            return (
                f"{used} of {_count(number)} can be used, and --min_devices is "
                f"{self._min_devices}"
            )
        return ""

    def _note(self, absent: Collection[int], used: int, number: int) -> str:
        left_out = [f"worker:{task}" for task in sorted(absent)]
        left_out += map(short_name, self._failed)
        return f"elastic: {used} of {_count(number)}; left out: {', '.join(left_out)}"

    def _restart_after(self, error: Exception) -> None:
        """Restarts this process if its devices caused the error."""
        without = self._workers.policy.left_out if self._workers else self._left_out
        if misfit := _misfit(error):
            if not without.workers:  # More devices will not come.
                return
            number = len(self._used)
            cause = f"On {_count(number)} {misfit}."
            then = "waits for more workers"
            without = dataclasses.replace(without, too_few=number, misfit=misfit)
        else:
            failed = failed_devices(error, self._used)
            if not failed:
                return
            names = ", ".join(map(short_name, failed))
            cause = f"{names} failed: {_first_line(error)}."
            then = f"restarts without {names}"
            devices = (*without.devices, *failed)
            without = dataclasses.replace(without, devices=devices)
        self._log(cause)
        self._log(f"This process {then}, and resumes from the last checkpoint.")
        client = own_client_number() if self._workers else None
        self._restarts.again(client, cause, **without.variables())


def _misfit(error: BaseException) -> str:
    """Returns a phrase if an error means that the model does not fit, or else ""."""
    if isinstance(error, DoesNotFitError) and math.isfinite(error.missing_bytes):
        return f"the model does not fit: {bytes_text(error.missing_bytes)} are missing"
    if isinstance(error, (DoesNotFitError, NothingFits)):
        return f"the model does not fit: {_first_line(error)}"
    if isinstance(operation_error(error), tf.errors.ResourceExhaustedError):
        return f"memory is exhausted: {_first_line(error)}"
    return ""


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0].rstrip(".")


def _count(number: int) -> str:
    return f"{number} device{'s' if number != 1 else ''}"
