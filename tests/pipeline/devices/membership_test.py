"""What a process is in a cluster follows from its scheduler and agrees with flags."""

from __future__ import annotations

import re
from typing import Any

import pytest

from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.membership import (
    Membership,
    SchedulersCluster,
    membership,
)

WORKERS = ("a:1", "b:1")
ALONE = Cluster(WORKERS)
LED = Cluster(WORKERS, "c:1")
LED_BY_OTHER = Cluster(WORKERS, "c:0")


def _settled(
    kind: str | None, index: int = 0, job: str | None = None, task: int | None = None
) -> Membership:
    jobs: dict[str, tuple[str, ...]] = {"worker": WORKERS}
    if kind not in (None, "trainer"):
        jobs |= {"chief" if kind == "worker" else str(kind): ("c:1",)}
    return membership(SchedulersCluster("X", jobs, kind, index, "Do."), job, task)


@pytest.mark.parametrize(
    ("settled", "job", "task", "cluster"),
    [
        (_settled("chief"), "trainer", None, LED),
        (_settled("master"), "trainer", None, LED),
        (_settled("trainer"), "trainer", None, ALONE),
        (_settled("worker", 1), "worker", 1, LED),
        (_settled("evaluator"), "evaler", None, None),
        (_settled(None), "trainer", None, ALONE),
        (_settled(None, 0, "worker", 1), "worker", 1, ALONE),
        (_settled("worker", 1, "worker", 1), "worker", 1, LED),
        (_settled("chief", 0, "decoder"), "decoder", None, LED_BY_OTHER),
        (_settled("evaluator", 0, "exporter"), "exporter", None, None),
    ],
)
def test_a_process_is_what_its_scheduler_says(
    settled: Membership, job: str, task: int | None, cluster: Cluster | None
) -> None:
    assert (settled.job, settled.task, settled.cluster) == (job, task, cluster)


@pytest.mark.parametrize(
    ("told", "pattern"),
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
def test_flags_may_not_say_otherwise(told: tuple[Any, ...], pattern: str) -> None:
    with pytest.raises(ValueError, match=pattern):
        _settled(*told)


@pytest.mark.parametrize(
    ("jobs", "pattern"),
    [
        ({}, r"\bworkers\b.*\bX\b.*Do\."),
        ({"chief": ["c:1"]}, r"\bX\b.*\['trainer'\].*Do\."),
        (
            {"chief": ["c:1", "d:1"], "worker": ["a:1"]},
            r"\bX\b.*\['c:1', 'd:1'\].*Do\.",
        ),
        ({"worker": ["a"]}, r"host:port.*\['a'\].*\bX\b.*Do\."),
        ({"chief": ["a:1"], "worker": ["a:1"]}, r"\['a:1'\].*\bX\b.*Do\."),
    ],
)
def test_what_is_no_cluster_is_refused(jobs: Any, pattern: str) -> None:
    with pytest.raises(ValueError, match=pattern):
        membership(SchedulersCluster("X", jobs, None, None, "Do."))


@pytest.mark.parametrize(
    ("kind", "note"),
    [
        ("worker", "X: worker:1, of 2 workers."),
        ("trainer", "X: trainer, of 2 workers."),
        ("evaluator", "X: evaler beside a cluster, on this machine."),
    ],
)
def test_it_is_said(kind: str, note: str) -> None:
    index = 1 if kind == "worker" else 0
    assert _settled(kind, index).note() == note


def test_workers_that_none_of_them_trains_are_told() -> None:
    """TensorFlow's own strategies take worker 0 for the chief where there is none."""
    jobs = {"worker": ("a:1", "b:1")}
    member = membership(SchedulersCluster("X", jobs, "worker", 0, "Do."))
    assert re.search(r"\bX\b.*\bworker:0\b.*\b2\b.*\btrainer\b", member.note())
