"""Checks of TF_CONFIG, in which schedulers describe a TensorFlow cluster. Pure.

TensorFlow reads it without looking: what is wrong comes out as a KeyError, or as a wait
for a task that is none.
"""

from __future__ import annotations

import json
from typing import Any

from lingvo_pipe.hyperparams.suggest import did_you_mean
from lingvo_pipe.pipeline.devices.cluster_spec import TRAINER_JOB
from lingvo_pipe.pipeline.devices.device_names import WORKER_JOB

VARIABLE = "TF_CONFIG"
TRAINER_TYPES = ("chief", "master", TRAINER_JOB)
EVALUATOR_TYPE = "evaluator"
TYPES = (*TRAINER_TYPES, WORKER_JOB, EVALUATOR_TYPE)
REMEDY = (
    "Write TF_CONFIG='"
    '{"cluster": {"chief": ["host0:2222"], "worker": ["host1:2222", "host2:2222"]}, '
    '"task": {"type": "worker", "index": 0}}\', or unset it to train on this machine.'
)


def check_tf_config(text: str) -> None:
    """Raises ValueError unless TensorFlow's resolver reads a cluster of ours in it.

    Args:
        text: the value of TF_CONFIG.
    """
    jobs, task = _read(text)
    _check_jobs(jobs)
    if task:
        _check_task(task, jobs)


def _read(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ValueError(f"TF_CONFIG must be JSON; {error}. {REMEDY}") from error
    if not isinstance(config, dict) or not isinstance(config.get("cluster"), dict):
        raise ValueError(
            f"TF_CONFIG must be a JSON object with a cluster; got {text!r}. {REMEDY}"
        )
    task = config.get("task", {})
    if not isinstance(task, dict):
        raise ValueError(
            f"The task of TF_CONFIG must have a type and an index; got {task!r}. "
            f"{REMEDY}"
        )
    if config.get("rpc_layer") not in (None, "grpc"):
        raise ValueError(
            f"The rpc_layer of TF_CONFIG must be grpc; got {config['rpc_layer']!r}. "
            "Leave it out."
        )
    return config["cluster"], task


def _check_jobs(jobs: dict[str, Any]) -> None:
    """Raises ValueError unless all jobs are ours, with lists of addresses."""
    if "ps" in jobs:
        raise ValueError(
            "TF_CONFIG must name no ps: there are no parameter servers here, weights "
            f"are on the devices of their stages. Make its tasks workers. {REMEDY}"
        )
    unknown = sorted(set(jobs) - set(TYPES))
    if unknown:
        raise ValueError(
            f"Jobs of TF_CONFIG must be of {', '.join(TYPES)}; got {unknown}."
            f"{did_you_mean(unknown[0], TYPES)} {REMEDY}"
        )
    for job, addresses in jobs.items():
        is_list = isinstance(addresses, list)
        if not is_list or not all(isinstance(each, str) for each in addresses):
            raise ValueError(
                f"Each job of TF_CONFIG must list its addresses; {job!r} is "
                f"{addresses!r}. {REMEDY}"
            )
    trainers = [job for job in TRAINER_TYPES if jobs.get(job)]
    if len(trainers) > 1:
        raise ValueError(
            f"TF_CONFIG must name one trainer; got {' and '.join(trainers)}. {REMEDY}"
        )


def _check_task(task: dict[str, Any], jobs: dict[str, Any]) -> None:
    """Raises ValueError unless the task is one of the cluster, or beside it."""
    kind, index = task.get("type"), task.get("index", 0)
    if kind not in TYPES:
        raise ValueError(
            f"The task's type in TF_CONFIG must be one of {', '.join(TYPES)}; got "
            f"{kind!r}.{did_you_mean(str(kind), TYPES)} {REMEDY}"
        )
    if isinstance(index, bool) or not str(index).isdecimal():
        raise ValueError(
            f"The task's index in TF_CONFIG must be 0, 1, ...; got {index!r}. {REMEDY}"
        )
    # A trainer or evaluator may use a cluster that it is no task of.
    number = len(jobs.get(kind, ())) or (0 if kind == WORKER_JOB else 1)
    if int(index) >= number:
        raise ValueError(
            f"The task's index in TF_CONFIG must be below {number}, the number of its "
            f"{kind} tasks; got {index}. {REMEDY}"
        )
