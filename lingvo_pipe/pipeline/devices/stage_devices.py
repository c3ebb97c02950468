"""Choice, checks and setup of the devices that stages run on.

`initialize_devices` chooses a process's devices. `stage_devices` resolves the devices
of a layer, and `pipelining_params.make_layout` assigns them to the layer's stages.
Users write short names, such as `cpu:0` or `worker:0/gpu:1`, or TensorFlow's names.
Without accelerators, stages run on logical CPU devices of one core each. Results are
the same, bit for bit, for all placements on devices of one kind. Stages may have
different kinds.

A TPU runs only what XLA has compiled, without loops and messages. So the loop of a
TPU's stage runs on the TPU's host, and calls functions on the TPU. This follows
TensorFlow's documentation and was never run on a TPU.
"""

import functools
import os
from collections.abc import Callable, Sequence

import tensorflow as tf

from lingvo_pipe.core.errors import UserRuntimeError, UserValueError, Words
from lingvo_pipe.core.tensorflow_startup import may_have_gpu, quiet_startup
from lingvo_pipe.pipeline.devices.cluster import (
    ReadyWorkers,
    check_servers,
    connect,
    find_workers,
)
from lingvo_pipe.pipeline.devices.cluster_spec import Cluster
from lingvo_pipe.pipeline.devices.device_choice import TaskDevices, choose_devices
from lingvo_pipe.pipeline.devices.device_kind import NUM_THREADS, num_threads
from lingvo_pipe.pipeline.devices.device_names import (
    KINDS,
    WORKER_JOB,
    DeviceName,
    checked_number,
    device_name,
    device_names,
)


def initialize_devices(
    devices: int | Sequence[str],
    cluster: Cluster | None = None,
    await_workers: Callable[[], None] | None = None,
) -> list[str]:
    """Chooses and prepares the devices of this process and its workers.

    Call this before TensorFlow runs anything. A later call may name fewer devices.
    Operations get one thread each, since devices run in parallel. The graph optimizer
    is switched off.

    Args:
        devices: number or names of devices (see `parse_devices`). A number means GPUs
            if the machine has any, else logical CPU devices. In a cluster, see
            `choose_devices`.
        cluster: the workers, if there are any.
        await_workers: waits for workers. If None, they have some seconds to come up.

    Returns:
        Full names of the devices.

    Raises:
        ValueError: if a device is not valid or not present.
        ConnectionError: if workers can't be reached, or are not the expected ones.
        RuntimeError: if TensorFlow has run something, and needs other settings.
    """
    with quiet_startup():  # TensorFlow looks for GPUs.
        has_gpu = bool(tf.config.list_physical_devices("GPU"))
    if not has_gpu and may_have_gpu():
        _warn_of_missing_libraries()
    if isinstance(devices, int):
        kind = "GPU" if has_gpu else "CPU"
        names = [DeviceName(None, kind, i) for i in range(checked_number(devices))]
    else:
        names = device_names(devices)
        _check_uses_workers(names, cluster)
        check_tasks(names, cluster)
    if cluster is not None:
        check_servers(cluster.present)
        if await_workers is not None:
            await_workers()
        ready = find_workers(cluster)
        if isinstance(devices, int):
            names = choose_devices(devices, _tasks(cluster, ready))
        _check_workers_devices(names, ready)
    local = [name for name in names if name.worker is None]
    _check_accelerators(names)
    _configure(local, cluster)
    if cluster is not None:
        connect(cluster, ready)
        _check_present(names)
    if any(name.kind == "TPU" for name in names):
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
        tf.tpu.experimental.initialize_tpu_system(resolver)
    return [name.full for name in names]


def stage_devices(names: Sequence[str] | None, num_devices: int) -> list[str]:
    """Returns the full names of the `num_devices` devices that stages run on.

    If `names` is None, returns the first GPUs of this process, or CPU devices if there
    is no GPU.

    Raises:
        ValueError: if the number of names is wrong, or a device is not present.
    """
    if names is None:
        kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        local = [name for name in _present([kind]) if name.worker is None]
        is_enough = len(local) >= num_devices
        hint = f"Call initialize_devices({num_devices}) first, or use fewer stages."
        _check(is_enough, f"{num_devices} {kind}s for the stages", len(local), hint)
        return _full_names(local[:num_devices])
    _check(isinstance(names, (list, tuple)), "a list of names or None", names)
    hint = "Change devices, splits or stages_per_device."
    expected = f"{num_devices} names for the stages"
    _check(len(names) == num_devices, expected, names, hint)
    parsed = device_names(names)
    _check_present(parsed)
    return _full_names(parsed)


def unused_note(used: Sequence[str]) -> str:
    """Returns a line about workers and accelerators that are not used, or ""."""
    names = device_names(used)
    tasks = {None, *(name.worker for name in names)}
    unused = [
        name.short if name.worker in tasks else f"{WORKER_JOB}:{name.worker}"
        for name in _present(KINDS)
        if name not in names and (name.kind != "CPU" or name.worker not in tasks)
    ]
    return f"not used: {', '.join(dict.fromkeys(unused))}" if unused else ""


def disable_graph_optimizer() -> None:
    """Switches off TensorFlow's graph optimizer.

    With the optimizer, the bytes of sums would depend on the cut into stages.
    """
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def must_compile(device: str) -> bool:
    """Returns True if a device runs only what XLA has compiled."""
    return device_name(device).kind == "TPU"


def loop_device(device: str) -> str:
    """Returns the device that runs a stage's loop: `device`, or a TPU's host CPU."""
    name = device_name(device)
    return (name.host if must_compile(device) else name).full


def _tasks(cluster: Cluster, ready: ReadyWorkers) -> list[TaskDevices]:
    counts = {task: worker.counts() for task, worker in ready.workers.items()}
    tasks = [TaskDevices(task, n["GPU"], n["CPU"]) for task, n in counts.items()]
    if cluster.trainer is not None:
        num_gpus = len(tf.config.list_physical_devices("GPU"))
        tasks.insert(0, TaskDevices(None, num_gpus, os.cpu_count() or 1))
    return tasks


def _check_uses_workers(names: Sequence[DeviceName], cluster: Cluster | None) -> None:
    num_workers = 0 if cluster is None else len(cluster.workers)
    example = ",".join(f"{WORKER_JOB}:{i}/cpu:0" for i in range(num_workers))
    _check(
        any(name.worker is not None for name in names) or not num_workers,
        "some devices of the workers",
        [name.short for name in names],
        f"For example: --devices={num_workers}, or --devices={example}.",
    )


def check_tasks(names: Sequence[DeviceName], cluster: Cluster | None) -> None:
    """Raises ValueError if devices are of workers that the cluster does not have.

    Workers lend no TPUs.
    """
    num_workers = 0 if cluster is None else len(cluster.workers)
    remote = [name for name in names if name.worker is not None]
    absent = [n.short for n in remote if (n.worker or 0) >= num_workers]
    _check(
        not absent,
        f"devices of {num_workers} workers, counted from 0",
        absent,
        "Give the addresses of all: --cluster=worker=host1:port1,host2:port2.",
    )
    tpus = [name.short for name in remote if name.kind == "TPU"]
    _check(not tpus, "no TPUs of workers", tpus, "Run the trainer on their machine.")


def _check_workers_devices(names: Sequence[DeviceName], ready: ReadyWorkers) -> None:
    absent = [
        f"{name.short} ({ready.workers[name.worker]})"
        for name in names
        if name.worker is not None
        and name.index >= ready.workers[name.worker].counts()[name.kind]
    ]
    _check(not absent, "devices that the workers have", Words(" and ".join(absent)))


def _check_accelerators(names: Sequence[DeviceName]) -> None:
    local = [name for name in names if name.worker is None]
    on_cpus = [f"cpu:{i}" if n in local else n.short for i, n in enumerate(names)]
    for kind in ("GPU", "TPU"):
        num_present = len(tf.config.list_physical_devices(kind))
        absent = [n.short for n in local if n.kind == kind and n.index >= num_present]
        number = min(num_present, len(names)) if kind == "GPU" else 0
        fewer = f"--devices={number}, or " if number else ""
        hint = (
            f"Use {fewer}--devices={','.join(on_cpus)} (in Python: devices={on_cpus})."
        )
        expected = f"some of this machine's {num_present} {kind}s"
        _check(not absent, expected, absent, hint)


def _check_present(names: Sequence[DeviceName]) -> None:
    present = _present(KINDS)
    absent = [name for name in names if name not in present]
    is_cpu = any(name.kind == "CPU" for name in absent)
    hint = "Call initialize_devices first for more CPU devices." * is_cpu
    expected = f"some of {[name.short for name in present]}"
    _check(not absent, expected, [name.short for name in absent], hint)


def _check(is_right: bool, expected: str, got: object, hint: str = "") -> None:
    if not is_right:
        raise UserValueError(path="devices", expected=expected, got=got, hint=hint)


def _present(kinds: Sequence[str]) -> list[DeviceName]:
    return [
        device_name(device.name)
        for kind in kinds
        for device in tf.config.list_logical_devices(kind)
    ]


def _full_names(names: Sequence[DeviceName]) -> list[str]:
    """Returns full names. Warns of CPU devices with several threads.

    Does not warn within a tf.Graph, such as the planner's, which is not run.
    """
    on_cpu = any(name.kind == "CPU" and name.worker is None for name in names)
    if on_cpu and tf.executing_eagerly():
        _warn_of_threads(num_threads())
    return [name.full for name in names]


@functools.cache
def _warn_of_missing_libraries() -> None:
    tf.get_logger().warning(
        "This machine has NVIDIA's driver, but TensorFlow sees no GPU. "
        "`pip install 'tensorflow[and-cuda]'` installs the libraries that it needs; "
        "or its version needs a newer driver."
    )


@functools.cache  # Once is enough.
def _warn_of_threads(number: int) -> None:
    if number != NUM_THREADS:
        tf.get_logger().warning(
            "A CPU device of this process has %s threads. They share sums, so the "
            "bytes of results depend on their number. Call "
            "lingvo_pipe.initialize_devices first, which gives each device one thread.",
            number,
        )


def _configure(local: Sequence[DeviceName], cluster: Cluster | None) -> None:
    (cpu,) = tf.config.list_physical_devices("CPU")
    # An earlier call may have named more devices, for calls after this one.
    before = tf.config.get_logical_device_configuration(cpu) or ()
    num_loops = max(len(local), tf.config.threading.get_inter_op_parallelism_threads())
    needed = [name.index + 1 for name in local if name.kind == "CPU"]
    num_cpus = max(1, len(before), *needed)
    try:
        tf.config.threading.set_intra_op_parallelism_threads(NUM_THREADS)
        # With more threads than loops, a loop would jump from thread to thread.
        tf.config.threading.set_inter_op_parallelism_threads(max(1, num_loops))
        disable_graph_optimizer()
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * num_cpus
        )
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError as error:
        if cluster is None and _are_configured(local, num_cpus):
            disable_graph_optimizer()
            return
        raise UserRuntimeError(
            path="initialize_devices",
            expected="a call before TensorFlow has run anything, such as making a "
            "tensor or a layer with weights; a later one may name fewer devices",
            got=Words(
                f"TensorFlow in use, with {len(_present(['CPU']))} CPU devices of "
                f"{num_threads()} threads"
            ),
            hint="Call it with the largest number at the top of the program, after the "
            "imports. In a notebook, restart the kernel first.",
        ) from error


def _are_configured(local: Sequence[DeviceName], num_cpus: int) -> bool:
    num_loops = tf.config.threading.get_inter_op_parallelism_threads()
    gpus = tf.config.list_physical_devices("GPU")
    return (
        num_threads() == NUM_THREADS
        and len(_present(["CPU"])) >= num_cpus
        and (num_loops == 0 or num_loops >= len(local))
        and all(map(tf.config.experimental.get_memory_growth, gpus))
    )
