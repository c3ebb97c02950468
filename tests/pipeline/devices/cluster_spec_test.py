from __future__ import annotations

import pytest

from lingvo_pipe.pipeline.devices.cluster_spec import (
    Cluster,
    checked_task,
    parse_cluster_spec,
    split_address,
)
from tests.support.errors import fails


@pytest.mark.parametrize(
    ("text", "workers"),
    [
        ("worker=localhost:2222", ["localhost:2222"]),
        (" worker=a.b-c:1, 10.0.0.7:65535 ", ["a.b-c:1", "10.0.0.7:65535"]),
        ("worker=[::1]:2222", ["[::1]:2222"]),
    ],
)
def test_workers_are_addresses(text: str, workers: list[str]) -> None:
    assert parse_cluster_spec(text) == Cluster(tuple(workers))


def test_a_trainer_may_have_an_address() -> None:
    cluster = Cluster(("a:1", "b:1"), "c:2")
    assert parse_cluster_spec("trainer=c:2@worker=a:1,b:1") == cluster
    assert parse_cluster_spec("worker=a:1,b:1@trainer=c:2") == cluster


def test_addresses_are_split() -> None:
    assert split_address("a.b:22") == ("a.b", 22)
    assert split_address("[::1]:22") == ("::1", 22)


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("a:1,b:1", None),
        ("worker=a:1@worker=b:1", None),
        ("workers=a:1", None),
        ("trainer=a:1", ["trainer"]),
        ("trainer=c:1,d:1@worker=a:1", ["c:1", "d:1"]),
        ("worker=a,b:x,c:1,d:0,e:65536", ["a", "b:x", "d:0", "e:65536"]),
        ("worker=", [""]),
        ("trainer=a:1@worker=a:1", ["a:1"]),
    ],
)
def test_other_text_is_refused(text: str, got: object) -> None:
    with fails(path="--cluster", got=text if got is None else got) as error:
        parse_cluster_spec(text)
    assert "worker=host1:port1" in error.value.hint
    assert ("mean 'worker'?" in error.value.hint) == (text == "workers=a:1")


def test_a_task_is_a_worker_of_the_cluster() -> None:
    assert checked_task(1, ["a:1", "b:1"]) == 1
    for task in (-1, 2):
        with fails(path="--task", got=task):
            checked_task(task, ["a:1", "b:1"])
