"""A worker task: a process that lends its devices to a trainer."""

import os
import signal
import time

import tensorflow as tf

from lingvo_pipe.core.signals import exit_on_sigterm
from lingvo_pipe.pipeline.devices import cluster_spec
from lingvo_pipe.pipeline.devices.answered_sources import (
    answer_later,
    answered_note,
    answered_sources,
)
from lingvo_pipe.pipeline.devices.departure import Departure
from lingvo_pipe.pipeline.devices.device_kind import NUM_THREADS
from lingvo_pipe.pipeline.devices.device_names import WORKER_JOB
from lingvo_pipe.pipeline.devices.handshake import ShutdownNotice, describe_worker
from lingvo_pipe.pipeline.devices.listener_restriction import (
    close_other_connections,
    restrict_listeners,
)
from lingvo_pipe.pipeline.devices.own_addresses import (
    check_port,
    own_addresses,
    port_error,
)
from lingvo_pipe.pipeline.devices.trainer_liveness import wait_for_trainers_end

_STAYS = (
    "SIGTERM: waiting until no trainer uses this worker. A second SIGTERM ends it at "
    "once."
)
_POLL_SECONDS = 0.5

# Finds GPUs now, while TensorFlow's output about missing ones is hidden.
tf.config.list_physical_devices("GPU")


def serve(
    cluster: cluster_spec.Cluster,
    task: int,
    ends_with_trainer: bool = False,
    patience: float = 0.0,
) -> None:
    """Lends this machine's devices until interrupted. Each core is a CPU device.

    Anyone who reaches the port can execute code, so the worker answers only at its own
    address. If all tasks have addresses, the worker answers only the tasks. If
    `ends_with_trainer` and the trainer has an address, the worker ends when the trainer
    does. `patience` is the number of seconds that the trainer waits for workers.

    After SIGTERM the worker tells its trainer that it is leaving, and ends when the
    trainer no longer uses it.

    Raises:
        ValueError: if there is no worker of this number.
        ConnectionError: if the worker can't start, or no trainer starts.
    """
    exit_on_sigterm()
    server, note = start_worker(cluster, task)
    address, number = cluster.workers[task], len(cluster.workers)
    print(f"{WORKER_JOB}:{task} of {number} runs at {address}. It {note}.", flush=True)
    departure = Departure(server.target)
    try:
        if ends_with_trainer and cluster.trainer is not None:
            notice = ShutdownNotice(server.target)
            end = wait_for_trainers_end(
                cluster.trainer, notice.is_given, departure.is_released, patience
            )
            # srun sends it after a trainer's exit code that is not 0. The worker must
            # not seem to be killed, or the batch script would start all tasks again.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            print(end, flush=True)
        else:
            while True:
                # Not `signal.pause`: a thread of TensorFlow may get the signal, and
                # Python handles it when the main thread wakes.
                time.sleep(_POLL_SECONDS)
    except SystemExit:  # After SIGTERM. A second one ends the process at once.
        if departure.is_used():
            print(_STAYS, flush=True)
            departure.wait()
        raise
    except KeyboardInterrupt:
        print("Interrupted.", flush=True)
    finally:
        del server


def start_worker(
    cluster: cluster_spec.Cluster, task: int
) -> tuple[tf.distribute.Server, str]:
    """Starts a worker's server. Returns the server, and a note on whom it answers.

    Raises:
        ValueError: if there is no such worker.
        ConnectionError: if the port is in use, or the address is of another machine.
    """
    workers = cluster.workers
    address = workers[cluster_spec.checked_task(task, workers)]
    name = f"{WORKER_JOB}:{task}"
    other_tasks = [x for x in (*workers, cluster.trainer) if x and x != address]
    addresses = [] if cluster.listens_on_all else own_addresses(address, other_tasks)
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
        raise port_error(name, address, error.message) from error
    port = cluster_spec.split_address(address)[1]
    sources = answered_sources(cluster)
    is_filtered = bool(addresses) and restrict_listeners(port, addresses, sources.ips)
    server.start()
    describe_worker(server.target, cluster, task)
    if addresses:
        # Connections not accepted yet.
        close_other_connections(port, addresses, sources.ips if is_filtered else ())
    if is_filtered and any(sources):  # Not if it answers everyone.
        answer_later(cluster, port, addresses, sources)
    return server, answered_note(cluster, sources, is_filtered)


def _config() -> tf.compat.v1.ConfigProto:
    """Returns the options that `initialize_devices` sets in the trainer's process."""
    num_cores = os.cpu_count() or 1
    config = tf.compat.v1.ConfigProto(
        device_count={"CPU": num_cores},
        intra_op_parallelism_threads=NUM_THREADS,
        inter_op_parallelism_threads=max(2, num_cores),
    )
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    config.gpu_options.allow_growth = True
    return config
