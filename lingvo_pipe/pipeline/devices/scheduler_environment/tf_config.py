"""Checks of TF_CONFIG, a scheduler's cluster that TensorFlow does not check. Pure."""

import json
from typing import Any

from lingvo_pipe.core.errors import UserValueError
from lingvo_pipe.core.near_names import did_you_mean
from lingvo_pipe.pipeline.devices.cluster_spec import TRAINER_JOB
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


def check_tf_config(text: str) -> None:
    """Raises ValueError unless TF_CONFIG's value describes a cluster of ours."""
    try:
        config = json.loads(text)
    except ValueError as error:
        raise UserValueError(f"TF_CONFIG is not JSON: {error}. {HINT}") from error
    is_cluster = isinstance(config, dict) and isinstance(config.get("cluster"), dict)
    _check(is_cluster, "", "a JSON object with a cluster", text)
    jobs, task = config["cluster"], config.get("task", {})
    _check(isinstance(task, dict), ".task", "a type and an index", task)
    rpc_layer = config.get("rpc_layer")
    _check(rpc_layer in (None, "grpc"), ".rpc_layer", "grpc or nothing", rpc_layer)
    _check_jobs(jobs)
    if task:
        _check_task(task, jobs)


def _check(
    is_right: bool, path: str, expected: str, got: object, near: str = ""
) -> None:
    if not is_right:
        hint = f"{near} {HINT}".strip()
        path = f"{VARIABLE}{path}"
        raise UserValueError(path=path, expected=expected, got=got, hint=hint)


def _check_jobs(jobs: dict[str, Any]) -> None:
    no_ps = "no job ps, since weights are on the devices of their stages"
    _check("ps" not in jobs, ".cluster", no_ps, sorted(jobs))
    unknown = sorted(set(jobs) - set(TYPES))
    near = did_you_mean(unknown[0], TYPES) if unknown else ""
    _check(not unknown, ".cluster", f"the jobs {', '.join(TYPES)}", unknown, near)
    for job, addresses in jobs.items():
        is_list = isinstance(addresses, list) and all(
            isinstance(address, str) for address in addresses
        )
        _check(is_list, f".cluster[{job!r}]", "a list of addresses", addresses)
    trainers = [job for job in TRAINER_TYPES if jobs.get(job)]
    _check(len(trainers) <= 1, ".cluster", "one trainer", " and ".join(trainers))


def _check_task(task: dict[str, Any], jobs: dict[str, Any]) -> None:
    kind, index = task.get("type"), task.get("index", 0)
    near = did_you_mean(str(kind), TYPES)
    _check(kind in TYPES, ".task.type", f"one of {', '.join(TYPES)}", kind, near)
    is_number = not isinstance(index, bool) and str(index).isdecimal()
    _check(is_number, ".task.index", "0, 1, ...", index)
    # A trainer or evaluator may use a cluster without being one of its tasks.
    number = len(jobs.get(str(kind), ())) or (0 if kind == WORKER_JOB else 1)
    expected = f"less than {number}, the number of {kind} tasks"
    _check(int(index) < number, ".task.index", expected, index)
