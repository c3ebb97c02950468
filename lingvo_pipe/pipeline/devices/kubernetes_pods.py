"""Asks Kubernetes for the pods that are workers."""

from __future__ import annotations

import importlib
import re
import time
from pathlib import Path
from typing import Any

import tensorflow as tf

from lingvo_pipe.pipeline.devices.device_names import WORKER_JOB

LABELS = "app=lingvo-pipe-worker"
PORT = 2222

# Seconds in which all pods may come up, and in which Kubernetes answers.
_PATIENCE = 120.0
_TO_ANSWER = 10.0
_PAUSE = 1.0
_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_INSTEAD = (
    "Or name the pods of a StatefulSet, which needs none of this: "
    "--cluster=worker=worker-0.workers:2222,worker-1.workers:2222."
)


def running_pods(labels: str) -> dict[str, str]:
    """Addresses of all pods of this namespace with these labels, by name, in order.

    Waits for those that are not running.

    Raises:
        ConnectionError: if they do not run in time, or Kubernetes doesn't answer, or
            can't be asked.
    """
    pods = _Pods()
    resolver = tf.distribute.cluster_resolver.KubernetesClusterResolver(
        {WORKER_JOB: [labels]}, tf_server_port=PORT, override_client=pods
    )
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            jobs = resolver.cluster_spec().as_dict()
            return dict(zip(pods.names, jobs.get(WORKER_JOB, []), strict=True))
        except RuntimeError as error:  # A pod does not run.
            if time.monotonic() > deadline:
                raise ConnectionError(
                    f"All pods labelled {labels} must run; {error}, after "
                    f"{_PATIENCE:.0f} seconds. See kubectl get pods -l {labels}."
                ) from error
        time.sleep(_PAUSE)


def in_order(name: str) -> str:
    """The name of a pod with its numbers filled up, so that 2 comes before 10."""
    return re.sub(r"\d+", lambda number: number[0].zfill(9), name)


class _Pods:
    """Asks as TensorFlow's resolver does, and answers as it should.

    The resolver asks for the pods of all namespaces, which few may do, sorts them by
    name, and takes the addresses of their nodes, where nothing listens.

    Attributes:
        names: of the pods of the last answer, in order.
    """

    def __init__(self) -> None:
        self.names: list[str] = []
        try:
            importlib.import_module("kubernetes.config").load_incluster_config()
            client = importlib.import_module("kubernetes.client")
            self._namespace = _NAMESPACE.read_text(encoding="utf-8").strip()
        except ImportError as error:
            raise ConnectionError(
                "--cluster=kubernetes needs the package kubernetes; it is not "
                f"installed. Run pip install kubernetes. {_INSTEAD}"
            ) from error
        except Exception as error:  # ConfigException is known only where it is raised.
            raise ConnectionError(
                "--cluster=kubernetes must be given within a pod that has a service "
                f"account; {str(error).rstrip('.')}. {_INSTEAD}"
            ) from error
        self._api = client.CoreV1Api()

    def list_pod_for_all_namespaces(self, label_selector: str) -> Any:
        """The pods of this namespace, ordered by number, with their own addresses."""
        try:
            found = self._api.list_namespaced_pod(
                self._namespace,
                label_selector=label_selector,
                _request_timeout=_TO_ANSWER,
            )
        except Exception as error:  # ApiException, or urllib3's.
            reason = str(getattr(error, "reason", None) or error).splitlines()[0]
            raise ConnectionError(
                "--cluster=kubernetes needs the right to list the pods of the namespace"
                f" {self._namespace}; Kubernetes does not list them: {reason}. Bind a "
                f"Role with get and list of pods to the service account. {_INSTEAD}"
            ) from error
        for pod in found.items:
            pod.metadata.name = in_order(pod.metadata.name)
            address = pod.status.pod_ip or ""
            pod.status.host_ip = f"[{address}]" if ":" in address else address
        self.names = sorted(pod.metadata.name for pod in found.items)
        return found
