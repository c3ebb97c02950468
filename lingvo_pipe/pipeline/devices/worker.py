"""A worker task: a process that lends its devices to a trainer."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence

import tensorflow as tf

from lingvo_pipe.pipeline.devices.cluster_spec import checked_task, split_address
from lingvo_pipe.pipeline.devices.device_names import WORKER_JOB

# Has TensorFlow look for GPUs now, while what it says about those it misses is hidden.
tf.config.list_physical_devices("GPU")


def serve(workers: Sequence[str], task: int) -> None:
    """Lends this machine's devices, one CPU device for each core, until interrupted.

    Whoever reaches the worker's port may run anything on it.

    Args:
        workers: addresses of all workers.
        task: which of them this is.

    Raises:
        ValueError: if there is no such worker.
        ConnectionError: if something else has its port.
    """
    address = workers[checked_task(task, workers)]
    _check_port(address, task)
    try:
        server = tf.distribute.Server(
            tf.train.ClusterSpec({WORKER_JOB: list(workers)}),
            job_name=WORKER_JOB,
            task_index=task,
            config=_config(),
        )
    except tf.errors.UnknownError as error:
        # Such as a worker that was started at the same moment.
        raise _no_port(address, task, error.message) from error
    print(f"worker:{task} of {len(workers)} runs at {address}.", flush=True)
    try:
        while True:
            signal.pause()
    except KeyboardInterrupt:
        print("Interrupted.", flush=True)
    finally:
        del server


def _check_port(address: str, task: int) -> None:
    """Raises ConnectionError if a server could not listen there."""
    try:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("", split_address(address)[1]))
    except OSError as error:
        raise _no_port(address, task, str(error.strerror)) from error


def _no_port(address: str, task: int, reason: str) -> ConnectionError:
    return ConnectionError(
        f"worker:{task} must be able to listen at {address}; it can't: {reason}. End "
        "what else does, or choose another port in --cluster_spec, for all tasks."
    )


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
