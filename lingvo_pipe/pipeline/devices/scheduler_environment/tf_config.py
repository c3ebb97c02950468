"""Parses TF_CONFIG, the description of a cluster that TensorFlow does not check."""

import json
from collections.abc import Sequence
from typing import Any

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.pipeline.devices.cluster_spec import TRAINER_JOB, SchedulersCluster
from lingvo_pipe.pipeline.devices.device_names import WORKER_JOB

VARIABLE = "TF_CONFIG"
TRAINER_TYPES = ("chief", "master", TRAINER_JOB)
EVALUATOR_TYPE = "evaluator"
TYPES = (*TRAINER_TYPES, WORKER_JOB, EVALUATOR_TYPE)
HINT = (
    "Write TF_CONFIG='"
    '{"cluster": {"chief": ["host0:2222"], "worker": ["host1:2222", "host2:2222"]}, '
    '"task": {"type": "worker", "index": 0}}\', or unset it to train on this machine.'
)


def parse_tf_config(text: str) -> SchedulersCluster:
    """Returns the cluster that TF_CONFIG's value describes.

    Raises:
        ValueError: unless the value describes a cluster that can train.
    """
    try:
        config = json.loads(text)
    except ValueError as error:
        message = f"TF_CONFIG is not JSON: {error}."
        raise UserValueError(message, path=VARIABLE, hint=HINT) from error
    is_cluster = isinstance(config, dict) and isinstance(config.get("cluster"), dict)
    _check(is_cluster, "", "a JSON object with a cluster", text)
    jobs, task = config["cluster"], config.get("task", {})
    _check(isinstance(task, dict), ".task", "a type and an index", task)
    rpc_layer = config.get("rpc_layer")
    _check(rpc_layer in (None, "grpc"), ".rpc_layer", "grpc or nothing", rpc_layer)
    _check_jobs(jobs)
    if task:
        _check_task(task, jobs)
    kind, index = task.get("type"), int(task.get("index", 0))
    return SchedulersCluster(VARIABLE, jobs, kind, index, HINT)


def _check(
    is_right: bool, path: str, expected: str, got: object, names: Sequence[str] = ()
) -> None:
    if not is_right:
        path = f"{VARIABLE}{path}"
        raise UserValueError(
            path=path, expected=expected, got=got, names=names, hint=HINT
        )


def _check_jobs(jobs: dict[str, Any]) -> None:
    no_ps = "no job ps, since weights are on the devices of their stages"
    _check("ps" not in jobs, ".cluster", no_ps, sorted(jobs))
    for job, addresses in jobs.items():
        _check(job in TYPES, ".cluster", f"the jobs {', '.join(TYPES)}", job, TYPES)
        is_list = isinstance(addresses, list) and all(
            isinstance(address, str) for address in addresses
        )
        _check(is_list, f".cluster[{job!r}]", "a list of addresses", addresses)
    trainers = [job for job in TRAINER_TYPES if jobs.get(job)]
    _check(len(trainers) <= 1, ".cluster", "one trainer", trainers)


def _check_task(task: dict[str, Any], jobs: dict[str, Any]) -> None:
    kind, index = task.get("type"), task.get("index", 0)
    _check(kind in TYPES, ".task.type", f"one of {', '.join(TYPES)}", kind, TYPES)
    is_number = not isinstance(index, bool) and str(index).isdecimal()
    _check(is_number, ".task.index", "0, 1, ...", index)
    # A trainer or evaluator may use a cluster without being one of its tasks.
    number = len(jobs.get(str(kind), ())) or (0 if kind == WORKER_JOB else 1)
    expected = f"less than {number}, the number of {kind} tasks"
    _check(int(index) < number, ".task.index", expected, index)
