"""An elastic job keeps to one kind of device, whatever comes and goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import tensorflow as tf

from lingvo_pipe.cli import job_devices
from lingvo_pipe.cli.elastic_devices import Cut
from lingvo_pipe.cli.job_devices import Asked, JobDevices
from lingvo_pipe.core.errors import UserClusterError
from lingvo_pipe.fault_tolerance.elastic_workers import ElasticWorkers
from lingvo_pipe.fault_tolerance.left_out import LeftOut
from lingvo_pipe.pipeline.devices.cluster import ReadyWorkers
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.device_names import device_name, short_name
from lingvo_pipe.pipeline.devices.handshake import WorkerDescription, versions

CPU = {"type": "CPU", "processor": "Six"}
OLD_GPU, NEW_GPU = ({"type": "GPU", "model": model} for model in ("Old", "New"))
ADDRESSES = ("a:1", "b:1", "c:1")


def _worker(task: int, *gpus: dict[str, str], cpus: int = 4) -> WorkerDescription:
    kinds = {"CPU": CPU} | {f"GPU:{i}": gpu for i, gpu in enumerate(gpus)}
    return WorkerDescription(
        **versions(),
        task=task,
        workers=ADDRESSES,
        kinds=("CPU",) * cpus + ("GPU",) * len(gpus),
        device_kinds=kinds,
        host="h",
        pid=1,
    )


class Machines:
    """Three workers, of which one that is None does not answer."""

    def __init__(self, *workers: WorkerDescription | None) -> None:
        self.workers = workers
        self.found: list[tuple[list[int], bool]] = []

    def find(self, cluster: Cluster, awaits_busy: bool = True) -> ReadyWorkers:
        self.found.append((list(cluster.present), awaits_busy))
        found = {task: self.workers[task] for task in cluster.present}
        if None in found.values():
            raise UserClusterError("Cannot reach one.\nMore.")
        return ReadyWorkers("h", found)  # type: ignore[arg-type]

    def read(self, address: str) -> WorkerDescription | None:
        worker = self.workers[ADDRESSES.index(address)]
        if worker is None:
            raise tf.errors.DeadlineExceededError(None, None, "late")
        return worker


class Job:
    """A job on three workers."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        machines: Machines,
        devices: int | Sequence[str],
        left_out: LeftOut = LeftOut(),  # noqa: B008  Frozen.
        min_devices: int = 1,
    ) -> None:
        monkeypatch.setattr(job_devices, "find_workers", machines.find)
        monkeypatch.setattr(job_devices, "read_worker", machines.read)
        number = devices if isinstance(devices, int) else len(devices)
        asked = Asked(devices, Cut(1, number), 1, min_devices)
        self.policy = ElasticWorkers(1.0, 1.0, left_out, str, lambda line: None)
        self.devices = JobDevices(asked, self.policy, Cluster(ADDRESSES))

    def without(self, *absent: int) -> str:
        return ",".join(map(short_name, self.devices.without(absent)[1]))


def _full(*names: str) -> list[str]:
    return [device_name(name).full for name in names]


ALL_GPUS = Machines(*(_worker(task, OLD_GPU) for task in range(3)))
NO_GPU, ONE_NEW = _worker(1), _worker(1, NEW_GPU)
GPU_JOB, CPU_JOB = LeftOut(kind=OLD_GPU), LeftOut(kind=CPU)


@pytest.mark.parametrize("left_out", [LeftOut(), GPU_JOB])
def test_a_complete_job_uses_the_first_devices(
    monkeypatch: pytest.MonkeyPatch, left_out: LeftOut
) -> None:
    job = Job(monkeypatch, ALL_GPUS, 2, left_out)
    assert job.without() == "worker:0/gpu:0,worker:1/gpu:0"
    assert job.without(0) == "worker:1/gpu:0,worker:2/gpu:0"
    assert job.without(0, 1) == "worker:2/gpu:0"


@pytest.mark.parametrize("other", [NO_GPU, ONE_NEW])
def test_a_job_keeps_its_kind_also_if_it_is_complete(
    monkeypatch: pytest.MonkeyPatch, other: WorkerDescription
) -> None:
    machines = Machines(_worker(0, OLD_GPU), other, _worker(2, OLD_GPU, NEW_GPU))
    job = Job(monkeypatch, machines, 4, GPU_JOB)
    assert job.without() == "worker:0/gpu:0,worker:2/gpu:0"
    names = ["worker:0/gpu:0", "worker:1/gpu:0", "worker:2/gpu:0", "worker:2/gpu:1"]
    named = Job(monkeypatch, machines, names, GPU_JOB)
    assert named.without() == "worker:0/gpu:0,worker:2/gpu:0"


def test_a_job_that_loses_all_gpus_does_not_use_cpu_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machines = Machines(_worker(0), _worker(1), _worker(2))
    job = Job(monkeypatch, machines, 2, GPU_JOB)
    assert job.without() == ""
    lack = job.devices.lack(())
    assert lack.startswith("0 of 2 devices can be used")
    assert "GPU Old" in lack
    other = Machines(*(_worker(task, NEW_GPU) for task in range(3)))
    lack = Job(monkeypatch, other, 2, GPU_JOB).devices.lack(())
    assert "model: Old before, New now" in lack


def test_a_job_on_cpu_devices_does_not_use_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Job(monkeypatch, ALL_GPUS, 3, CPU_JOB)
    assert job.without() == "worker:0/cpu:0,worker:1/cpu:0,worker:2/cpu:0"
    assert job.without(1) == "worker:0/cpu:0,worker:2/cpu:0"


def test_a_first_start_without_gpus_needs_all_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others may have GPUs."""
    machines = Machines(_worker(0), _worker(1), _worker(2))
    job = Job(monkeypatch, machines, 3)
    assert "GPU" in job.devices.lack({2})
    assert job.devices.lack(()) == ""
    assert Job(monkeypatch, ALL_GPUS, 3).devices.lack({2}) == ""
    assert Job(monkeypatch, machines, 3, CPU_JOB).devices.lack({2}) == ""
    named = Job(monkeypatch, machines, ["worker:0/cpu:0", "worker:2/cpu:0"])
    assert named.devices.lack({2}) == ""


def test_a_lack_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, ALL_GPUS, 3, GPU_JOB, min_devices=2)
    assert job.devices.lack({1}) == ""
    assert job.devices.lack({0, 1}).startswith("1 of 3 devices")
    replicas = Asked(3, Cut(3, 1), 3, 2)  # With two devices left, it would use one.
    devices = JobDevices(replicas, job.policy, Cluster(ADDRESSES))
    assert devices.lack({1}).startswith("1 of 3 devices")
    left_out = LeftOut(too_few=2, misfit="it does not fit", kind=OLD_GPU)
    job = Job(monkeypatch, ALL_GPUS, 3, left_out)
    assert job.devices.lack(()) == ""
    assert job.devices.lack({1}) == "On 2 devices it does not fit"
    job = Job(monkeypatch, Machines(None, *ALL_GPUS.workers[1:]), 3, GPU_JOB)
    assert job.devices.lack(()) == "Cannot reach one"
    assert job.devices.lack({0}) == ""


def test_a_job_gains_only_by_more_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, ALL_GPUS, 2, GPU_JOB)
    job.devices.used = 1
    assert job.devices.gains({0})
    job.devices.used = 2
    assert not job.devices.gains(())
    job = Job(monkeypatch, Machines(None, *ALL_GPUS.workers[1:]), 3, GPU_JOB)
    assert not job.devices.gains(())


def test_only_the_start_waits_for_busy_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that are used may be busy, so a job that could grow does not ask them."""
    machines = Machines(*ALL_GPUS.workers)
    job = Job(monkeypatch, machines, 3, GPU_JOB)
    assert job.devices.lack({1}) == ""
    assert job.without(1) == "worker:0/gpu:0,worker:2/gpu:0"
    job.devices.used = 2
    assert job.devices.gains(())
    assert job.devices.gains(())  # The worker may have restarted since.
    start = [([0, 2], False), ([0, 2], True)]
    assert machines.found == [*start, ([1], False), ([1], False)]


def test_a_failed_device_is_left_out_until_a_device_is_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two = Machines(_worker(0, OLD_GPU, OLD_GPU), *ALL_GPUS.workers[1:])
    (failed,) = _full("worker:0/gpu:0")
    left_out = LeftOut(devices={failed: 2}, kind=OLD_GPU)
    assert Job(monkeypatch, two, 1, left_out).without() == "worker:0/gpu:1"
    assert Job(monkeypatch, ALL_GPUS, 1, left_out).without() == "worker:0/gpu:0"


def test_no_worker_lends_more_cpu_devices_in_place_of_a_failed_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machines = Machines(_worker(0), _worker(1), _worker(2))
    (failed,) = _full("worker:1/cpu:0")
    left_out = LeftOut(devices={failed: 4}, kind=CPU)
    job = Job(monkeypatch, machines, 3, left_out)
    assert job.without() == "worker:0/cpu:0,worker:2/cpu:0"


def test_a_job_is_complete_without_a_spare_worker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    devices = Job(monkeypatch, ALL_GPUS, 2).devices
    assert devices.is_complete({1})
    assert not devices.is_complete({0, 1})
    silent = Machines(None, *ALL_GPUS.workers[1:])
    assert not Job(monkeypatch, silent, 2).devices.is_complete({1})
    # The spare worker of a job that has not started may have the GPUs.
    machines = Machines(_worker(0), _worker(1), _worker(2))
    assert not Job(monkeypatch, machines, 1).devices.is_complete({1})


@pytest.mark.parametrize(
    ("worker", "words"),
    [
        (_worker(1, OLD_GPU, cpus=1), ""),
        (_worker(1, NEW_GPU, OLD_GPU), ""),
        (NO_GPU, "GPU before, CPU now"),
        (ONE_NEW, "Old before, New now"),
        (_worker(2, OLD_GPU), "worker:2 there"),
        (None, "describe"),
    ],
)
def test_a_worker_fits_if_it_has_a_device_of_the_jobs_kind(
    monkeypatch: pytest.MonkeyPatch, worker: Any, words: str
) -> None:
    monkeypatch.setattr(job_devices, "is_busy", lambda address: False)
    machines = Machines(None, worker, None)
    misfit = Job(monkeypatch, machines, 2, GPU_JOB).devices.misfit(1)
    assert words in misfit
    assert bool(misfit) == bool(words)


def test_a_worker_says_that_it_is_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_devices, "is_leaving", lambda address: address == "b:1")
    devices = Job(monkeypatch, ALL_GPUS, 2, GPU_JOB).devices
    assert [devices.is_leaving(task) for task in range(3)] == [False, True, False]


def test_a_busy_worker_fits_and_a_foreign_server_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = Job(monkeypatch, Machines(None, None, None), 2, GPU_JOB)
    monkeypatch.setattr(job_devices, "is_busy", lambda address: True)
    assert job.devices.misfit(1) == ""
    monkeypatch.setattr(job_devices, "read_worker", lambda address: None)
    assert "version" in job.devices.misfit(1)
