"""An elastic job chooses among the devices that are left, and restarts without some."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
import tensorflow as tf

from lingvo_pipe.cli import elastic_job, job_devices
from lingvo_pipe.cli.elastic_devices import Cut
from lingvo_pipe.cli.elastic_job import ElasticJob
from lingvo_pipe.cli.job_devices import Asked, JobDevices
from lingvo_pipe.core.errors import UserClusterError
from lingvo_pipe.fault_tolerance.elastic_workers import ElasticWorkers
from lingvo_pipe.fault_tolerance.left_out import LeftOut
from lingvo_pipe.layers.dense import FCLayer
from lingvo_pipe.pipeline.devices.cluster import ReadyWorkers
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.device_names import device_name
from lingvo_pipe.pipeline.devices.handshake import WorkerDescription
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from lingvo_pipe.pipeline.stage_choice.memory_limit import DoesNotFitError
from lingvo_pipe.planner.search.fitting_plan import NothingFits
from lingvo_pipe.training.run.run_parts import RunPart
from tests.support.errors import fails

CPU = {"type": "CPU"}
ZERO, ONE = (device_name(f"cpu:{i}").full for i in range(2))
FAILED = device_name("cpu:4095").full  # TensorFlow does not know it.


class Restarted(BaseException):
    """Raised where a process would restart, with the cause and what is left out."""


class FakeRestarts:
    """Restarts that raise."""

    def again(
        self,
        client: int | None,
        cause: str,
        stop: Callable[[], None],
        **variables: str,
    ) -> NoReturn:
        stop()
        raise Restarted(cause, LeftOut.read(variables))


class Watch:
    """A watch over workers that all run."""

    signal: signal.Signals | None = None

    def begin(self) -> None:
        pass

    def has_signal(self) -> bool:
        return self.signal is not None

    def lost(self) -> list[str]:
        return []


class NoSignal:
    def get(self) -> None:
        return None


@pytest.fixture(autouse=True)
def _no_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic_job, "FirstSignal", NoSignal)


@pytest.fixture(autouse=True)
def _one_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """All devices have one kind, and all workers four of them."""

    def find_workers(cluster: Cluster, awaits_busy: bool) -> ReadyWorkers:
        workers = {
            task: WorkerDescription(
                *("1", "2", task, cluster.workers),
                *(("CPU",) * 4, {"CPU": CPU}, "h", 1),
            )
            for task in cluster.present
        }
        return ReadyWorkers("h", workers)

    monkeypatch.setattr(job_devices, "find_workers", find_workers)
    monkeypatch.setattr(job_devices, "local_kind", lambda *unused: CPU)
    monkeypatch.setattr(elastic_job, "device_kinds", lambda *unused: [CPU])


def _job(
    left_out: LeftOut,
    workers: int = 0,
    min_devices: int = 1,
    ends_workers: bool = False,
) -> ElasticJob:
    cluster = Cluster(tuple(f"host{i}:1" for i in range(workers)))
    policy = ElasticWorkers(1.0, 1.0, left_out, lambda: "", lambda line: None)
    watch: Any = Watch()
    restarts: Any = FakeRestarts()
    return ElasticJob(
        min_devices,
        policy,
        restarts,
        cluster if workers else None,
        watch if workers else None,
        lambda line: None,
        ends_workers,
    )


def _pipeline(**params: Any) -> Any:
    cell = FCLayer.Params().Set(input_dim=3, output_dim=3)
    p = PipeliningLayer.Params().Set(cell_tpl=[cell] * 4, splits=4)
    return p.Set(num_micro_batches=4, **params)


def test_a_complete_job_is_any_job() -> None:
    chosen = _job(LeftOut()).choose(_pipeline(), 3)
    assert (chosen.devices, chosen.cluster, chosen.note) == (3, None, "")


def test_a_failed_device_is_left_out() -> None:
    chosen = _job(LeftOut(devices={ONE: 2})).choose(_pipeline(), 3)
    assert chosen.devices == [device_name(x).full for x in ("cpu:0", "cpu:2")]
    assert chosen.note == "elastic: 2 of 3 devices; left out: cpu:1"


def test_absent_workers_are_left_out_and_replicas_with_them() -> None:
    names = [f"worker:{i}/cpu:0" for i in range(4)]
    p = _pipeline(num_replicas=2, splits=2)
    chosen = _job(LeftOut(workers=(1,)), workers=4).choose(p, names)
    assert chosen.devices == [device_name(names[i]).full for i in (0, 2)]
    assert chosen.cluster is not None
    assert list(chosen.cluster.present) == [0, 2, 3]
    assert (p.num_replicas, p.num_batch_shards) == (1, 2)


def test_workers_that_a_complete_job_leaves_out_are_named() -> None:
    names = [device_name(f"worker:{i}/cpu:0").full for i in (0, 2)]
    chosen = _job(LeftOut(workers=(1,)), workers=3).choose(_pipeline(), names)
    assert chosen.devices == names
    assert chosen.note == "elastic: 2 of 2 devices; left out: worker:1"


def test_devices_of_workers_that_the_cluster_lacks_are_refused() -> None:
    """Also if the job could continue without them."""
    names = ["worker:0/cpu:0", "worker:3/cpu:0"]
    with fails(path="devices", got=names[1:]):
        _job(LeftOut(kind=CPU), workers=2).choose(_pipeline(), names)


@pytest.mark.parametrize("ends_workers", [True, False])
def test_devices_of_this_process_need_no_workers(
    monkeypatch: pytest.MonkeyPatch, ends_workers: bool
) -> None:
    """Workers of a scheduler end if nobody answers at the trainer's address."""
    answered: list[Cluster] = []
    monkeypatch.setattr(elastic_job, "answer_workers", answered.append)
    names = ["cpu:0", "worker:0/cpu:0"]
    job = _job(LeftOut(workers=(0,)), workers=1, ends_workers=ends_workers)
    chosen = job.choose(_pipeline(), names)
    assert chosen.devices == [device_name("cpu:0").full]
    assert chosen.cluster is None
    assert len(answered) == ends_workers


def test_a_complete_job_may_need_no_workers() -> None:
    names = ["cpu:0", "cpu:1"]
    chosen = _job(LeftOut(kind=CPU), workers=1).choose(_pipeline(), names)
    assert chosen.devices == [device_name(name).full for name in names]
    assert (chosen.cluster, chosen.note) == (None, "")


def test_too_few_devices_end_a_job_on_one_machine() -> None:
    job = _job(LeftOut(devices={ONE: 2}), min_devices=2)
    with fails(UserClusterError) as error:
        job.choose(_pipeline(), 2)
    assert "1 of 2 devices" in str(error.value)
    assert error.value.hint
    with fails(path="--min_devices"):
        _job(LeftOut(), min_devices=2).choose(_pipeline(), 1)


def _fail(job: ElasticJob, error: Exception, *used: str, asked_for: int = 0) -> Any:
    if used:
        # Without workers to wait for, it chooses what it then uses.
        number = asked_for or len(used)
        asked = Asked(number, Cut(1, number), 1, job._min_devices)
        job._devices = JobDevices(asked, job._policy, None)
        job.use(used)
    with pytest.raises((Restarted, type(error))) as info, job.surviving():
        raise error
    return info.value.args if isinstance(info.value, Restarted) else None


def _misfit(left_out: LeftOut, error: Exception, asked_for: int = 2) -> Any:
    """Returns how a job of two workers restarts that uses one device, or None."""
    return _fail(_job(left_out, workers=2), error, ONE, asked_for=asked_for)


def test_a_model_that_does_not_fit_waits_for_workers_that_are_absent() -> None:
    """But not if the complete job uses no more devices: a worker is spare."""
    error = DoesNotFitError("It does not fit.\nMore.")
    assert _fail(_job(LeftOut()), error, ONE, asked_for=2) is None
    assert _misfit(LeftOut(), error) is None
    absent = LeftOut(workers=(1,))
    assert _misfit(absent, error, asked_for=1) is None
    cause, left_out = _misfit(absent, error)
    assert cause == "On 1 device the model does not fit: It does not fit."
    error.missing_bytes = 3 * 2**20
    cause, left_out = _misfit(absent, error)
    misfit = "the model does not fit: 3 MiB are missing"
    assert cause == f"On 1 device {misfit}."
    assert left_out == LeftOut((1,), {}, 1, misfit, CPU)
    names = ["worker:0/cpu:0", "worker:1/cpu:0"]
    with fails(UserClusterError) as lack:
        _job(left_out, workers=2).choose(_pipeline(), names)
    assert str(lack.value).startswith(cause)
    assert "3 GiB" in _misfit(absent, NothingFits("3 GiB"))[0]
    memory = tf.errors.ResourceExhaustedError(None, None, "OOM")
    assert "OOM" in _misfit(absent, memory)[0]


def test_a_job_restarts_without_a_device_that_failed() -> None:
    error = tf.errors.InternalError(None, None, "CUDA\nmore")
    cause, left_out = _fail(_job(LeftOut()), error, FAILED)
    assert cause == "cpu:4095 failed: CUDA."
    assert left_out == LeftOut(devices={FAILED: 4096}, kind=CPU)
    assert _fail(_job(LeftOut()), ValueError("x"), FAILED) is None
    assert _fail(_job(LeftOut()), error) is None  # Before it has any device.


def test_a_job_that_would_have_too_few_devices_ends_with_the_first_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(elastic_job, "failed_devices", lambda *unused: [ONE])
    job = _job(LeftOut(), min_devices=2)
    assert _fail(job, ValueError("CUDA"), ZERO, ONE) is None
    assert _fail(_job(LeftOut()), ValueError("CUDA"), ZERO, ONE) is not None


def test_the_devices_of_a_lost_worker_have_not_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be lost while they are asked."""
    monkeypatch.setattr(elastic_job, "failed_devices", lambda *unused: [ONE])
    monkeypatch.setattr(Watch, "lost", lambda self: ["worker:0 is gone."])
    job = _job(LeftOut(), workers=1)
    cause, left_out = _fail(job, ValueError("CUDA"), ONE)
    assert (cause, left_out) == ("worker:0 is gone.", LeftOut(kind=CPU))


def test_a_job_that_was_asked_to_end_does_not_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Watch, "signal", signal.SIGTERM)
    error = tf.errors.InternalError(None, None, "CUDA")
    assert _fail(_job(LeftOut(), workers=1), error, FAILED) is None


def test_a_full_disk_is_no_lack_of_memory() -> None:
    error = tf.errors.ResourceExhaustedError(None, None, "x; No space left on device")
    assert _misfit(LeftOut(workers=(1,)), error) is None


def test_a_job_has_one_kind_of_device(monkeypatch: pytest.MonkeyPatch) -> None:
    two = [{"type": "GPU", "model": "Old"}, {"type": "GPU", "model": "New"}]
    monkeypatch.setattr(elastic_job, "device_kinds", lambda *unused: two)
    job = _job(LeftOut())
    job.choose(_pipeline(), 2)
    with fails(path="--elastic", got="model: Old before, New now"):
        job.use([ONE])
    with fails(path="--elastic") as error:
        _job(LeftOut()).resume([RunPart(0, "", device_kinds=two)])
    assert "--devices" not in error.value.hint  # The run has both kinds already.
    unknown = {"type": "GPU", "model": ""}
    _job(LeftOut()).resume([RunPart(0, "", device_kinds=[two[0], unknown])])


def test_hosts_count_only_while_they_have_slots() -> None:
    """A run may go on without task.train.offload_slots, on GPUs of any host."""
    gpu = {"type": "GPU", "model": "Old"}
    kinds = [{**gpu, "host's processor": name} for name in ("Six", "Seven")]
    parts = [RunPart(0, "", device_kinds=kinds)]
    with fails(path="--elastic"):
        _job(LeftOut()).resume(parts, on_hosts=True)
    job = _job(LeftOut())
    job.resume(parts)
    assert job._policy.left_out.kind == gpu


def test_a_job_keeps_the_kind_of_its_run() -> None:
    job = _job(LeftOut())
    job.resume([])
    job.resume([RunPart(0, "", device_kinds=[{"type": "GPU", "model": "Old"}])])
    with fails(UserClusterError) as error:
        job.choose(_pipeline(), 2)
    assert "0 of 2 devices" in str(error.value)
    assert "GPU Old" in str(error.value)
    assert error.value.hint
    job = _job(LeftOut())
    job.resume([RunPart(0, "", device_kinds=[CPU])])
    names = [device_name(x).full for x in ("cpu:0", "cpu:1")]
    assert job.choose(_pipeline(), 2).devices == names
