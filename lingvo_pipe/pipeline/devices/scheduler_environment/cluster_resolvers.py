"""Finds the clusters of Slurm and Kubernetes."""

import importlib
import os
import re
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from lingvo_pipe.core.errors import (
    UserClusterError,
    UserConnectionError,
    UserValueError,
    Words,
)
from lingvo_pipe.pipeline.devices.cluster_spec import (
    TRAINER_JOB,
    SchedulersCluster,
    split_address,
)
from lingvo_pipe.pipeline.devices.device_names import WORKER_JOB

_SLURM_HINT = "Run srun --ntasks=N, N > 1: task 0 trains, the others are workers."
# Jobs of one machine get different ports. These repeat after _NUM_JOBS jobs.
_FIRST_PORT, _NUM_JOBS, _PORTS_PER_JOB = 10_000, 1000, 16

LABELS = "app=lingvo-pipe-worker"
_KUBERNETES_HINT = (
    f"Label the workers' pods {LABELS}, or give their label: "
    "--cluster=kubernetes:app=workers."
)
_KUBERNETES_PORT = 2222
# Seconds in which all pods must come up, and in which Kubernetes answers.
_PODS_SECONDS = 120.0
_ANSWER_SECONDS = 10.0
_POLL_SECONDS = 1.0
_REFUSED = (401, 403)  # HTTP: not known, not permitted.
_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_INSTEAD = (
    "Or name the pods of a StatefulSet, which needs none of this: "
    "--cluster=worker=worker-0.workers:2222,worker-1.workers:2222."
)


def from_slurm() -> SchedulersCluster:
    """Returns the cluster of this Slurm step. Task 0 is the trainer.

    Raises:
        ValueError: if this is no task of srun, or a node's tasks are not consecutive.
    """
    try:
        num_tasks = int(os.environ["SLURM_STEP_NUM_TASKS"])
        resolver = _SlurmInOrder(
            {TRAINER_JOB: 1, WORKER_JOB: num_tasks - 1},
            port_base=_FIRST_PORT
            + int(os.environ["SLURM_JOB_ID"]) % _NUM_JOBS * _PORTS_PER_JOB,
            # Slurm itself assigns GPUs to tasks. The resolver would renumber them, and
            # allows no more tasks than there are GPUs.
            gpus_per_node=num_tasks,
            gpus_per_task=1,
            auto_set_gpu=False,
        )
        jobs = resolver.cluster_spec().as_dict()
    except (KeyError, RuntimeError, ValueError) as error:
        is_absent = isinstance(error, KeyError)
        reason = f"{error.args[0]} is not set" if is_absent else error
        raise UserValueError(
            f"--cluster=slurm is for the tasks of srun; {reason}.",
            path="--cluster",
            hint=_SLURM_HINT,
        ) from error
    jobs = {
        job: [address.partition("@")[2] for address in tasks]
        for job, tasks in jobs.items()
    }
    task_type, task_index = resolver.get_task_info()
    address = jobs[task_type][task_index]
    node = os.environ.get("SLURMD_NODENAME")
    if node not in (None, split_address(address)[0]):
        raise UserValueError(
            path=f"Slurm's {task_type} {task_index}",
            expected=f"{address}, since tasks' addresses are counted block by block",
            got=Words(node),
            hint="Run srun --distribution=block.",
        )
    return SchedulersCluster("Slurm", jobs, task_type, task_index, _SLURM_HINT, True)


class _SlurmInOrder(tf.distribute.cluster_resolver.SlurmClusterResolver):
    """A resolver that keeps Slurm's order of nodes. TensorFlow puts n10 before n2."""

    def _resolve_task_configuration(self) -> dict[str, int]:
        num_tasks = super()._resolve_task_configuration()
        return {f"{i:06}@{host}": n for i, (host, n) in enumerate(num_tasks.items())}


def from_kubernetes(labels: str) -> SchedulersCluster:
    """Returns a cluster whose workers are the pods with labels such as `app=workers`.

    Raises:
        ConnectionError: if Kubernetes cannot list the pods, or not all pods run.
    """
    workers = _running_pods(labels)
    own_name = os.environ.get("HOSTNAME", "")
    task = list(workers).index(own_name) if own_name in workers else None
    return SchedulersCluster(
        "Kubernetes",
        {WORKER_JOB: list(workers.values())} if workers else {},
        None if task is None else WORKER_JOB,
        task,
        _KUBERNETES_HINT,
    )


def _running_pods(labels: str) -> dict[str, str]:
    namespace = _Namespace()
    deadline = time.monotonic() + _PODS_SECONDS
    while True:
        pods = namespace.pods(labels)
        absent = [pod for pod in pods if pod.status.phase != "Running"]
        if not absent:
            return {
                pod.metadata.name: _address(pod.status.pod_ip or "") for pod in pods
            }
        if time.monotonic() > deadline:
            raise UserClusterError(
                f"Not all pods labeled {labels} run after {_PODS_SECONDS:.0f} "
                f"seconds: {absent[0].metadata.name} is {absent[0].status.phase}.",
                hint=f"See kubectl get pods -l {labels}.",
            )
        time.sleep(_POLL_SECONDS)


def _address(ip: str) -> str:
    host = f"[{ip}]" if ":" in ip else ip
    return f"{host}:{_KUBERNETES_PORT}"


class _Namespace:
    """The Kubernetes namespace of this pod.

    TensorFlow's resolver asks for the pods of all namespaces, puts pod-10 before pod-2,
    and takes the addresses of the pods' nodes.
    """

    def __init__(self) -> None:
        try:
            importlib.import_module("kubernetes.config").load_incluster_config()
            client = importlib.import_module("kubernetes.client")
            self._name = _NAMESPACE.read_text(encoding="utf-8").strip()
        except ImportError as error:
            raise UserConnectionError(
                "--cluster=kubernetes needs the package kubernetes.",
                hint=f"Run pip install kubernetes. {_INSTEAD}",
            ) from error
        except Exception as error:  # ConfigException, whose module may be missing.
            raise UserConnectionError(
                "--cluster=kubernetes is for pods with a service account; "
                f"{str(error).rstrip('.')}.",
                hint=_INSTEAD,
            ) from error
        self._api = client.CoreV1Api()

    def pods(self, labels: str) -> list[Any]:
        try:
            answer = self._api.list_namespaced_pod(
                self._name, label_selector=labels, _request_timeout=_ANSWER_SECONDS
            )
        except Exception as error:  # ApiException, or urllib3's.
            reason = str(getattr(error, "reason", None) or error).splitlines()[0]
            is_refused = getattr(error, "status", None) in _REFUSED
            kind = UserConnectionError if is_refused else UserClusterError
            raise kind(
                "--cluster=kubernetes cannot list the pods of the namespace "
                f"{self._name}: {reason}.",
                hint="Bind a Role with get and list of pods to the service account. "
                f"{_INSTEAD}",
            ) from error
        return sorted(answer.items, key=_name_by_number)


def _name_by_number(pod: Any) -> str:
    return re.sub(r"\d+", lambda number: number[0].zfill(9), pod.metadata.name)
