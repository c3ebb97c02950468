"""A worker task: a process that lends its devices to a trainer."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

import tensorflow as tf

from lingvo_pipe.pipeline.devices.cluster_spec import (
    Cluster,
    checked_task,
    split_address,
)
from lingvo_pipe.pipeline.devices.device_names import WORKER_JOB
from lingvo_pipe.pipeline.devices.dismissal import Dismissal
from lingvo_pipe.pipeline.devices.handshake import describe_worker
from lingvo_pipe.pipeline.devices.own_addresses import own_addresses
from lingvo_pipe.pipeline.devices.own_port import check_port, no_port
from lingvo_pipe.pipeline.devices.socket_fence import cut_off, fence
from lingvo_pipe.pipeline.devices.trainers_end import await_trainers_end

# Has TensorFlow look for GPUs now, while what it says about those it misses is hidden.
tf.config.list_physical_devices("GPU")


def serve(
    cluster: Cluster,
    task: int,
    ends_with_trainer: bool = False,
    patience: float = 0.0,
) -> None:
    """Lends this machine's devices, one CPU device for each core, until interrupted.

    Whoever reaches the worker's port may run anything on it, so it answers at its own
    address alone.

    Args:
        cluster: all tasks.
        task: which of its workers this is.
        ends_with_trainer: whether this ends when the trainer does, whose address the
            cluster must name.
        patience: seconds for which the trainer waits for its workers.

    Raises:
        ValueError: as `start_worker`.
        ConnectionError: likewise; or if no trainer comes, with which this is to end.
    """
    # The system gives SIGTERM no default where this is a container's first process.
    signal.signal(signal.SIGTERM, _exit)
    server = start_worker(cluster, task)
    address, number = cluster.workers[task], len(cluster.workers)
    print(f"{WORKER_JOB}:{task} of {number} runs at {address}.", flush=True)
    try:
        if ends_with_trainer and cluster.trainer is not None:
            dismissal = Dismissal(server.target)
            end = await_trainers_end(cluster.trainer, dismissal.is_given, patience)
            print(end, flush=True)
        else:
            while True:
                signal.pause()
    except KeyboardInterrupt:
        print("Interrupted.", flush=True)
    finally:
        del server


def _exit(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


def start_worker(cluster: Cluster, task: int) -> tf.distribute.Server:
    """Makes a server that answers at a worker's address, and says what it is.

    Args:
        cluster: all tasks.
        task: which of its workers this is.

    Raises:
        ValueError: if there is no such worker.
        ConnectionError: if something else has its port, its address is not of this
            machine, or it can't be kept from answering at others.
    """
    workers = cluster.workers
    address = workers[checked_task(task, workers)]
    name = f"{WORKER_JOB}:{task}"
    others = _others(cluster, address)
    addresses = [] if cluster.listens_on_all else own_addresses(address, others)
    check_port(name, address)
    try:
        server = tf.distribute.Server(
            tf.train.ClusterSpec({WORKER_JOB: list(workers)}),
            job_name=WORKER_JOB,
            task_index=task,
            config=_config(),
            start=False,
        )
    except tf.errors.UnknownError as error:
        # Such as a worker that was started at the same moment.
        raise no_port(name, address, error.message) from error
    port = split_address(address)[1]
    if addresses:
        fence(port, addresses)
        cut_off(port, addresses)
    server.start()
    describe_worker(server.target, cluster, task)
    if addresses:
        cut_off(port, addresses)  # Those that it had yet to accept.
    return server


def _others(cluster: Cluster, own: str) -> list[str]:
    every = [*cluster.workers, *([cluster.trainer] if cluster.trainer else [])]
    return [address for address in every if address != own]


def _config() -> tf.compat.v1.ConfigProto:
    """The options that `initialize_devices` sets in the trainer's process."""
    num_cores = os.cpu_count() or 1
    config = tf.compat.v1.ConfigProto(
        device_count={"CPU": num_cores},
        intra_op_parallelism_threads=1,
        inter_op_parallelism_threads=max(2, num_cores),
    )
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.gpu_options.allow_growth = True
    return config
