"""An elastic job: it continues without lost workers and failed devices."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import tensorflow as tf

from lingvo_pipe.cli.elastic_devices import Cut, check_min_devices, cut_for, set_cut
from lingvo_pipe.cli.job_devices import (
    Asked,
    JobDevices,
    count_of,
    first_line,
)
from lingvo_pipe.core.error_causes import FULL_DISK
from lingvo_pipe.core.errors import UserClusterError, UserValueError, Words
from lingvo_pipe.core.quantities import bytes_text
from lingvo_pipe.core.signals import FirstSignal
from lingvo_pipe.fault_tolerance.device_faults import failed_devices, operation_error
from lingvo_pipe.fault_tolerance.elastic_workers import ElasticWorkers
from lingvo_pipe.fault_tolerance.left_out import LeftOut
from lingvo_pipe.fault_tolerance.restarts import Restarts
from lingvo_pipe.fault_tolerance.worker_watch import WorkerWatch, own_client_number
from lingvo_pipe.hyperparams import InstantiableParams
from lingvo_pipe.pipeline.devices.cluster import device_kinds
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.device_kind import (
    DeviceKind,
    kind_differences,
    without_host,
)
from lingvo_pipe.pipeline.devices.device_names import (
    device_name,
    device_names,
    short_name,
)
from lingvo_pipe.pipeline.devices.stage_devices import check_tasks
from lingvo_pipe.pipeline.devices.trainer_liveness import answer_workers
from lingvo_pipe.pipeline.pipelining_rules import count_batch_shards
from lingvo_pipe.pipeline.stage_choice.memory_limit import DoesNotFitError
from lingvo_pipe.planner.search.fitting_plan import NothingFits
from lingvo_pipe.training.run.run_parts import RunPart
from lingvo_pipe.training.task.placement import place_stages


class ChosenDevices(NamedTuple):
    """The devices that an elastic job runs on."""

    devices: int | Sequence[str] | None  # In place of the flag --devices.
    cluster: Cluster | None  # The workers that are there.
    note: str = ""  # A line for the user if something is left out.


class ElasticJob:
    """A job that restarts on the devices that are left.

    It waits or ends if it has fewer than `min_devices` devices. Without a `cluster`
    it runs on this machine alone. If `ends_workers`, workers end when it no longer
    answers, even if it uses none.
    """

    def __init__(
        self,
        min_devices: int,
        policy: ElasticWorkers,
        restarts: Restarts,
        cluster: Cluster | None,
        watch: WorkerWatch | None,
        log: Callable[[str], None],
        ends_workers: bool = False,
    ) -> None:
        self._min_devices, self._policy = min_devices, policy
        self._restarts, self._cluster, self._log = restarts, cluster, log
        self.watch, self._ends_workers = watch, ends_workers
        self._devices: JobDevices | None = None
        self._signal: FirstSignal | None = None
        self._used: Sequence[str] = ()

    def resume(self, parts: Sequence[RunPart], on_hosts: bool = False) -> None:
        """Keeps the kind of device on which the run was trained so far, if it was.

        If `on_hosts`, the hosts of GPUs compute results too (see `device_kinds`).
        """
        kinds = parts[-1].device_kinds if parts else []
        if kinds and not self._policy.left_out.kind:
            hint = "Leave --elastic out: the run was trained on several kinds."
            self._set_kind(kinds if on_hosts else list(map(without_host, kinds)), hint)

    def choose(
        self, pipeline: InstantiableParams, flag: int | Sequence[str] | None
    ) -> ChosenDevices:
        """Waits for workers, and chooses the devices. Changes `pipeline` to fit them.

        `flag` is the value of --devices. `check_elastic` must have accepted `pipeline`.

        Raises:
            ValueError: if the flags do not fit the model.
            ConnectionError: if too few devices are left.
        """
        devices = place_stages(pipeline.Copy(), flag).devices
        number = devices if isinstance(devices, int) else len(devices)
        if not isinstance(devices, int):
            check_tasks(device_names(devices), self._cluster)
        check_min_devices(self._min_devices, number)
        complete = Cut(pipeline.num_replicas, number // pipeline.num_replicas)
        shards = count_batch_shards(pipeline, "task.pipeline")
        asked = Asked(devices, complete, shards, self._min_devices)
        job = JobDevices(asked, self._policy, self._cluster)
        self._devices = self._policy.needs = job
        absent = self._wait()
        left_out = self._policy.left_out
        left, names = job.without(absent)
        cluster = self._cluster and self._cluster.without(absent)
        if not (absent or left_out.devices or left_out.kind):
            return ChosenDevices(flag, cluster)  # A first start needs all devices.
        if lack := job.lack_on(left, names, absent):
            raise UserClusterError(
                f"{lack}.",
                hint="Run it where more such devices are left, or leave --elastic out.",
            )
        if cluster is not None and all(x.worker is None for x in device_names(names)):
            if self._ends_workers:
                answer_workers(cluster)
            cluster = None
        if len(names) < number:
            set_cut(pipeline, cut_for(len(left), complete, shards))
        return ChosenDevices(names, cluster, self._note(absent, len(names), number))

    def use(self, devices: Sequence[str], on_hosts: bool = False) -> None:
        """Notes which devices the job uses, by full names, once they are ready.

        If `on_hosts`, the hosts of GPUs compute results too (see `device_kinds`).

        Raises:
            ValueError: if they have several kinds.
        """
        assert self._devices is not None
        self._used, self._devices.used = devices, len(devices)
        hint = "Name devices of one kind by --devices, or leave --elastic out."
        self._set_kind(device_kinds(devices, on_hosts), hint)

    @contextlib.contextmanager
    def surviving(self) -> Iterator[None]:
        """Restarts this process if the block fails because of its devices."""
        try:
            yield
        except Exception as error:
            if self._used and not self._has_signal():
                self._restart_after(error)
            raise

    def _set_kind(self, kinds: Sequence[DeviceKind], hint: str) -> None:
        differences = [kind_differences(kinds[:1], [kind]) for kind in kinds]
        if texts := list(itertools.chain(*differences)):
            raise UserValueError(
                path="--elastic",
                expected="devices of one kind and model, since others change the bytes",
                got=Words("; ".join(texts)),
                hint=hint,
            )
        left_out = self._policy.left_out
        self._policy.left_out = dataclasses.replace(left_out, kind=kinds[0])

    def _wait(self) -> frozenset[int]:
        if self.watch is None:
            self._signal = FirstSignal()
            return frozenset()
        self.watch.begin()
        return frozenset(self._policy.left_out.workers)

    def _has_signal(self) -> bool:
        if self.watch is not None:
            return self.watch.has_signal()
        return self._signal is not None and self._signal.get() is not None

    def _note(self, absent: Collection[int], used: int, number: int) -> str:
        left_out = [f"worker:{task}" for task in sorted(absent)]
        left_out += map(short_name, self._policy.left_out.devices)
        if used == number and not left_out:
            return ""
        names = f"; left out: {', '.join(left_out)}" if left_out else ""
        return f"elastic: {used} of {count_of(number)}{names}"

    def _restart_after(self, error: Exception) -> None:
        without, number = self._policy.left_out, len(self._used)
        assert self._devices is not None
        if misfit := _misfit(error):
            # More devices will not come, or would not be used.
            if not without.workers or number == self._devices.num_asked:
                return
            cause = f"On {count_of(number)} {misfit}."
            then = "waits for more workers"
            without = dataclasses.replace(without, too_few=number, misfit=misfit)
        elif failed := failed_devices(error, self._used):
            cause, then, without = self._without(failed, error)
        else:
            return
        self._log(cause)
        self._policy.left_out = without
        if self._cluster is None and (lack := self._devices.lack(())):
            self._log(f"{lack}.")
            return  # The error says more than a restart would.
        self._log(f"This process {then}, and resumes from the last checkpoint.")
        client = own_client_number() if self._cluster is not None else None

        def stop() -> None:
            if self._has_signal():
                raise error

        self._restarts.again(client, cause, stop, **without.variables())

    def _without(
        self, failed: Sequence[str], error: Exception
    ) -> tuple[str, str, LeftOut]:
        """Returns why the process restarts, what it then does, and what it leaves out.

        If workers were lost, their devices only seem to have failed, and the process
        waits for them.
        """
        left_out = self._policy.left_out
        if self.watch is not None and (lost := self.watch.lost()):
            return " ".join(lost), "waits for workers that are missing", left_out
        names = ", ".join(map(short_name, failed))
        assert self._devices is not None
        counts = {name: self._devices.count(device_name(name)) for name in failed}
        left_out = dataclasses.replace(left_out, devices=left_out.devices | counts)
        cause = f"{names} failed: {first_line(error)}."
        return cause, f"restarts without {names}", left_out


def _misfit(error: BaseException) -> str:
    if isinstance(error, DoesNotFitError) and math.isfinite(error.missing_bytes):
        return f"the model does not fit: {bytes_text(error.missing_bytes)} are missing"
    if isinstance(error, (DoesNotFitError, NothingFits)):
        return f"the model does not fit: {first_line(error)}"
    cause = operation_error(error)
    is_memory = isinstance(cause, tf.errors.ResourceExhaustedError)
    if is_memory and not re.search(f"{FULL_DISK}|Too many open files", str(cause)):
        return f"memory is exhausted: {first_line(error)}"
    return ""
