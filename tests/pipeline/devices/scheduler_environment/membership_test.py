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
    ("arguments", "pattern"),
    [
        (("worker", 1, "trainer"), r"--job\b.*\bX\b.*\bworker\b.*\btrainer\b"),
        (
            ("chief", 0, "worker"),
            r"--job\b.*\bX\b.*\btrainer\b.*\bworker\b.*--cluster\b",
        ),
        (("evaluator", 0, "trainer"), r"--job\b.*\bX\b.*\bevaler\b.*\btrainer\b"),
        (("worker", 1, None, 0), r"--task\b.*\bX\b.* 1\b.* 0\b"),
        (("chief", 0, None, 0), r"--task\b.*\bX\b.*\btrainer\b.* 0\b"),
    ],
)
def test_contradicting_flags_are_refused(
    arguments: tuple[Any, ...], pattern: str
) -> None:
    with pytest.raises(ValueError, match=pattern):
        _membership(*arguments)


@pytest.mark.parametrize(
    ("jobs", "pattern"),
    [
        ({}, r"\bX\b.*'worker'.*Do\."),
        ({"chief": ["c:1"]}, r"\bX\b.*\['trainer'\].*Do\."),
        (
            {"chief": ["c:1", "d:1"], "worker": ["a:1"]},
            r"\bX\b.*\['c:1', 'd:1'\].*Do\.",
        ),
        ({"worker": ["a"]}, r"\bX\b.*host:port.*\['a'\].*Do\."),
        ({"chief": ["a:1"], "worker": ["a:1"]}, r"\bX\b.*\['a:1'\].*Do\."),
    ],
)
def test_other_clusters_are_refused(jobs: Any, pattern: str) -> None:
    with pytest.raises(ValueError, match=pattern):
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
