"""A process finds its cluster by its flag, or from its scheduler."""

from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.scheduler_environment import cluster_resolvers
from lingvo_pipe.pipeline.devices.scheduler_environment.membership import (
    Membership,
    find_membership,
)
from tests.support.errors import fails

TF_CONFIG = json.dumps(
    {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
)


@pytest.fixture(autouse=True)
def _no_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TF_CONFIG", raising=False)


def test_without_flag_and_scheduler_there_is_no_cluster() -> None:
    assert find_membership(None) == Membership("trainer", None, None)
    assert find_membership(None, "decoder", 3) == Membership("decoder", 3, None)


def test_the_flag_goes_before_tf_config(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TF_CONFIG", TF_CONFIG)
    given = Membership("trainer", None, Cluster(("x:1",)))
    assert find_membership("worker=x:1") == given
    found = Membership("worker", 1, Cluster(("a:1", "b:1")), "TF_CONFIG")
    assert find_membership(None) == find_membership("tf_config") == found


@pytest.mark.parametrize(
    ("flag", "text", "path", "got"),
    [
        ("tf_config", "", "TF_CONFIG", ""),
        (None, "{}", "TF_CONFIG", "{}"),
        ("slrum", "", "--cluster", "slrum"),
        ("slurm:x", "", "--cluster", "slurm:x"),
        ("", "", "--cluster", ""),
    ],
)
def test_unknown_sources_are_refused(
    flag: str | None, text: str, path: str, got: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TF_CONFIG", text)
    with fails(path=path, got=got) as error:
        find_membership(flag)
    assert ("mean 'slurm'?" in error.value.hint) == got.startswith("sl")


def _set_slurm(
    patch: pytest.MonkeyPatch, nodes: str, tasks: str, number: int, rank: int, node: str
) -> None:
    values = {
        "SLURM_JOB_ID": "12345",
        "SLURM_PROCID": rank,
        "SLURM_STEP_NUM_TASKS": number,
        "SLURM_STEP_NODELIST": nodes,
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURMD_NODENAME": node,
    }
    for name, value in values.items():
        patch.setenv(name, str(value))


@pytest.mark.parametrize(
    ("nodes", "per_node", "layout"),
    [
        ("n1,n2", "1(x2)", ["n1", "n2"]),
        ("n[2,10]", "1(x2)", ["n2", "n10"]),  # Not in the order of names.
        ("n[01-03]", "2(x2),1", ["n01", "n01", "n02", "n02", "n03"]),
        ("b,a", "1,3", ["b", "a", "a", "a"]),
        ("gpu", "4", ["gpu"] * 4),
    ],
)
def test_task_0_of_slurm_trains_and_the_others_are_its_workers(
    nodes: str, per_node: str, layout: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks of one node have ports of their own, and all tasks the same cluster."""
    first = 10_000 + 345 * 16
    addresses = [
        f"{node}:{first + offset}"
        for node, tasks in itertools.groupby(layout)
        for offset, _ in enumerate(tasks)
    ]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    for rank, node in enumerate(layout):
        _set_slurm(monkeypatch, nodes, per_node, len(layout), rank, node)
        found = find_membership("slurm")
        assert found.cluster == Cluster(tuple(addresses[1:]), addresses[0])
        assert found.job == ("worker" if rank else "trainer")
        assert found.task == (rank - 1 if rank else None)
        assert found.ends_with_trainer
    # Slurm assigns GPUs to tasks.
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_other_layouts_of_slurm_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _set_slurm(monkeypatch, "n[1-2]", "2(x2)", 4, 1, "n2")
    with fails(path="Slurm's worker 0", got="n2"):
        find_membership("slurm")
    _set_slurm(monkeypatch, "n1", "1", 1, 0, "n1")
    with fails(path="Slurm", got=["trainer", "worker"]):
        find_membership("slurm")
    _set_slurm(monkeypatch, "n[1-", "1", 1, 0, "n1")
    with pytest.raises(UserValueError, match=r"--cluster=slurm.*n\[1-.*--ntasks="):
        find_membership("slurm")
    monkeypatch.delenv("SLURM_STEP_NUM_TASKS")
    with pytest.raises(UserValueError, match="--cluster=slurm.*SLURM_STEP_NUM_TASKS"):
        find_membership("slurm")


class FakeKubernetes:
    """A stand-in for the package kubernetes, in a pod.

    Attributes:
        answers: answers one after another, the last one forever: (name, phase, address)
            of each pod, or an error.
        asked: (namespace, labels) of each call.
    """

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, *answers: Any):
        self.answers = list(answers)
        self.asked: list[tuple[str, str]] = []
        config = SimpleNamespace(load_incluster_config=lambda: None)
        client = SimpleNamespace(CoreV1Api=lambda: self)
        patch.setitem(sys.modules, "kubernetes", SimpleNamespace(config=config))
        patch.setitem(sys.modules, "kubernetes.config", config)
        patch.setitem(sys.modules, "kubernetes.client", client)
        (folder / "namespace").write_text("ours\n")
        patch.setattr(cluster_resolvers, "_NAMESPACE", folder / "namespace")
        patch.setattr(cluster_resolvers, "_POLL_SECONDS", 0.0)

    def list_namespaced_pod(self, namespace: str, **options: Any) -> Any:
        self.asked.append((namespace, options["label_selector"]))
        answer = self.answers.pop(0) if self.answers[1:] else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(
            items=[
                SimpleNamespace(
                    metadata=SimpleNamespace(name=name),
                    status=SimpleNamespace(phase=phase, pod_ip=ip, host_ip="node"),
                )
                for name, phase, ip in answer
            ]
        )


PODS = [("w-10", "Running", "10.0.0.3"), ("w-9", "Running", "fd00::9")]
CLUSTER = Cluster(("[fd00::9]:2222", "10.0.0.3:2222"))


@pytest.mark.parametrize(
    ("host", "job", "task"), [("w-9", "worker", 0), ("w-10", "worker", 1)]
)
def test_pods_are_workers_in_the_order_of_their_numbers(
    host: str, job: str, task: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pending = [PODS[0], ("w-9", "Pending", None)]
    kubernetes = FakeKubernetes(monkeypatch, tmp_path, pending, PODS)
    monkeypatch.setenv("HOSTNAME", host)
    found = find_membership("kubernetes:app=w")
    assert found == Membership(job, task, CLUSTER, "Kubernetes")
    assert kubernetes.asked == [("ours", "app=w")] * 2


def test_another_pod_is_the_trainer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kubernetes = FakeKubernetes(monkeypatch, tmp_path, PODS)
    monkeypatch.setenv("HOSTNAME", "w-1")
    found = find_membership("kubernetes")
    assert found == Membership("trainer", None, CLUSTER, "Kubernetes")
    assert kubernetes.asked == [("ours", cluster_resolvers.LABELS)]


def test_errors_of_kubernetes_are_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "kubernetes.config", None)
    with pytest.raises(
        ConnectionError, match=r"--cluster=kubernetes.*\bpip\b.*--cluster=worker="
    ):
        find_membership("kubernetes")
    forbidden = OSError("Forbidden\nmore")
    FakeKubernetes(monkeypatch, tmp_path, forbidden)
    with pytest.raises(ConnectionError, match=r"\bours\b.*\bForbidden\b.*\bRole\b"):
        find_membership("kubernetes")
    FakeKubernetes(monkeypatch, tmp_path, [])
    with fails(path="Kubernetes", got=[]):
        find_membership("kubernetes")
    FakeKubernetes(monkeypatch, tmp_path, [("w-0", "Pending", None)])
    monkeypatch.setattr(cluster_resolvers, "_PODS_SECONDS", 0.1)
    with pytest.raises(
        ConnectionError, match=r"app=lingvo-pipe-worker.*\bw-0\b.*Pending"
    ):
        find_membership("kubernetes")
