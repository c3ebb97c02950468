"""The devices that are left are used as far as a model can be cut for them."""

from __future__ import annotations

from typing import Any

import pytest

from lingvo_pipe.cli.elastic_devices import (
    Cut,
    check_elastic,
    check_min_devices,
    cpu_share,
    cut_for,
    first_devices,
    set_cut,
)
from lingvo_pipe.pipeline.devices.device_choice import TaskDevices, choose_devices
from lingvo_pipe.pipeline.devices.device_names import short_name
from lingvo_pipe.pipeline.pipelining_layer import PipeliningLayer
from tests.support.errors import fails


@pytest.mark.parametrize(
    ("number", "before", "shards", "cut"),
    [
        (3, Cut(1, 4), 1, Cut(1, 3)),
        (1, Cut(1, 4), 1, Cut(1, 1)),
        (3, Cut(2, 2), 2, Cut(1, 2)),
        (7, Cut(4, 2), 4, Cut(2, 2)),  # Three replicas do not divide four shards.
        (7, Cut(4, 2), 12, Cut(3, 2)),
        (1, Cut(2, 2), 2, Cut(1, 1)),
        (3, Cut(4, 1), 4, Cut(2, 1)),
    ],
)
def test_replicas_are_given_up_before_stages_grow(
    number: int, before: Cut, shards: int, cut: Cut
) -> None:
    assert cut_for(number, before, shards) == cut


def test_a_cut_fits_and_keeps_the_shards_whole() -> None:
    for replicas in range(1, 7):
        for per_replica in range(1, 5):
            before = Cut(replicas, per_replica)
            for number in range(1, before.num_devices):
                for shards in (replicas, 2 * replicas, 6 * replicas):
                    cut = cut_for(number, before, shards)
                    assert 1 <= cut.num_devices <= number
                    assert shards % cut.replicas == 0
                    assert cut.per_replica == min(per_replica, number)


def _pipeline(**params: Any) -> Any:
    return PipeliningLayer.Params().Set(**params)


def test_the_shards_stay_and_a_memory_limit_chooses_the_stages() -> None:
    p = _pipeline(num_replicas=4, num_micro_batches=8, splits=2)
    set_cut(p, Cut(2, 2))
    assert (p.num_replicas, p.num_batch_shards, p.splits) == (2, 4, 2)
    set_cut(p.Set(memory_limit=1e9), Cut(1, 2))
    assert (p.num_replicas, p.num_batch_shards, p.splits) == (1, 4, "auto")


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("splits", {"splits": [1, 2]}),
        ("devices", {"devices": ["cpu:0"]}),
        ("schedule", {"schedule": "mine.csv"}),
        ("slices", {"slices": "auto", "splits": "auto"}),
        ("num_micro_batches", {"num_micro_batches": "auto", "splits": "auto"}),
        ("num_replicas", {"num_replicas": 2, "splits": "auto", "schedule": "auto"}),
    ],
)
def test_a_model_that_only_fits_its_devices_is_refused(
    name: str, params: dict[str, Any]
) -> None:
    with fails(path=f"task.pipeline.{name}"):
        check_elastic(_pipeline(**params))
    check_elastic(_pipeline(splits="auto", schedule="auto"))


def test_fewer_devices_than_asked_for_are_no_minimum() -> None:
    check_min_devices(2, 2)
    with fails(path="--min_devices"):
        check_min_devices(3, 2)


def _first(number: int, tasks: list[TaskDevices], *failed: str) -> str:
    names = first_devices(number, tasks, lambda name: name.short not in failed)
    return ",".join(map(short_name, names))


def test_a_failed_device_is_replaced_if_there_are_others() -> None:
    gpus = [TaskDevices(None, 3, 8)]
    assert _first(2, gpus, "gpu:0") == "gpu:1,gpu:2"
    assert _first(3, gpus, "gpu:1") == "gpu:0,gpu:2"
    assert _first(2, [TaskDevices(0, 0, 1), TaskDevices(2, 0, 1)]) == (
        "worker:0/cpu:0,worker:2/cpu:0"
    )
    assert _first(2, []) == ""


@pytest.mark.parametrize("number", range(1, 9))
def test_tasks_share_cpu_devices_as_a_complete_cluster_does(number: int) -> None:
    tasks = [TaskDevices(task, 0, 8) for task in (None, 0, 1)]
    workers = [name.worker for name in choose_devices(number, tasks)]
    shares = [cpu_share(number, position, 3) for position in range(3)]
    assert shares == [workers.count(task) for task in (None, 0, 1)]
