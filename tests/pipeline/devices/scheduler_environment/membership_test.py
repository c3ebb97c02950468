"""A process's job follows from its scheduler, and flags must agree."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lingvo_pipe.pipeline.devices.cluster_spec import Cluster, SchedulersCluster
from lingvo_pipe.pipeline.devices.scheduler_environment.membership import (
    Membership,
    membership,
)
from tests.support.errors import fails

WORKERS = ("a:1", "b:1")
ALONE = Cluster(WORKERS)
LED = Cluster(WORKERS, "c:1")
LED_BY_OTHER = Cluster(WORKERS, "c:0")


def _membership(
    kind: str | None, index: int = 0, job: str | None = None, task: int | None = None
) -> Membership:
    jobs: dict[str, tuple[str, ...]] = {"worker": WORKERS}
    if kind not in (None, "trainer"):
        jobs |= {"chief" if kind == "worker" else str(kind): ("c:1",)}
    return membership(SchedulersCluster("X", jobs, kind, index, "Do."), job, task)


@pytest.mark.parametrize(
    ("found", "job", "task", "cluster"),
    [
        (_membership("chief"), "trainer", None, LED),
        (_membership("master"), "trainer", None, LED),
        (_membership("trainer"), "trainer", None, ALONE),
        (_membership("worker", 1), "worker", 1, LED),
        (_membership("evaluator"), "evaler", None, None),
        (_membership(None), "trainer", None, ALONE),
        (_membership(None, 0, "worker", 1), "worker", 1, ALONE),
        (_membership("worker", 1, "worker", 1), "worker", 1, LED),
        (_membership("chief", 0, "decoder"), "decoder", None, LED_BY_OTHER),
        (_membership("evaluator", 0, "exporter"), "exporter", None, None),
    ],
)
def test_the_scheduler_gives_job_task_and_cluster(
    found: Membership, job: str, task: int | None, cluster: Cluster | None
) -> None:
    assert (found.job, found.task, found.cluster) == (job, task, cluster)


@pytest.mark.parametrize(
    ("arguments", "path", "got"),
    [
        (("worker", 1, "trainer"), "--job", "trainer"),
        (("chief", 0, "worker"), "--job", "worker"),
        (("evaluator", 0, "trainer"), "--job", "trainer"),
        (("worker", 1, None, 0), "--task", 0),
        (("chief", 0, None, 0), "--task", 0),
    ],
)
def test_contradicting_flags_are_refused(
    arguments: tuple[Any, ...], path: str, got: object
) -> None:
    with fails(path=path, got=got) as error:
        _membership(*arguments)
    assert "X" in error.value.expected


@pytest.mark.parametrize(
    ("jobs", "got"),
    [
        ({}, []),
        ({"chief": ["c:1"]}, ["trainer"]),
        ({"chief": ["c:1", "d:1"], "worker": ["a:1"]}, ["c:1", "d:1"]),
    ],
)
def test_other_clusters_are_refused(jobs: Any, got: object) -> None:
    with fails(path="X", got=got, hint="Do."):
        membership(SchedulersCluster("X", jobs, None, None, "Do."))


@pytest.mark.parametrize(
    ("kind", "note"),
    [
        ("worker", "X: worker:1, of 2 workers."),
        ("trainer", "X: trainer, of 2 workers."),
        ("evaluator", "X: evaler outside the cluster, on this machine."),
    ],
)
def test_notes_name_job_and_cluster(kind: str, note: str) -> None:
    index = 1 if kind == "worker" else 0
    assert _membership(kind, index).note() == note


def test_workers_without_a_trainer_are_noted() -> None:
    """TensorFlow's own strategies take worker 0 for the chief where there is none."""
    jobs = {"worker": ("a:1", "b:1")}
    member = membership(SchedulersCluster("X", jobs, "worker", 0, "Do."))
    assert re.search(r"\bX\b.*\bworker:0\b.*\b2\b.*\btrainer\b", member.note())
