"""Asks schedulers who works together, through TensorFlow's cluster resolvers."""

from __future__ import annotations

import os

import tensorflow as tf

from lingvo_pipe.pipeline.devices import kubernetes_pods, tf_config
from lingvo_pipe.pipeline.devices.cluster_spec import TRAINER_JOB, split_address
from lingvo_pipe.pipeline.devices.device_names import WORKER_JOB
from lingvo_pipe.pipeline.devices.membership import SchedulersCluster

_SLURM_REMEDY = "Run srun --ntasks=N, N > 1: task 0 trains, the others are workers."
_KUBERNETES_REMEDY = (
    f"Label the workers' pods {kubernetes_pods.LABELS}, or say how they are: "
    "--cluster=kubernetes:app=workers."
)
# Each job of a machine gets ports of its own, as far as that goes.
_FIRST_PORT, _NUM_JOBS, _PORTS_OF_A_JOB = 10_000, 1000, 16


def from_tf_config() -> SchedulersCluster:
    """The cluster of TF_CONFIG, which `check_tf_config` has found to be right."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    return SchedulersCluster(
        tf_config.VARIABLE,
        resolver.cluster_spec().as_dict(),
        resolver.task_type,
        resolver.task_id if resolver.task_id is not None else 0,
        tf_config.REMEDY,
    )


def from_slurm() -> SchedulersCluster:
    """The tasks of this Slurm step: task 0 is the trainer, the others are workers.

    Raises:
        ValueError: if this is no step of Slurm, or its tasks are laid out in another
            order than block by block, so that they can't know each other's addresses.
    """
    try:
        num_tasks = int(os.environ["SLURM_STEP_NUM_TASKS"])
        resolver = _SlurmInOrder(
            {TRAINER_JOB: 1, WORKER_JOB: num_tasks - 1},
            port_base=_first_port(int(os.environ["SLURM_JOB_ID"])),
            # Slurm itself gives GPUs to tasks. The resolver, which would number them
            # anew, takes no more tasks than there are GPUs.
            gpus_per_node=num_tasks,
            gpus_per_task=1,
            auto_set_gpu=False,
        )
        jobs = resolver.cluster_spec().as_dict()
    except (KeyError, RuntimeError, ValueError) as error:
        is_absent = isinstance(error, KeyError)
        reason = f"{error.args[0]} is not set" if is_absent else error
        raise ValueError(
            f"--cluster=slurm must be given to the tasks of srun; {reason}. "
            f"{_SLURM_REMEDY}"
        ) from error
    jobs = {job: _without_places(tasks) for job, tasks in jobs.items()}
    task_type, task_index = resolver.get_task_info()
    _check_node(jobs, task_type, task_index)
    return SchedulersCluster("Slurm", jobs, task_type, task_index, _SLURM_REMEDY, True)


def from_kubernetes(labels: str) -> SchedulersCluster:
    """The pods of this namespace with certain labels are the workers.

    A pod that is none of them is the trainer's.

    Args:
        labels: a selector, as in `app=workers`.

    Raises:
        ConnectionError: if Kubernetes does not say.
    """
    workers = kubernetes_pods.running_pods(labels)
    own_name = kubernetes_pods.in_order(os.environ.get("HOSTNAME", ""))
    task = list(workers).index(own_name) if own_name in workers else None
    return SchedulersCluster(
        "Kubernetes",
        {WORKER_JOB: list(workers.values())} if workers else {},
        None if task is None else WORKER_JOB,
        task,
        _KUBERNETES_REMEDY,
    )


class _SlurmInOrder(tf.distribute.cluster_resolver.SlurmClusterResolver):
    """Slurm's nodes in Slurm's order.

    TensorFlow sorts them by name, and n10 before n2, which is not the order of ranks.
    """

    def _resolve_task_configuration(self) -> dict[str, int]:
        found = super()._resolve_task_configuration()
        return {f"{i:06}@{host}": n for i, (host, n) in enumerate(found.items())}


def _without_places(tasks: list[str]) -> list[str]:
    return [address.partition("@")[2] for address in tasks]


def _first_port(job_id: int) -> int:
    return _FIRST_PORT + job_id % _NUM_JOBS * _PORTS_OF_A_JOB


def _check_node(jobs: dict[str, list[str]], task_type: str, task_index: int) -> None:
    """Raises ValueError unless this task runs on the node that it should."""
    address = jobs[task_type][task_index]
    node = os.environ.get("SLURMD_NODENAME")
    if node not in (None, split_address(address)[0]):
        raise ValueError(
            "Tasks of Slurm must be laid out block by block, for their addresses are "
            f"counted so; {task_type} {task_index} should be at {address}, and runs on "
            f"{node}. Run srun --distribution=block."
        )
